// A load of missing KV while it runs: the disk reads groups of chunks from the back, the worker
// recomputes chunks from the front, until they meet. Where that is depends on the speeds that both
// show, so costs that are wrong by ten cost little. Pure. Neighbours: kv_load_plan.h has the costs
// and the plan that a load begins with, kv_load_source.h drives this beside the load's state.
//
//   while (!progress.done()) {
//     // whenever fewer than kGroups are being read:  progress.NextGroup(now), to be begun
//     // when a group is there, or has failed:        progress.OnGroupEnded(number, now)
//     // when the worker asks for more to compute:
//     progress.OnRecomputed(...), progress.NextYield(...)
//   }
//
// A group is held back only if the worker, already computing, would finish everything before the
// disk could read that group. When nothing is left for the worker, the group begun last is taken
// back and yielded, if the worker is expected to be done with it before the disk is: so a disk that
// hangs holds nothing up.
//
// Source: LLMS section 3.3 splits once, by eq. 4. Reading from the back while the front is
// recomputed is Cake's (arXiv 2410.03065); ours adds speeds, taking back, and the tail.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "policy/kv/kv_load_plan.h"

namespace withy::policy {

struct LoadProgressOptions {
  // How many of the chunks, from the first on, the worker recomputes from the start on.
  size_t dealt = 0;
  // How many, from the first on, may be recomputed; at least `dealt`. The others are read.
  size_t recomputable = 0;
  // Calibrated time of what the worker computes behind the context. That goes layer by layer while
  // the last group is read.
  double tail_ms = 0;
  // A smaller group costs the disk more than its bytes.
  uint64_t least_group_bytes = 0;
  // Before which chunks a group can begin without bytes of both sides being read twice; empty:
  // before any.
  std::vector<bool> cuts = {};
};

// Of one load; not thread-safe. `now_ms`: any steady clock.
class KvLoadProgress {
 public:
  static constexpr size_t kGroups = 2;  // being read at a time: the next one waits for the disk
  // Share of the time that the load is expected to go on that the worker may have work for, before
  // and after both sides have reported first. Choice: a disk ten times as fast as calibrated has
  // read all the rest when the worker has done the first share. Test:
  // KvLoadProgressTest.AWrongCalibrationCostsLittle.
  static constexpr double kFirstYieldShare = 0.1;
  static constexpr double kYieldShare = 0.2;

  // `chunks`: by position; all but those dealt have a copy.
  KvLoadProgress(std::span<const MissingChunk> chunks, const LoadCosts& costs,
                 const LoadProgressOptions& options, double now_ms);

  // Chunks [begin, end), by index.
  struct Group {
    uint32_t number = 0;
    size_t begin = 0;
    size_t end = 0;
  };
  // The group to begin to read now. None: kGroups are being read, or nothing is left.
  std::optional<Group> NextGroup(double now_ms);
  void OnGroupEnded(uint32_t number, double now_ms);

  // Chunks [begin, end) that the store yields to the worker. `cancelled`: the group whose reading
  // ends for that; its other chunks belong to nobody again.
  struct Yield {
    size_t begin = 0;
    size_t end = 0;
    std::optional<uint32_t> cancelled = std::nullopt;
    size_t count() const { return end - begin; }
  };
  // At most `most` chunks. Empty: reading is faster than recomputing; the worker asks again after
  // the next group, or a little later.
  Yield NextYield(size_t most, double now_ms);
  // The worker has computed all of its chunks below this one.
  void OnRecomputed(size_t end, double now_ms);
  // The last `count` chunks of the latest yield find no room: they are read, as all behind them.
  void Return(size_t count);
  // The chunks from this one on that are not the worker's yet will not be.
  void ReadFrom(size_t chunk) {
    options_.recomputable = std::min(options_.recomputable, std::max(chunk, front_));
  }

  // Whether every chunk is dealt out.
  bool all_dealt() const { return front_ == back_; }
  bool done() const { return all_dealt() && groups_.empty(); }
  // Chunks that the worker has reported as computed.
  size_t recomputed() const { return computed_; }
  // Measured over calibrated time of each side, lately.
  double read_slowdown(double now_ms) const { return read_.Slowdown(now_ms, OldestMs()); }
  double recompute_slowdown(double now_ms) const {
    return recompute_.Slowdown(now_ms, recompute_.dealt_ms);
  }

 private:
  // The disk or the worker. Times are calibrated unless they say otherwise.
  struct Side {
    double fixed_ms = 0;   // still to come before its first chunk
    double memory_ms = 0;  // how much work it is judged by
    double worked_ms = 0;  // that it did lately
    double took_ms = 0;    // measured time of that
    double since_ms = 0;   // clock when it last reported, or began after a pause
    double dealt_ms = 0;   // to it and not reported

    void Begin(double ms, double now_ms);
    void End(double ms, double now_ms);
    // `ms`: of the work that it reports next.
    double Slowdown(double now_ms, double ms) const;
    // Measured time until it has done what it was dealt.
    double LeftMs(double now_ms, double slowdown) const;
  };

  // The first chunk that is better read than recomputed.
  size_t Split(double now_ms) const;
  size_t Affordable(size_t split, double now_ms) const;
  // The best place near `begin` for a group that ends at `back_` to begin at.
  size_t CutNear(size_t begin) const;
  // Whether the worker, which has work, is done with all chunks before the disk has read those from
  // `begin` on.
  bool WorkerIsSooner(size_t begin, double now_ms) const;
  double OldestMs() const;  // of the group that is read first
  double ReadMs(size_t begin, size_t end) const { return read_ms_[end] - read_ms_[begin]; }
  double RecomputeMs(size_t begin, size_t end) const {
    return recompute_ms_[end] - recompute_ms_[begin];
  }
  // Ends the reading of the group begun last, if the worker is faster with it.
  std::optional<uint32_t> TakeBack(double now_ms);

  LoadProgressOptions options_;
  // Sums over the chunks before each index.
  std::vector<double> read_ms_, recompute_ms_;
  std::vector<uint64_t> bytes_;
  bool in_one_group_ = false;
  size_t computed_ = 0;       // chunks before it are recomputed
  size_t front_ = 0;          // chunks before it are the worker's
  size_t back_ = 0;           // chunks from here on are there or are being read
  std::deque<Group> groups_;  // being read, in their order
  uint32_t last_group_ = 0;
  bool read_reported_ = false;
  Side read_;
  Side recompute_;
};

}  // namespace withy::policy
