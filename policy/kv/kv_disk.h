// What KV is worth its place on disk and its wear of the flash. Pure. KV is a cache of text: text
// is never given up here, and KV that is given up is recomputed. Neighbours: context_store writes
// the segments and deletes those named here; kv_eviction.h asks how many bytes may still be
// written.
//
// KV lies in large segments that are written once, from start to end, and deleted whole. So no
// chunk is copied to make room, and the disk writes hardly more than it was given. Source: ours.
// LLMS bounds neither the disk nor what is written to it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace withy::policy {

// Chunks of a segment that their contexts still have, with the same last use.
struct LiveKv {
  uint64_t bytes = 0;
  int64_t last_used_ns = 0;  // same clock as now_ns
};

struct KvSegment {
  uint64_t bytes = 0;                 // on disk, dead chunks included
  std::span<const LiveKv> live = {};  // borrowed for the call
  bool open = false;                  // being written: cannot be given up
};

struct DiskUse {
  uint64_t limit_bytes = 0;   // for text and KV together
  uint64_t text_bytes = 0;    // records, index and log
  uint64_t wanted_bytes = 0;  // that are to be written now
};

struct DiskPlan {
  std::vector<size_t> give_up;  // indices into the segments, least useful first
  uint64_t freed_bytes = 0;
  // Bytes by which text, open segments and wanted bytes together are above the limit. Not 0: the
  // wanted bytes cannot be written, and `give_up` makes room without them.
  uint64_t excess_bytes = 0;
};

// The segments to delete so that everything fits the limit. Useful bytes of a live chunk: its
// bytes, divided by 2 if its last use was an hour ago, by 3 after two hours, and so on, as the
// chance of a next use falls. The segment with the fewest useful bytes for its size goes first; no
// segment goes that need not.
DiskPlan PlanDisk(std::span<const KvSegment> segments, const DiskUse& use, int64_t now_ns);

// Useful bytes of a segment, as PlanDisk counts them.
double UsefulBytes(const KvSegment& segment, int64_t now_ns);

// Bytes written within the last day, by hour. What it takes to go on after a restart.
struct WriteHistory {
  int64_t hour = 0;                     // of bytes[0], since the clock's epoch
  std::array<uint64_t, 25> bytes = {};  // by hours before `hour`
};

// Bounds the bytes that are written within any 24 hours. Not thread-safe. `now_ns`: Unix time.
// After a jump back by at most a day all writes count for the latest hour seen until the clock is
// there again; after a longer one, what was written keeps its age.
class DailyWrites {
 public:
  explicit DailyWrites(uint64_t limit_bytes, const WriteHistory& history = {})
      : limit_bytes_(limit_bytes), history_(history) {}

  void Wrote(uint64_t bytes, int64_t now_ns);
  // That may still be written now.
  uint64_t LeftBytes(int64_t now_ns);
  uint64_t limit_bytes() const { return limit_bytes_; }
  const WriteHistory& history() const { return history_; }

 private:
  void Advance(int64_t now_ns);

  const uint64_t limit_bytes_;
  WriteHistory history_;
};

// KV of a context that a call has returned.
struct WriteCandidate {
  // The arena needs its room now: it leaves, and what is not written loses bits or is computed
  // again.
  bool for_room = false;
  uint64_t bytes = 0;
  // An older copy of the chunks is on disk: in another format, or with fewer tokens.
  bool has_copy = false;
  bool used_again = false;  // some call has gone on with the context
};

enum class WriteVerdict {
  kWrite,
  kNotUsedAgain,  // so not written a second time, or not from the reserve of the day
  kDailyLimit,    // of bytes written
};

// Whether to write `candidate` ahead of its eviction (LLMS section 3.4 i: AoT swapping). The first
// copy of any context is written while more than a quarter of the day's bytes is left; that
// reserve, and second copies, are for contexts that are used again, and for what makes room in the
// arena.
WriteVerdict JudgeWrite(const WriteCandidate& candidate, uint64_t left_bytes, uint64_t limit_bytes);

}  // namespace withy::policy
