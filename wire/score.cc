#include "wire/score.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"

namespace withy::engine {
namespace {

constexpr v1::KvFormat kScoreFormats[] = {v1::KV_FORMAT_Q8, v1::KV_FORMAT_Q4, v1::KV_FORMAT_Q4_Q2,
                                          v1::KV_FORMAT_Q2};

}  // namespace

v1::ScoreResult ScoreResultToWire(std::span<const TextScore> scores) {
  const TextScore& score = scores.back();
  v1::ScoreResult result;
  result.set_tokens(static_cast<uint32_t>(score.losses.size()));
  result.set_logprob_sum(-std::accumulate(score.losses.begin(), score.losses.end(), 0.0));
  result.set_perplexity(score.perplexity);
  result.set_top1_share(score.right_share);
  if (scores.size() < 2) return result;
  result.set_reference_perplexity(scores.front().perplexity);
  result.set_divergence_mean(score.divergence);
  result.set_divergence_median(score.divergence_median);
  result.set_top1_agreement(score.agreed_share);
  return result;
}

absl::StatusOr<KvFormat> ScoreFormatFromWire(std::string_view field, v1::KvFormat format) {
  if (format == v1::KV_FORMAT_UNSPECIFIED) return KvFormat::kQ8;
  if (std::find(std::begin(kScoreFormats), std::end(kScoreFormats), format) ==
      std::end(kScoreFormats)) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(field), " is ", static_cast<int>(format), ": give ",
                     absl::StrJoin(kScoreFormats, ", ", [](std::string* out, v1::KvFormat known) {
                       absl::StrAppend(out, v1::KvFormat_Name(known));
                     })));
  }
  return static_cast<KvFormat>(format);
}

absl::StatusOr<v1::KvFormat> KvFormatFromName(std::string_view field, std::string_view name) {
  for (const v1::KvFormat format : kScoreFormats) {
    if (name == KvFormatName(static_cast<KvFormat>(format))) return format;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(field), " is \"", ToAbsl(name), "\": give ",
                   absl::StrJoin(kScoreFormats, ", ", [](std::string* out, v1::KvFormat known) {
                     absl::StrAppend(out, KvFormatName(static_cast<KvFormat>(known)));
                   })));
}

absl::StatusOr<int32_t> FindLevel(std::string_view field, uint32_t percent, const ModelInfo& info) {
  const uint32_t wanted = percent == 0 ? 100 : percent;
  for (size_t i = 0; i < info.levels.size(); ++i) {
    if (static_cast<uint32_t>(info.levels[i].percent) == wanted) return static_cast<int32_t>(i);
  }
  const auto add_percent = [](std::string* out, const LevelInfo& level) {
    absl::StrAppend(out, level.percent);
  };
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(field), " is ", wanted, ": ", info.name,
                   info.levels.size() > 1 ? " has the levels " : " has no levels but ",
                   absl::StrJoin(info.levels, ", ", add_percent)));
}

}  // namespace withy::engine
