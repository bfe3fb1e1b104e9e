// Texts of withyctl profile. Neighbour: profile.cc runs the commands.
#pragma once

#include <string>
#include <string_view>

#include "withy/v1/profiler.pb.h"

namespace withy::cli {

// A table, longest total first; `kind` is "phase" or "kernel", `process` "" for all. A sentence if
// there is nothing to show.
std::string SummariesText(const v1::GetPhasesResponse& phases, std::string_view kind,
                          std::string_view process);

// What a capture of `bytes` bytes has, and what to do with it.
std::string TimelineText(const v1::TimelineSummary& summary, std::string_view path, uint64_t bytes);

// One line.
std::string SpanText(const v1::Span& span);

// "1.23 ms", "45.6 µs"
std::string Duration(double ms);

}  // namespace withy::cli
