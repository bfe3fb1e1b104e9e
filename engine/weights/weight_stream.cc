#include "engine/weights/weight_stream.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <list>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "base/crc32c.h"
#include "base/huge_memory.h"
#include "base/status.h"
#include "base/thread_role.h"
#include "engine/weights/stage_ring.h"
#include "engine/weights/weight_loader.h"
#include "engine/weights/weight_memory.h"

namespace withy::engine {
namespace {

constexpr uint32_t kQueueDepth = 16;
constexpr size_t kChunksPerRead = 8;  // 1 MiB
constexpr absl::Duration kStopPoll = absl::Milliseconds(2);
constexpr int32_t kTiles = -1;  // in the place of a stage: tiles of an embedding

using TileMemory = std::array<HugeMemory, kEmbeddingTables>;

// Reads that belong together: of a stage, or tiles of the embedding.
struct ReadGroup {
  int32_t stage = kTiles;
  size_t left = 0;  // requests
  absl::Status status;
};

// A read of whole pages, and the sums of the bytes that are wanted of them.
struct WeightRead {
  ReadGroup* group = nullptr;
  uint64_t offset = 0;  // of the file
  std::span<std::byte> memory;
  uint64_t begin = 0;  // of the wanted bytes within `memory`
  uint64_t bytes = 0;
  uint64_t sum_bytes = 0;  // bytes of each sum; the last one may have fewer
  const ChunkSum* sums = nullptr;
  uint64_t done = 0;  // bytes that arrived, if the disk gave fewer than asked for

  uint64_t end() const { return begin + bytes; }
};

}  // namespace

// State of a stream and its reading thread.
class WeightStream::Core {
 public:
  Core(WeightPlan plan, const WeightStreamOptions& options, const std::string& path,
       std::unique_ptr<WeightMemory> memory, WeightFile file, StreamSums sums, TileMemory tiles)
      : plan_(std::move(plan)),
        stall_ns_(options.stall_ns),
        path_(path),
        memory_(std::move(memory)),
        file_(std::move(file)),
        sums_(std::move(sums)),
        tiles_(std::move(tiles)),
        queue_(options.make_queue ? options.make_queue(kQueueDepth)
                                  : DiskQueue::CreateBest(kQueueDepth)),
        ring_(static_cast<int32_t>(plan_.stages.size()), plan_.slots(),
              static_cast<int32_t>(plan_.level_bytes.size()) - 1) {
    if (!memory_->ring().empty()) queue_->Prepare(memory_->ring());
    locked_bytes_ = memory_->Lock();
    for (uint64_t tag = 0; tag < kQueueDepth; ++tag) free_tags_.push_back(tag);
    under_way_.resize(kQueueDepth);
    needs_.resize(plan_.level_bytes.size());
    for (size_t level = 0; level < needs_.size(); ++level) {
      for (const StreamStage& stage : plan_.stages) {
        needs_[level].push_back(stage.Needs(static_cast<int32_t>(level)));
      }
    }
    for (size_t table = 0; table < kEmbeddingTables; ++table) {
      const StreamedEmbedding& embedding = plan_.embeddings[table];
      if (!embedding.streamed()) continue;
      rows_[table].resize(static_cast<size_t>(embedding.rows) *
                          static_cast<size_t>(embedding.matrix.n_in));
    }
  }

  bool StreamsEmbedding(size_t table) const { return plan_.embeddings[table].streamed(); }
  const float* FetchedRow(int32_t i, size_t table) const {
    return rows_[table].data() + static_cast<ptrdiff_t>(i) * plan_.embeddings[table].matrix.n_in;
  }

  bool Needs(int32_t stage, int32_t level) const {
    return needs_[static_cast<size_t>(level)][static_cast<size_t>(stage)];
  }

  void ReadAheadAt(int32_t level) {
    if (plan_.level_bytes[static_cast<size_t>(level)] == 0) return;
    absl::MutexLock lock(&mutex_);
    ring_.ReadAheadAt(level);
  }

  bool Ready(int32_t stage, int32_t level) {
    absl::MutexLock lock(&mutex_);
    return ring_.StateOf(stage, level) == StageRing::State::kReady;
  }

  const std::atomic<bool>& Demand(int32_t stage, int32_t level) {
    absl::MutexLock lock(&mutex_);
    ring_.Demand(stage, level);
    queue_->Wake();
    demanded_ = {.stage = stage, .level = level, .since_ns = Clock::Real().SteadyNanos()};
    demanded_is_settled_ = IsSettled(stage, level);
    return demanded_is_settled_;
  }

  absl::StatusOr<bool> Await(int32_t stage, int32_t level, const std::atomic<bool>* stop) {
    absl::MutexLock lock(&mutex_);
    ring_.Demand(stage, level);
    queue_->Wake();
    const int64_t since_ns = std::exchange(demanded_, {}).since_ns;
    const auto arrived =
        WaitUntil([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return IsSettled(stage, level); },
                  stop, since_ns);
    if (!arrived.ok() || !*arrived) return Counted(arrived);
    if (ring_.StateOf(stage, level) == StageRing::State::kReady) return true;
    return Counted(failure_);
  }

  void Release(int32_t stage) {
    absl::MutexLock lock(&mutex_);
    ring_.Release(stage);
    queue_->Wake();
  }

  absl::StatusOr<bool> FetchRows(std::span<const int32_t> tokens, const std::atomic<bool>* stop,
                                 size_t table) {
    for (size_t begin = 0; begin < tokens.size();) {
      std::vector<int32_t> tiles;
      size_t end = begin;
      for (; end < tokens.size(); ++end) {
        const int32_t tile = tokens[end] / kTileRows;
        if (std::find(tiles.begin(), tiles.end(), tile) != tiles.end()) continue;
        if (tiles.size() == StreamedEmbedding::kTilesAtOnce) break;
        tiles.push_back(tile);
      }
      const absl::StatusOr<bool> arrived = FetchTiles(tiles, stop, table);
      if (!arrived.ok() || !*arrived) return arrived;
      for (; begin < end; ++begin) UnpackToken(tiles, tokens[begin], begin, table);
    }
    return true;
  }

  // The reading thread.
  void Run() {
    SetThreadRole(ThreadRole::kCarries);
    while (TakeReads()) {
      while (!free_tags_.empty() && !due_.empty()) SubmitNext();
      const std::optional<DiskCompletion> completion = queue_->Wait();
      if (completion.has_value()) Complete(*completion);
    }
    while (free_tags_.size() < kQueueDepth) {
      const std::optional<DiskCompletion> completion = queue_->Wait();
      if (completion.has_value()) free_tags_.push_back(completion->tag);
    }
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }

  // True once the reading thread has nothing under way any more; false: the disk hangs.
  bool Stop() {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    queue_->Wake();
    return mutex_.AwaitWithTimeout(absl::Condition(&ended_), absl::Nanoseconds(stall_ns_));
  }

  WeightStreamStats stats() {
    absl::MutexLock lock(&mutex_);
    return {.budget_bytes = plan_.budget_bytes,
            .resident_bytes = plan_.fixed_bytes + plan_.resident_bytes,
            .buffer_bytes = plan_.buffer_bytes(),
            .locked_bytes = locked_bytes_,
            .pass_bytes = plan_.level_bytes.back(),
            .lowest_pass_bytes = plan_.level_bytes.front(),
            .direct = file_.direct,
            .uring = queue_->kind() == DiskQueue::Kind::kUring,
            .read_bytes = read_bytes_,
            .waits = waits_,
            .wait_ns = wait_ns_,
            .failures = failures_,
            .bad_reads = bad_reads_};
  }

  std::thread thread;

 private:
  const StreamStage& StageAt(int32_t stage) const {
    return plan_.stages[static_cast<size_t>(stage)];
  }

  // Whether a stage has arrived or cannot be read.
  bool IsSettled(int32_t stage, int32_t level) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const StageRing::State state = ring_.StateOf(stage, level);
    return state == StageRing::State::kReady || state == StageRing::State::kFailed;
  }

  // Waits until done(); false: `*stop` became true first. `since_ns`: when the pass began to stand
  // still; 0: now. Errors: UNAVAILABLE if nothing arrives.
  template <typename Done>
  absl::StatusOr<bool> WaitUntil(Done done, const std::atomic<bool>* stop, int64_t since_ns = 0)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (since_ns == 0 && done()) return true;
    const int64_t started = since_ns != 0 ? since_ns : Clock::Real().SteadyNanos();
    // A wait of a pass in the place of one that stands still is a part of that wait.
    const bool counts = demanded_.since_ns == 0;
    if (counts) ++waits_;
    absl::StatusOr<bool> result = true;
    while (!done()) {
      if (stop != nullptr && *stop) {
        result = false;
        break;
      }
      if (Clock::Real().SteadyNanos() - std::max(started, last_arrival_ns_) > stall_ns_) {
        result = absl::UnavailableError(absl::StrFormat(
            "weights cannot be read: the disk of %s has delivered nothing for %d ms: check the "
            "disk, then call again",
            path_, stall_ns_ / kNanosPerMilli));
        break;
      }
      arrived_.WaitWithTimeout(&mutex_, kStopPoll);
    }
    if (counts) wait_ns_ += Clock::Real().SteadyNanos() - started;
    return result;
  }

  // After an error nothing that was read ahead is trusted.
  absl::StatusOr<bool> Counted(absl::StatusOr<bool> result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (result.ok()) return result;
    ++failures_;
    ring_.Reset();
    return result;
  }

  absl::StatusOr<bool> FetchTiles(std::span<const int32_t> tiles, const std::atomic<bool>* stop,
                                  size_t table) {
    absl::MutexLock lock(&mutex_);
    const auto idle = [this]()
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return tile_group_.left == 0; };
    // Reads of a fetch that was left may still be under way.
    absl::StatusOr<bool> arrived = WaitUntil(idle, stop);
    if (!arrived.ok() || !*arrived) return Counted(arrived);
    tile_group_.status = absl::OkStatus();
    tile_group_.left = tiles.size();
    const StreamedEmbedding& embedding = plan_.embeddings[table];
    for (size_t i = 0; i < tiles.size(); ++i) {
      const uint64_t at =
          embedding.file_offset + static_cast<uint64_t>(tiles[i]) * embedding.tile_bytes();
      const uint64_t first = at / kWeightPage * kWeightPage;
      const uint64_t pages = RoundUp(at + embedding.tile_bytes(), kWeightPage) - first;
      tile_reads_.push_back(
          {.group = &tile_group_,
           .offset = first,
           .memory = tiles_[table].bytes().subspan(i * embedding.tile_room(), pages),
           .begin = at - first,
           .bytes = embedding.tile_bytes(),
           .sum_bytes = embedding.tile_bytes(),
           .sums = &sums_.tiles[table][static_cast<size_t>(tiles[i])]});
    }
    queue_->Wake();
    arrived = WaitUntil(idle, stop);
    if (!arrived.ok() || !*arrived) return Counted(arrived);
    if (!tile_group_.status.ok()) return Counted(tile_group_.status);
    return true;
  }

  void UnpackToken(std::span<const int32_t> tiles, int32_t token, size_t row, size_t table) {
    const StreamedEmbedding& embedding = plan_.embeddings[table];
    const int32_t tile = token / kTileRows;
    const auto i =
        static_cast<uint64_t>(std::find(tiles.begin(), tiles.end(), tile) - tiles.begin());
    const uint64_t at =
        embedding.file_offset + static_cast<uint64_t>(tile) * embedding.tile_bytes();
    PackedMatrix one = embedding.matrix;
    one.n_out = kTileRows;
    one.data = tiles_[table].bytes().data() + i * embedding.tile_room() + at % kWeightPage;
    UnpackRow(one, token % kTileRows,
              rows_[table].data() + row * static_cast<size_t>(embedding.matrix.n_in));
  }

  // Turns what is due into requests; false: the stream ends.
  bool TakeReads() {
    absl::MutexLock lock(&mutex_);
    DropGivenUp();
    due_.insert(due_.begin(), tile_reads_.begin(), tile_reads_.end());
    tile_reads_.clear();
    while (const std::optional<StageRead> read = ring_.NextRead()) Divide(*read);
    return !stopping_;
  }

  // Requests of stages that nobody waits for any more are not made.
  void DropGivenUp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::deque<WeightRead> wanted;
    for (const WeightRead& read : due_) {
      const int32_t stage = read.group->stage;
      if (stage == kTiles || read.done > 0 || ring_.Holds(stage)) {
        wanted.push_back(read);
      } else {
        EndRead(read.group);
      }
    }
    due_ = std::move(wanted);
  }

  void Divide(const StageRead& read) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ReadGroup& group = groups_.emplace_back();
    group.stage = read.stage;
    group.left = 1;  // until all are made, so that a read of nothing ends, too
    const auto& tensors = StageAt(read.stage).tensors;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const size_t end = tensors[i].ChunksOf(read.to_level);
      for (size_t chunk = tensors[i].ChunksOf(read.from_level); chunk < end;) {
        const size_t next = std::min(chunk + kChunksPerRead, end);
        due_.push_back(ReadOf(&group, i, chunk, next));
        ++group.left;
        chunk = next;
      }
    }
    EndRead(&group);
  }

  // Chunks [first, end) of a tensor of the group's stage.
  WeightRead ReadOf(ReadGroup* group, size_t tensor, size_t first, size_t end) const {
    const StreamedTensor& t = StageAt(group->stage).tensors[tensor];
    const uint64_t begin = first * kStreamChunk;
    const uint64_t bytes = std::min(end * kStreamChunk, t.bytes - t.resident_bytes) - begin;
    const std::span<std::byte> slot = memory_->slot(group->stage % plan_.slots());
    return {.group = group,
            .offset = t.file_offset + t.resident_bytes + begin,
            .memory = slot.subspan(t.slot_offset + begin, RoundUp(bytes, kWeightPage)),
            .begin = 0,
            .bytes = bytes,
            .sum_bytes = kStreamChunk,
            .sums = &sums_.chunks[static_cast<size_t>(group->stage)][tensor][first]};
  }

  void EndRead(ReadGroup* group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (--group->left > 0) return;
    if (group->stage != kTiles) {
      if (!group->status.ok()) failure_ = group->status;
      ring_.Finished(ring_.SlotOf(group->stage), group->status.ok());
      groups_.remove_if([group](const ReadGroup& other) { return &other == group; });
    }
    if (demanded_.since_ns != 0 && IsSettled(demanded_.stage, demanded_.level)) {
      demanded_is_settled_ = true;
    }
    arrived_.Signal();
  }

  void SubmitNext() {
    const WeightRead read = due_.front();
    due_.pop_front();
    const uint64_t tag = free_tags_.back();
    free_tags_.pop_back();
    under_way_[tag] = read;
    queue_->Submit({.kind = DiskRequest::Kind::kRead,
                    .fd = file_.fd.get(),
                    .offset = read.offset + read.done,
                    .memory = read.memory.subspan(read.done),
                    .tag = tag});
  }

  void Complete(const DiskCompletion& completion) {
    WeightRead read = under_way_[completion.tag];
    free_tags_.push_back(completion.tag);
    const uint64_t got = completion.result > 0 ? static_cast<uint64_t>(completion.result) : 0;
    // A disk may deliver less than was asked for: the rest is asked for again.
    if (got > 0 && read.done + got < read.end() && got % kWeightPage == 0) {
      read.done += got;
      due_.push_front(read);
      return;
    }
    const absl::Status status = StatusOf(read, completion.result, read.done + got >= read.end());
    if (!file_.direct) {
      posix_fadvise(file_.fd.get(), static_cast<off_t>(read.offset),
                    static_cast<off_t>(read.memory.size()), POSIX_FADV_DONTNEED);
    }
    absl::MutexLock lock(&mutex_);
    read_bytes_ += read.memory.size();
    last_arrival_ns_ = Clock::Real().SteadyNanos();
    if (absl::IsDataLoss(status)) ++bad_reads_;
    read.group->status.Update(status);
    EndRead(read.group);
  }

  std::string Describe(const WeightRead& read) const {
    const int32_t stage = read.group->stage;
    const std::string what =
        stage == kTiles ? "the embedding" : absl::StrCat("weights of layer ", StageAt(stage).layer);
    return absl::StrFormat("%s at byte %d of %s", what, read.offset, path_);
  }

  absl::Status StatusOf(const WeightRead& read, int64_t result, bool whole) const {
    if (result < 0) {
      return absl::UnavailableError(
          absl::StrFormat("%s: cannot be read: %s: check the disk, then call again", Describe(read),
                          std::strerror(static_cast<int>(-result))));
    }
    if (!whole) {
      return absl::DataLossError(absl::StrFormat(
          "%s: the file ends before them: its worker packs it again; call again in a moment",
          Describe(read)));
    }
    const std::span<const std::byte> bytes = read.memory.subspan(read.begin, read.bytes);
    for (uint64_t at = 0; at < bytes.size(); at += read.sum_bytes) {
      const uint64_t size = std::min(read.sum_bytes, bytes.size() - at);
      if (Crc32cLanes(bytes.subspan(at, size)) == read.sums[at / read.sum_bytes]) continue;
      return absl::DataLossError(absl::StrFormat(
          "%s: have changed since the model was opened: its worker checks the file, and packs it "
          "again if it is damaged; call again in a moment",
          Describe(read)));
    }
    return absl::OkStatus();
  }

  const WeightPlan plan_;
  const int64_t stall_ns_;
  const std::string path_;
  const std::unique_ptr<WeightMemory> memory_;
  const WeightFile file_;
  const StreamSums sums_;
  TileMemory tiles_;  // of the tables, as read
  // Taken from them; the waiting thread's.
  std::array<std::vector<float>, kEmbeddingTables> rows_;
  const std::unique_ptr<DiskQueue> queue_;
  uint64_t locked_bytes_ = 0;
  std::vector<std::vector<bool>> needs_;  // [level][stage]

  // Only the reading thread uses these.
  std::deque<WeightRead> due_;
  std::vector<uint64_t> free_tags_;
  std::vector<WeightRead> under_way_;  // [tag]

  absl::Mutex mutex_;
  absl::CondVar arrived_;
  // The stage that a pass waits for while another one runs in its place.
  struct Demanded {
    int32_t stage = 0;
    int32_t level = 0;
    int64_t since_ns = 0;  // 0: none
  };
  Demanded demanded_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> demanded_is_settled_{false};
  StageRing ring_ ABSL_GUARDED_BY(mutex_);
  std::list<ReadGroup> groups_ ABSL_GUARDED_BY(mutex_);
  ReadGroup tile_group_ ABSL_GUARDED_BY(mutex_);
  std::vector<WeightRead> tile_reads_ ABSL_GUARDED_BY(mutex_);  // due
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);                // of the last stage that failed
  int64_t last_arrival_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t read_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t waits_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t wait_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t failures_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t bad_reads_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::StatusOr<std::unique_ptr<WeightStream>> WeightStream::Start(
    WeightPlan plan, const WeightStreamOptions& options, PackedFile* file) {
  WITHY_ASSIGN_OR_RETURN(WeightFile from, OpenWeightFile(file->path(), options.direct));
  WITHY_ASSIGN_OR_RETURN(std::unique_ptr<WeightMemory> memory, WeightMemory::Create(*file, plan));
  WITHY_ASSIGN_OR_RETURN(StreamSums sums, LoadWeights(from, plan, *memory, file));
  WITHY_RETURN_IF_ERROR(memory->Seal());
  TileMemory tiles;
  for (size_t table = 0; table < kEmbeddingTables; ++table) {
    const StreamedEmbedding& embedding = plan.embeddings[table];
    if (!embedding.streamed()) continue;
    WITHY_ASSIGN_OR_RETURN(tiles[table], HugeMemory::Allocate(StreamedEmbedding::kTilesAtOnce *
                                                              embedding.tile_room()));
  }
  std::unique_ptr<ExpertStream> experts;
  if (plan.experts.streamed()) {
    WITHY_ASSIGN_OR_RETURN(
        experts, ExpertStream::Start(plan.experts, options, file->path(), std::move(sums.experts)));
  }
  auto core = std::make_shared<Core>(std::move(plan), options, file->path(), std::move(memory),
                                     std::move(from), std::move(sums), std::move(tiles));
  core->thread = std::thread([core] { core->Run(); });
  std::unique_ptr<WeightStream> stream(new WeightStream(std::move(core)));
  stream->experts_ = std::move(experts);
  return stream;
}

WeightStream::~WeightStream() {
  std::thread thread = std::move(core_->thread);
  if (core_->Stop()) {
    thread.join();
  } else {
    thread.detach();
  }
}

bool WeightStream::Needs(int32_t stage, int32_t level) const { return core_->Needs(stage, level); }

void WeightStream::ReadAheadAt(int32_t level) { core_->ReadAheadAt(level); }

bool WeightStream::Ready(int32_t stage, int32_t level) const { return core_->Ready(stage, level); }

const std::atomic<bool>& WeightStream::Demand(int32_t stage, int32_t level) {
  return core_->Demand(stage, level);
}

absl::StatusOr<bool> WeightStream::Await(int32_t stage, int32_t level,
                                         const std::atomic<bool>* stop) {
  return core_->Await(stage, level, stop);
}

void WeightStream::Release(int32_t stage, int32_t level) {
  if (core_->Needs(stage, level)) core_->Release(stage);
}

bool WeightStream::StreamsEmbedding(EmbeddingTable table) const {
  return core_->StreamsEmbedding(static_cast<size_t>(table));
}

absl::StatusOr<bool> WeightStream::FetchRows(std::span<const int32_t> tokens,
                                             const std::atomic<bool>* stop, EmbeddingTable table) {
  return core_->FetchRows(tokens, stop, static_cast<size_t>(table));
}

const float* WeightStream::FetchedRow(int32_t i, EmbeddingTable table) const {
  return core_->FetchedRow(i, static_cast<size_t>(table));
}

WeightStreamStats WeightStream::stats() const {
  WeightStreamStats stats = core_->stats();
  if (experts_ == nullptr) return stats;
  stats.experts = experts_->stats();
  stats.read_bytes += stats.experts.read_bytes;
  stats.waits += stats.experts.waits;
  stats.wait_ns += stats.experts.wait_ns;
  stats.failures += stats.experts.failures;
  stats.bad_reads += stats.experts.bad_reads;
  return stats;
}

}  // namespace withy::engine
