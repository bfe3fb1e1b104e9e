#include "cli/stats.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"
#include "cli/output.h"
#include "cli/terminal_text.h"
#include "wire/answer_defaults.h"

namespace withy::cli {

std::vector<std::string> LatencyRow(const std::string& label, const v1::Latency& latency) {
  return {label, absl::StrFormat("%.1f", latency.ttft_ms()),
          absl::StrFormat("%.2f", latency.tpot_ms()),
          absl::StrFormat("%.1f", latency.end_to_end_ms())};
}

std::string LevelPairsText(const v1::GetStatusResponse& status) {
  if (status.level_pairs().empty()) return "";
  std::vector<std::vector<std::string>> rows = {{"PROMPT", "MODEL", "AGREES", "AUDITS"}};
  for (const v1::LevelPairChance& pair : status.level_pairs()) {
    rows.push_back({absl::StrCat(pair.prompt_level_percent(), " %"),
                    absl::StrCat(pair.model_level_percent(), " %"),
                    absl::StrFormat("%.3f ± %.3f", pair.chance(), pair.spread()),
                    absl::StrFormat("%.0f", pair.audits())});
  }
  return "\n" + Table(rows);
}

std::string ReasonText(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_END_OF_TURN:
      return "end of turn";
    case v1::FINISH_REASON_STOP_STRING:
      return "stop string";
    case v1::FINISH_REASON_MAX_TOKENS:
      return "max tokens";
    case v1::FINISH_REASON_CONTEXT_FULL:
      return "context full";
    case v1::FINISH_REASON_KV_FULL:
      return "KV arena full";
    case v1::FINISH_REASON_CANCELLED:
      return "cancelled";
    case v1::FINISH_REASON_TOOL_CALLS:
      return "tool calls";
    default:
      return "unknown";
  }
}

std::string CallsText(const google::protobuf::RepeatedPtrField<v1::ToolCall>& calls) {
  std::string text;
  for (const v1::ToolCall& call : calls) {
    absl::StrAppend(&text, "(calls ", Printable(call.name()), " ", Printable(call.arguments_json()),
                    ", id ", Printable(call.id()), ")\n");
  }
  return text;
}

std::string CutNote(const v1::GenerateFinished& finished) {
  const uint32_t tokens = finished.usage().completion_tokens();
  switch (finished.reason()) {
    case v1::FINISH_REASON_MAX_TOKENS:
      return absl::StrCat("(cut after ", Counted(tokens, "token"),
                          ", the limit: --max-tokens N sets it)\n");
    case v1::FINISH_REASON_CONTEXT_FULL:
      return absl::StrCat("(cut after ", Counted(tokens, "token"),
                          ": the window is full; use a new context or a higher "
                          "model.context_length)\n");
    case v1::FINISH_REASON_KV_FULL:
      return absl::StrCat("(cut after ", Counted(tokens, "token"),
                          ": the KV arena is full; retry, or raise store.arena_bytes)\n");
    default:
      return "";
  }
}

std::string SamplingText(const v1::Sampling& sampling) {
  const std::string text = engine::Describe(sampling);
  return sampling.temperature() == 0 ? text : absl::StrCat(text, ", seed ", sampling.seed());
}

std::string SpeculationText(const v1::GenerateFinished& finished) {
  const v1::SpeculationReport& report = finished.speculation();
  if (report.sources().empty() || report.target_passes() == 0) return "";
  std::vector<std::string> sources;
  for (const v1::SourceReport& source : report.sources()) {
    const char* name = source.source() == v1::SPECULATION_LOOKUP   ? "lookup"
                       : source.source() == v1::SPECULATION_PREFIX ? "prefix"
                       : source.source() == v1::SPECULATION_HEAD   ? "head"
                                                                   : "draft";
    sources.push_back(
        absl::StrCat(name, " ", source.accepted_tokens(), " of ", source.drafted_tokens()));
  }
  const double tokens = static_cast<double>(finished.usage().completion_tokens());
  return absl::StrFormat(
      "%d of %s accepted (%s); %.2f accepted a pass, %.2f tokens a pass%s",
      finished.usage().accepted_tokens(),
      Counted(finished.usage().drafted_tokens(), "drafted token"), absl::StrJoin(sources, ", "),
      static_cast<double>(finished.usage().accepted_tokens()) / report.target_passes(),
      std::max(0.0, tokens - 1) / report.target_passes(),
      report.speedup() > 0 ? absl::StrFormat(", %.2f times as fast as without", report.speedup())
                           : "");
}

std::string StatsText(const v1::Slo& slo, const v1::GenerateStarted& started,
                      const v1::GenerateFinished& finished) {
  const v1::Decision& decision = started.decision();
  const v1::Usage& usage = finished.usage();
  std::string text = absl::StrCat(started.replayed() ? "Stored answer of this request_id. " : "",
                                  Printable(decision.explanation()), "\n");
  text += Table({{"", "TTFT ms", "TPOT ms", "end to end ms"},
                 LatencyRow("predicted", decision.predicted()),
                 LatencyRow("measured", finished.latency().measured())});
  const bool asked = slo.ttft_ratio() > 0 || slo.tpot_ratio() > 0 || slo.ttft_ms() > 0 ||
                     slo.tpot_ms() > 0 || slo.end_to_end_ms() > 0 || slo.energy_mj() > 0;
  if (asked) absl::StrAppend(&text, "SLO ", finished.latency().slo_met() ? "met; " : "missed; ");
  absl::StrAppend(&text, Counted(usage.prompt_tokens(), "prompt token"), " (",
                  usage.reused_tokens(), " reused, ", usage.prefilled_tokens(), " computed), ",
                  usage.completion_tokens(), " generated; ended by ", ReasonText(finished.reason()),
                  "\n");
  if (const double energy_mj = finished.latency().measured().energy_mj(); energy_mj > 0) {
    absl::StrAppend(&text, absl::StrFormat("%.4g mJ, %.3g a token\n", energy_mj,
                                           energy_mj / std::max(1u, usage.completion_tokens())));
  }
  if (usage.compressed_kv_tokens() > 0) {
    absl::StrAppend(&text, "KV of ", Counted(usage.compressed_kv_tokens(), "reused token"),
                    " had been stored in fewer bits, for want of room\n");
  }
  if (usage.other_level_kv_tokens() > 0) {
    absl::StrAppend(&text, "KV of ", Counted(usage.other_level_kv_tokens(), "reused token"),
                    " had been computed at another level\n");
  }
  const std::string speculation = SpeculationText(finished);
  if (!speculation.empty()) absl::StrAppend(&text, speculation, "\n");
  if (finished.has_sampling()) absl::StrAppend(&text, SamplingText(finished.sampling()), "\n");
  if (usage.pruned_words() > 0)
    absl::StrAppend(&text, Counted(usage.pruned_words(), "word"), " of the prompt left out\n");
  if (finished.model_levels_percent_size() > 1) {
    absl::StrAppend(&text, "made at levels ", absl::StrJoin(finished.model_levels_percent(), ", "),
                    " %\n");
  }
  if (!finished.explanation().empty())
    absl::StrAppend(&text, Printable(finished.explanation()), "\n");
  return text;
}

}  // namespace withy::cli
