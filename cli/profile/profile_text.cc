#include "cli/profile/profile_text.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/call_name.h"
#include "base/strings.h"
#include "cli/output.h"
#include "cli/terminal_text.h"

namespace withy::cli {
namespace {

constexpr int kRecordedColumn = 4;

std::string Share(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

}  // namespace

std::string Duration(double ms) {
  if (std::abs(ms) >= 1000) return absl::StrFormat("%.3g s", ms / 1000);
  if (std::abs(ms) >= 1) return absl::StrFormat("%.3g ms", ms);
  return absl::StrFormat("%.3g µs", ms * 1000);
}

std::string SummariesText(const v1::GetPhasesResponse& phases, std::string_view kind,
                          std::string_view process) {
  std::vector<const v1::PhaseSummary*> chosen;
  for (const v1::PhaseSummary& phase : phases.phases()) {
    if (process.empty() || phase.process() == process) chosen.push_back(&phase);
  }
  const std::string covered = Seconds(phases.covered_s());
  if (chosen.empty()) {
    return absl::StrCat("no ", ToAbsl(kind), " was recorded within ", covered,
                        process.empty() ? "" : " by this process", "\n");
  }
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const auto* a, const auto* b) { return a->total_ms() > b->total_ms(); });
  const bool kernels = kind == "kernel";
  const bool estimated = std::any_of(chosen.begin(), chosen.end(), [](const auto* phase) {
    return phase->recorded() < phase->count();
  });
  std::vector<std::vector<std::string>> rows = {{kernels ? "KERNEL" : "PHASE", "PROCESS", "SHARE",
                                                 "COUNT", "RECORDED", "TOTAL", "MEAN", "P50", "P95",
                                                 "P99"}};
  for (const v1::PhaseSummary* phase : chosen) {
    rows.push_back({Printable(phase->name()), Printable(phase->process()), Share(phase->share()),
                    absl::StrCat(phase->count()), absl::StrCat(phase->recorded()),
                    Duration(phase->total_ms()), Duration(phase->mean_ms()),
                    Duration(phase->p50_ms()), Duration(phase->p95_ms()),
                    Duration(phase->p99_ms())});
  }
  if (!estimated) {
    for (std::vector<std::string>& row : rows) row.erase(row.begin() + kRecordedColumn);
  }
  return absl::StrCat(
      Table(rows), "within ", covered, "; SHARE is of the time of ",
      kernels ? "all kernels of the process\n"
              : "all calls, from arrival to last token: phases within others count again\n",
      estimated ? "COUNT, TOTAL and SHARE are estimates from RECORDED spans: to record every one, "
                  "set profiler.kernel_spans_per_mille to 1000\n"
                : "");
}

std::string TimelineText(const v1::TimelineSummary& summary, std::string_view path,
                         uint64_t bytes) {
  std::string text = absl::StrFormat(
      "%s: %s of %.1f s, %s; open it at https://ui.perfetto.dev or with trace_processor\n",
      std::string(path), Counted(summary.spans(), "span"), summary.seconds(), Bytes(bytes));
  if (summary.dropped() > 0) {
    absl::StrAppend(&text, Counted(summary.dropped(), "span"),
                    " more had no room in the capture: take a shorter one\n");
  }
  if (summary.lost() > 0) {
    absl::StrAppend(&text, Counted(summary.lost(), "span"),
                    " more were lost, because rings were full: lower profiler.poll_ms\n");
  }
  return text;
}

std::string SpanText(const v1::Span& span) {
  return absl::StrFormat(
      "%14.6f  %-14s %-6s %-18s %10s%s%s\n", span.started_ns() * 1e-9, span.process(), span.kind(),
      span.name(), Duration((span.ended_ns() - span.started_ns()) * 1e-6),
      span.call_id() == 0 ? "" : absl::StrCat("  call ", CallName(span.call_id())),
      span.value() == 0 ? "" : absl::StrCat("  value ", span.value()));
}

}  // namespace withy::cli
