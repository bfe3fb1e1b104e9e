// Reports of calls that were refused (profiler.proto): equal ones of an app in a row are one, which
// counts them. So a client that is refused without end costs one report. Neighbours: the
// orchestrator's report_sender.h counts what comes while a report is under way, profiler_agent's
// call_log.h what it has listed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "withy/v1/profiler.pb.h"

namespace withy::rpc {

inline bool IsRefusal(const v1::CallReport& report) { return report.refusals() > 0; }

// Whether two refusals differ in nothing but their calls.
inline bool EqualRefusals(const v1::CallReport& a, const v1::CallReport& b) {
  return IsRefusal(a) && IsRefusal(b) && a.status_code() == b.status_code() && a.app() == b.app() &&
         a.method() == b.method() && a.reason() == b.reason();
}

// `later` comes to stand for the calls of `earlier`, too.
inline void CountRefusals(const v1::CallReport& earlier, v1::CallReport* later) {
  const auto since = [](const v1::CallReport& report) {
    return report.refused_since_ns() == 0 ? report.arrived_ns() : report.refused_since_ns();
  };
  later->set_refused_since_ns(std::min(since(earlier), since(*later)));
  later->set_refusals(earlier.refusals() + later->refusals());
}

}  // namespace withy::rpc
