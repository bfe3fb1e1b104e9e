// Checks and counts of the runner: told of every access to memory, every barrier and every
// instruction that has a kind. Neighbours: runner.h runs the threads, device-inl.h tells of
// accesses. Costs nothing while checks and counts are off: nobody calls it then.
//
// A warp's request is the accesses of its lanes at the same place of the source, the n-th time that
// each of them is there. So a request is what one instruction of a warp asks for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace withy::engine::on_cpu {

struct Dim {
  int x = 1;
  int y = 1;
  int z = 1;
};

// A place in the source: std::source_location, which Debian's clang lacks.
struct Site {
  const char* file = "";
  int line = 0;
  static constexpr Site Here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

struct Finding {
  enum class Kind : uint8_t { kRace, kDivergentBarrier, kOutOfBounds, kMisaligned };
  Kind kind;
  std::string kernel;
  Dim block;
  int thread = 0;
  std::string what;  // with file and line
};
// "race in kernel norm, block (0,0,0), thread 3: ..."
std::string Describe(const Finding& finding);

enum class Instruction : uint8_t { kDp4a, kMma, kShuffle, kBarrier, kCount };

// Of one kernel, over all its launches.
struct KernelCounts {
  uint64_t launches = 0;
  uint64_t requests = 0;    // of warps to global memory
  uint64_t load_bytes = 0;  // that lanes asked for, each byte of a request once
  uint64_t store_bytes = 0;
  uint64_t sectors = 0;         // of 32 bytes that the requests touch
  uint64_t unique_sectors = 0;  // each counted once in a launch: what memory has to move
  uint64_t wide_requests = 0;   // of 16 bytes a lane
  uint64_t shared_requests = 0;
  uint64_t shared_passes = 0;  // more than one for a request: bank conflicts
  uint64_t instructions[static_cast<int>(Instruction::kCount)] = {};

  void Add(const KernelCounts& other);
};

class Watch {
 public:
  Watch(bool checks, bool counts) : checks_(checks), counts_(counts) {}
  bool on() const { return checks_ || counts_; }

  // Memory that kernels may access.
  void Allow(const void* begin, size_t bytes);
  void Forbid(const void* begin);

  // From the runner.
  void BeginLaunch(const char* kernel);
  void EndLaunch();
  void BeginBlock(Dim block, const std::byte* shared, size_t shared_bytes, int threads);
  void EndBlock();
  void OnBlockBarrier() { ++epoch_; }
  void OnWarpBarrier(int warp) { ++warp_epochs_[static_cast<size_t>(warp)]; }
  void Report(Finding::Kind kind, int thread, std::string what);

  // From kernels. Returns false if the access must not be done.
  bool OnAccess(int thread, const void* p, size_t bytes, size_t alignment, bool write,
                const Site& site);
  void OnInstruction(Instruction kind) { ++now_.instructions[static_cast<int>(kind)]; }

  const std::vector<Finding>& findings() const { return findings_; }
  void ClearFindings() { findings_.clear(); }
  // By kernel.
  const std::map<std::string, KernelCounts>& counts() const { return counts_by_kernel_; }
  void ClearCounts() { counts_by_kernel_.clear(); }

 private:
  static constexpr size_t kMaxFindings = 16;

  struct Access {
    int thread = -1;  // of the launch: block * threads + thread
    uint32_t epoch = 0;
    uint32_t warp_epoch = 0;
  };
  // The last accesses to a byte.
  struct Shadow {
    Access write;
    Access read;        // the last
    Access other_read;  // the last by a thread of another warp than `read`
  };
  struct Request {
    uint64_t site = 0;
    uint32_t number = 0;
    int warp = 0;
    bool write = false;
    bool shared = false;
    uint32_t bytes = 0;
    uint64_t address = 0;
  };

  void CheckRace(int thread, uint64_t address, size_t bytes, bool write, bool shared,
                 const Site& site);
  bool Conflicts(const Access& before, const Access& now) const;
  bool Allowed(uint64_t address, size_t bytes) const;
  void CountRequests();

  const bool checks_;
  const bool counts_;
  std::map<uint64_t, size_t> allowed_;  // by begin
  std::vector<Finding> findings_;
  std::map<std::string, KernelCounts> counts_by_kernel_;
  // Of the launch.
  std::string kernel_;
  KernelCounts now_;
  std::unordered_map<uint64_t, Shadow> global_;
  std::unordered_set<uint64_t> sectors_;
  int blocks_begun_ = 0;
  // Of the block.
  Dim block_;
  uint64_t shared_begin_ = 0;
  size_t shared_bytes_ = 0;
  int threads_ = 0;
  uint32_t epoch_ = 0;
  std::vector<uint32_t> warp_epochs_;
  std::vector<Shadow> shared_;
  std::vector<Request> requests_;
  std::vector<std::unordered_map<uint64_t, uint32_t>> visits_;  // [thread]: by site
};

}  // namespace withy::engine::on_cpu
