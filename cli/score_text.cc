#include "cli/score_text.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/output.h"
#include "cli/terminal_text.h"
#include "engine/kv/format.h"

namespace withy::cli {
namespace {

std::vector<std::string> SettingCells(const std::string& what, const std::string& model,
                                      const v1::ScoreSetting& setting) {
  const uint32_t level = setting.model_level_percent() == 0 ? 100 : setting.model_level_percent();
  const auto format = setting.kv_format() == v1::KV_FORMAT_UNSPECIFIED
                          ? engine::KvFormat::kQ8
                          : static_cast<engine::KvFormat>(setting.kv_format());
  return {what, Printable(model), absl::StrCat(level), engine::KvFormatName(format)};
}

}  // namespace

std::string ScoreSummaryText(const ScoreSummary& summary) {
  const v1::ScoreResult& result = summary.result;
  std::vector<std::vector<std::string>> rows = {
      {"", "MODEL", "LEVEL %", "KV", "PERPLEXITY", "NEXT TOKEN LIKELIEST %"}};
  rows.push_back(SettingCells("scored", summary.model, summary.request.setting()));
  rows.back().push_back(absl::StrFormat("%.4f", result.perplexity()));
  rows.back().push_back(absl::StrFormat("%.2f", 100 * result.top1_share()));
  if (summary.request.has_reference()) {
    rows.push_back(SettingCells("reference", summary.reference_model, summary.request.reference()));
    rows.back().push_back(absl::StrFormat("%.4f", result.reference_perplexity()));
    rows.back().push_back("");
  }
  std::string text = Table(rows);
  absl::StrAppendFormat(&text, "%d tokens were scored; their log-probabilities add up to %.1f\n",
                        result.tokens(), result.logprob_sum());
  if (!summary.request.has_reference()) return text;
  absl::StrAppendFormat(&text,
                        "against the reference: perplexity x %.4f; divergence (KLD) mean %.5f, "
                        "median %.5f nats; the likeliest tokens agree at %.2f %%\n",
                        result.perplexity() / result.reference_perplexity(),
                        result.divergence_mean(), result.divergence_median(),
                        100 * result.top1_agreement());
  return text;
}

}  // namespace withy::cli
