// Reads KV extents from segment files into memory, layer by layer. One thread keeps several
// requests in flight and calls the caller's functions; with it, helpers check, decrypt and copy
// what arrived, since one core does not keep up with a fast disk. Neighbours: kv_segments.h owns
// the files and the reader; kv_cipher.h checks and decrypts.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/bounded_queue.h"
#include "base/disk_io.h"
#include "base/huge_memory.h"
#include "context_store/disk/kv_cipher.h"
#include "context_store/disk/kv_index.h"

namespace withy::context_store {

// Chunks of one extent to read. Layer l of the chunk at position p goes to
// targets[p] + layers[l].block * layer_stride; a null target leaves the chunk out.
struct KvExtentRead {
  struct Layer {
    uint32_t layer = 0;  // of the read
    uint32_t block = 0;
    bool wanted = true;  // false: it is not read
  };
  KvExtent extent = {};
  KvOwner owner = {};
  std::vector<std::byte*> targets = {};  // as many as the extent has chunks
  size_t layer_stride = 0;               // bytes, >= extent.block_bytes
  // Of the extent's layers, ascending by layer; empty: layer l is layer l of the read, and block l.
  std::vector<Layer> layers = {};

  Layer LayerAt(uint32_t in_extent) const {
    return layers.empty() ? Layer{in_extent, in_extent} : layers[in_extent];
  }
};

// One read of any number of extents, of all or of some of its layers. The functions are called on
// the reader's thread and must return soon; they may call Start and Cancel.
struct KvRead {
  uint32_t layers = 0;
  std::vector<KvExtentRead> extents = {};
  // This layer of all chunks is in its place, except of extents that failed. Called for each layer,
  // in order.
  std::function<void(uint32_t layer)> on_layer = {};
  // The extent's chunks are missing from the next on_layer on; only bytes that passed their check
  // were written to its targets. At most once an extent, with the segment's file and the offset:
  // DATA_LOSS (cut, damaged, or another extent's bytes), NOT_FOUND (no such file),
  // FAILED_PRECONDITION (encrypted and the owner has no key, or the reverse), those of read(2).
  std::function<void(size_t extent, const absl::Status& status)> on_failed = {};
  // After the last layer. Nothing is called afterwards.
  std::function<void()> on_done = {};
};
using KvReadId = uint64_t;  // never 0

struct KvReaderOptions {
  std::string directory;  // of the segment files
  bool direct = true;     // O_DIRECT
  DiskQueue::Kind queue = DiskQueue::Kind::kUring;
  // For measurements: data arrive no faster than from a disk of this speed; 0 = no limit.
  uint64_t bytes_per_second = 0;
  // Threads that check, decrypt and copy, beside the reader's own; at most kMaxHelpers.
  uint32_t helpers = DefaultHelpers();

  static constexpr uint32_t kMaxHelpers = 3;
  // As many as there are other cores.
  static uint32_t DefaultHelpers();
};

// Name of a segment's file.
std::string KvSegmentPath(const std::string& directory, uint64_t segment);

// Thread-safe. Reads are served in order of arrival. The destructor cancels what is running.
class KvReader {
 public:
  // Bytes of one request, and requests in flight: what flash needs for its full speed. Together
  // they are the reader's buffers.
  static constexpr size_t kRequestBytes = 512 << 10;
  static constexpr uint32_t kDepth = 8;
  // Layers, the first ones, that share no request with another layer if an extent has so many bytes
  // of each: computing begins with the first one, and from a slow disk a large request brings it
  // late.
  static constexpr uint32_t kSingleLayers = 4;
  static constexpr size_t kSingleLayerBytes = 32 << 10;
  static constexpr size_t kMaxReads = 1024;  // started and not yet done
  // Buffers given to a helper at a time: the next one waits while it works. What helpers have no
  // room for, the reader's thread does itself.
  static constexpr uint32_t kSlotsPerHelper = 2;

  // Errors: those of mmap(2) and io_uring_setup(2).
  static absl::StatusOr<std::unique_ptr<KvReader>> Create(KvReaderOptions options);
  ~KvReader();
  KvReader(const KvReader&) = delete;
  KvReader& operator=(const KvReader&) = delete;

  // Returns at once. Errors: INVALID_ARGUMENT (numbers of layers or targets that do not fit),
  // RESOURCE_EXHAUSTED (kMaxReads).
  absl::StatusOr<KvReadId> Start(KvRead read);

  // After the return no function of the read is running or will be called (except, on the reader's
  // thread, the one that called Cancel), and no target is written. Does not wait for the disk. Does
  // nothing if the read is done. What the functions captured may be destroyed later.
  void Cancel(KvReadId id);

  uint64_t bytes_read() const { return bytes_read_; }

 private:
  // Consecutive pieces of an extent, read by one request.
  struct Unit {
    uint32_t extent = 0;
    uint32_t first = 0;  // number of the piece
    uint32_t pieces = 0;
  };
  struct ExtentState {
    UniqueFd fd;
    std::vector<std::unique_ptr<KvPieceSealer>> sealers;  // one a thread that places
    std::vector<uint32_t> left;  // by layer: wanted pieces that have not arrived
    uint32_t in_flight = 0;      // requests
    absl::Status failure = {};   // the first one's; no further request is made then
    bool failed() const { return !failure.ok(); }
  };
  struct Job {
    KvReadId id = 0;
    KvRead read;
    std::vector<ExtentState> extents;
    std::vector<Unit> units;  // in order of their first layer
    size_t next_unit = 0;
    uint32_t next_layer = 0;
    uint32_t in_flight = 0;
    bool over = false;  // done or cancelled
  };
  // A buffer and the request that fills it.
  struct Slot {
    std::span<std::byte> buffer;
    Job* job = nullptr;
    Unit unit = {};
    uint64_t file_offset = 0;
    size_t wanted = 0;  // bytes
    size_t filled = 0;
    int64_t due_ns = 0;
  };

  KvReader(KvReaderOptions options, HugeMemory memory, std::unique_ptr<DiskQueue> queue);
  static void Plan(Job* job);
  void Run();
  bool TakeNew();
  void TakePlaced();
  void DropFinished();
  void IssueMore();
  bool Issue(Job& job, const Unit& unit);
  void Submit(size_t slot);
  void Handle(const DiskCompletion& completion);
  void Help(uint32_t helper);
  absl::Status Place(const Slot& slot, uint32_t thread) const;
  void Finish(size_t slot, const absl::Status& status);
  void TellFailure(Job& job, uint32_t extent);
  void Advance(Job& job);
  void WaitUntilDue(const Slot& slot);
  // Surround calls of a job's functions, and writes to its targets. False if the job was cancelled.
  bool Begin(Job& job);
  void End();
  bool BeginPlacing(const Job& job);
  void EndPlacing(const Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Cancelled(const Job& job);

  const KvReaderOptions options_;
  HugeMemory memory_;
  const std::unique_ptr<DiskQueue> queue_;
  std::atomic<uint64_t> bytes_read_{0};

  // Used by the reader's thread alone; a helper reads the slot that it was given and its job.
  std::list<std::unique_ptr<Job>> jobs_;  // oldest first
  std::vector<Slot> slots_;
  std::vector<size_t> free_slots_;
  int64_t disk_free_ns_ = 0;  // when the simulated disk has delivered what was asked of it

  absl::Mutex mutex_;
  std::deque<std::unique_ptr<Job>> new_jobs_ ABSL_GUARDED_BY(mutex_);
  std::set<KvReadId> live_ ABSL_GUARDED_BY(mutex_);
  std::set<KvReadId> cancelled_ ABSL_GUARDED_BY(mutex_);          // a subset of live_
  KvReadId current_ ABSL_GUARDED_BY(mutex_) = 0;                  // between Begin and End
  std::map<KvReadId, uint32_t> placing_ ABSL_GUARDED_BY(mutex_);  // threads that place; none is 0
  struct Placed {
    size_t slot = 0;
    absl::Status status;
  };
  std::vector<Placed> placed_ ABSL_GUARDED_BY(mutex_);  // by helpers
  KvReadId last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;

  BoundedQueue<size_t> to_place_;  // slots for helpers
  std::vector<std::thread> helpers_;
  std::thread thread_;
};

}  // namespace withy::context_store
