// Turns spans into a timeline in Perfetto's trace format (proto/withy/v1/timeline.proto). Pure.
//
//   process model_worker 412
//     call 7                    its phases; arrows lead to the other processes
//     compute thread 415        kernels, under the pass (prefill, decode, …) that they belong to
//     thread 413                spans of no call
//
// Slices of a Perfetto track must lie one after the other or within each other. Spans that overlap
// otherwise, such as the draft of one call beside its load, get a further track of the same name.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "profiler_agent/profile.h"

namespace withy::profiler_agent {

// The clocks at one moment, in nanoseconds.
struct TimelineClocks {
  int64_t monotonic_ns = 0;
  int64_t boot_ns = 0;
  int64_t unix_ns = 0;
};

// Of this machine, now.
TimelineClocks ReadTimelineClocks();

// Gives the trace to `write` in pieces of about kTimelinePieceBytes, whose concatenation is the
// file. Ends when `write` returns false. Spans may come in any order.
inline constexpr size_t kTimelinePieceBytes = 256 << 10;
void WriteTimeline(const SpanSet& set, const TimelineClocks& clocks,
                   const std::function<bool(std::string piece)>& write);

// The track of each of `spans`, which are sorted by start, longer ones first: the lowest one on
// which it lies after or within what is there.
struct Interval {
  int64_t started_ns = 0;
  int64_t ended_ns = 0;
};
std::vector<size_t> AssignTracks(const std::vector<Interval>& spans);

}  // namespace withy::profiler_agent
