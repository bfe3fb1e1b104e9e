#include "cli/profile/explain_text.h"

#include <algorithm>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/call_name.h"
#include "base/clock.h"
#include "base/strings.h"
#include "cli/profile/profile_text.h"
#include "cli/terminal_text.h"

namespace withy::cli {
namespace {

constexpr int kMostBeside = 5;
// Below this a board is as fast as calibrated, within what measurements tell.
constexpr double kSlowBoard = 1.15;

// "waited     ..." with a line's end.
std::string Fact(std::string_view name, std::string_view text) {
  std::string line = absl::StrFormat("  %-12s", std::string(name));
  return absl::StrCat(line, ToAbsl(text), "\n");
}

double TotalMs(const v1::ExplainCallResponse& told, std::string_view phase) {
  double total = 0;
  for (const v1::PhaseTotal& one : told.phases()) {
    if (one.name() == phase) total += one.total_ms();
  }
  return total;
}

std::string CodeOf(const v1::CallReport& report) {
  return absl::StatusCodeToString(static_cast<absl::StatusCode>(report.status_code()));
}

// "Score: RESOURCE_EXHAUSTED (QUEUE_FULL)": what ended a call without an answer.
std::string ErrorOf(const v1::CallReport& report) {
  const std::string code = CodeOf(report);
  const std::string reason = Printable(report.reason());
  return absl::StrCat(Printable(report.method()), report.method().empty() ? "" : ": ", code,
                      reason.empty() || reason == code ? "" : absl::StrCat(" (", reason, ")"));
}

std::string AppOf(const v1::CallReport& report) {
  return report.app().empty() ? "?" : Printable(report.app());
}

std::string HeadOf(const v1::CallReport& report) {
  std::string text =
      absl::StrCat("call ", CallName(report.call_id()), " of app ", AppOf(report), ": ");
  const double took_ms = Millis(report.ended_ns() - report.arrived_ns());
  if (report.status_code() != 0) {
    absl::StrAppend(&text, ErrorOf(report), " after ", Duration(took_ms), "\n");
    if (report.refusals() > 1) {
      text += Fact("refused",
                   absl::StrCat("the last of ", report.refusals(), " calls in a row within ",
                                Duration(Millis(report.ended_ns() - report.refused_since_ns()))));
    }
    if (!report.error().empty()) text += Fact("error", Printable(report.error()));
    return text;
  }
  absl::StrAppend(&text, "answered in ", Duration(took_ms),
                  report.replayed() ? " with the stored result of its request_id\n" : "\n");
  return text;
}

std::string WhoOf(const v1::CallBeside& one) {
  return absl::StrCat(CallName(one.call_id()), " (",
                      one.app().empty() ? "not ended yet" : Printable(one.app()), ")");
}

// The calls that had the board, at most kMostBeside, while this one waited or was answered.
std::string Others(const v1::ExplainCallResponse& told,
                   double (v1::CallBeside::*meanwhile)() const) {
  std::string text;
  int count = 0;
  for (const v1::CallBeside& one : told.beside()) {
    const double ms = (one.*meanwhile)();
    if (ms <= 0) continue;
    if (++count > kMostBeside) continue;
    absl::StrAppend(&text, count == 1 ? "" : ", ", WhoOf(one), " ", Duration(ms));
  }
  if (count > kMostBeside) absl::StrAppend(&text, ", and ", count - kMostBeside, " more");
  return text;
}

std::string WaitOf(const v1::ExplainCallResponse& told) {
  const v1::CallReport& report = told.report();
  const int64_t until_ns = report.granted_ns() == 0 ? report.ended_ns() : report.granted_ns();
  const double queue_ms =
      report.has_latency() ? report.latency().queue_ms() : Millis(until_ns - report.arrived_ns());
  std::string text = Duration(queue_ms);
  if (report.queue_position() > 0) {
    absl::StrAppend(&text, ", ", report.queue_position(), " ahead of it when it arrived");
  }
  const std::string others = Others(told, &v1::CallBeside::while_queued_ms);
  if (!others.empty()) absl::StrAppend(&text, "; meanwhile passes of ", others);
  return text;
}

std::string DecisionOf(const v1::CallReport& report) {
  const v1::Decision& decision = report.decision();
  std::string text = absl::StrCat("level ", decision.model_level_percent(), " %, prompt ",
                                  decision.prompt_level_percent(), " %");
  if (report.model_levels_percent_size() > 1) {
    text += ", fell to";
    for (int i = 1; i < report.model_levels_percent_size(); ++i) {
      absl::StrAppend(&text, " ", report.model_levels_percent(i), " %");
    }
  }
  if (!decision.explanation().empty())
    absl::StrAppend(&text, ": ", Printable(decision.explanation()));
  return text;
}

std::string ContextOf(const v1::ExplainCallResponse& told) {
  const v1::Usage& usage = told.report().usage();
  const v1::LatencyReport& latency = told.report().latency();
  std::string text =
      absl::StrCat(usage.reused_tokens(), " tokens read (", Duration(latency.load_ms()), "), ",
                   usage.prefilled_tokens(), " computed (", Duration(latency.prefill_ms()), ")");
  if (const double again_ms = TotalMs(told, "recompute"); again_ms > 0) {
    absl::StrAppend(&text, ", of which ", Duration(again_ms), " for KV that was lost");
  }
  if (usage.compressed_kv_tokens() > 0) {
    absl::StrAppend(&text, ", ", usage.compressed_kv_tokens(), " of fewer bits");
  }
  return text;
}

std::string AnswerOf(const v1::CallReport& report) {
  const v1::Latency& measured = report.latency().measured();
  std::string text = absl::StrCat("first token after ", Duration(measured.ttft_ms()), ", then ",
                                  report.usage().completion_tokens(), " tokens, ",
                                  Duration(measured.tpot_ms()), " each");
  const v1::Decision& decision = report.decision();
  if (decision.predicted().ttft_ms() > 0) {
    absl::StrAppend(&text, " (predicted: ", Duration(decision.predicted().ttft_ms()), ", ",
                    Duration(decision.predicted().tpot_ms()), ")");
  }
  return text;
}

std::string SpeculationOf(const v1::CallReport& report) {
  const v1::Usage& usage = report.usage();
  std::string text = absl::StrCat(usage.accepted_tokens(), " of ", usage.drafted_tokens(),
                                  " drafted tokens accepted");
  if (report.speculation().speedup() > 0) {
    absl::StrAppend(&text, absl::StrFormat(", %.2f times as fast", report.speculation().speedup()));
  }
  return text;
}

std::string OutcomeOf(const v1::CallReport& report) {
  if (report.replayed()) return "stored result";
  if (report.status_code() == 0) return CodeOf(report);
  return absl::StrCat(ErrorOf(report),
                      report.refusals() > 1 ? absl::StrCat(", ", report.refusals(), " calls") : "");
}

}  // namespace

std::string ExplainText(const v1::ExplainCallResponse& told) {
  const v1::CallReport& report = told.report();
  std::string text = HeadOf(report);
  if (report.replayed()) return text;
  text += Fact("waited", WaitOf(told));
  if (!report.has_decision()) return text;
  text += Fact("decided", DecisionOf(report));
  if (report.board_slowdown() > kSlowBoard) {
    text += Fact("board", absl::StrFormat("%.2f times as slow as calibrated: heat, or a neighbour",
                                          report.board_slowdown()));
  }
  if (report.has_usage()) {
    text += Fact("context", ContextOf(told));
    text += Fact("answer", AnswerOf(report));
    if (report.usage().drafted_tokens() > 0) text += Fact("speculation", SpeculationOf(report));
  }
  const std::string others = Others(told, &v1::CallBeside::while_answered_ms);
  if (!others.empty()) text += Fact("stood still", "for passes of " + others);
  if (report.latency().measured().energy_mj() > 0) {
    text +=
        Fact("energy", absl::StrFormat("%.2f J", report.latency().measured().energy_mj() / 1000));
  }
  if (report.slo_given() && report.has_latency()) {
    text += Fact("SLO", report.latency().slo_met() ? "met" : "missed");
  }
  if (!report.explanation().empty()) text += Fact("note", Printable(report.explanation()));
  return text;
}

std::string CallsText(const v1::ListCallsResponse& calls, int64_t now_ns) {
  if (calls.calls().empty()) return "no call has ended since profiler_agent started\n";
  std::string text = absl::StrFormat("%-16s  %6s  %-20s  %5s  %10s  %10s  %s\n", "CALL", "AGO",
                                     "APP", "LEVEL", "WAITED", "TOOK", "OUTCOME");
  for (const v1::CallReport& report : calls.calls()) {
    const auto& levels = report.model_levels_percent();
    const uint32_t level =
        levels.empty() ? report.decision().model_level_percent() : levels.Get(levels.size() - 1);
    const char* slo = !report.slo_given() || !report.has_latency() ? ""
                      : report.latency().slo_met()                 ? ", SLO met"
                                                                   : ", SLO missed";
    const int64_t until_ns = report.granted_ns() == 0 ? report.ended_ns() : report.granted_ns();
    text += absl::StrFormat(
        "%-16s  %4.0f s  %-20s  %5s  %10s  %10s  %s%s\n", CallName(report.call_id()),
        Millis(std::max<int64_t>(0, now_ns - report.ended_ns())) / 1000, AppOf(report),
        level == 0 ? "-" : absl::StrCat(level, " %"),
        Duration(Millis(until_ns - report.arrived_ns())),
        Duration(Millis(report.ended_ns() - report.arrived_ns())), OutcomeOf(report), slo);
  }
  return text;
}

}  // namespace withy::cli
