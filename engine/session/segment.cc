#include "engine/session/segment.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "engine/chat/message.h"
#include "engine/sampling/stop.h"

namespace withy::engine {
namespace {

absl::Status CheckSpans(const Segment& segment, const std::vector<ByteSpan>& spans,
                        std::string_view field) {
  uint32_t from = 0;
  for (const ByteSpan& span : spans) {
    if (span.begin < from || span.end < span.begin || span.end > segment.text.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          ToAbsl(field), ": span ", span.begin, "..", span.end, " of a text of ",
          segment.text.size(), " bytes; spans must be ascending, apart, and inside the text"));
    }
    from = span.end;
  }
  return absl::OkStatus();
}

absl::Status CheckPrompt(const std::vector<Segment>& prompt) {
  bool any_text = false;
  for (const Segment& segment : prompt) {
    // A message may have nothing to say: the template shows whose turn it was.
    any_text =
        any_text || !segment.VisibleText().empty() || (!segment.role.empty() && !segment.LeftOut());
    WITHY_RETURN_IF_ERROR(CheckSpans(segment, segment.kept, "kept"));
    WITHY_RETURN_IF_ERROR(CheckSpans(segment, segment.fixed, "prompt.fixed"));
  }
  if (!any_text) {
    return absl::InvalidArgumentError("prompt: empty; give it at least one character");
  }
  return absl::OkStatus();
}

}  // namespace

std::string Segment::VisibleText() const {
  if (kept.empty()) return text;
  std::string visible;
  for (const ByteSpan& span : kept) {
    if (span.begin >= text.size() || span.end <= span.begin) continue;
    visible.append(text, span.begin, span.end - span.begin);
  }
  return visible;
}

bool Segment::LeftOut() const {
  return !kept.empty() && std::all_of(kept.begin(), kept.end(),
                                      [](const ByteSpan& span) { return span.begin == span.end; });
}

ConversationSettings SettingsOf(std::span<const Segment> segments) {
  ConversationSettings settings;
  for (const Segment& segment : segments) {
    if (!segment.tools_json.empty()) settings.tools_json = segment.tools_json;
    if (!segment.template_arguments_json.empty()) {
      settings.template_arguments_json = segment.template_arguments_json;
    }
  }
  return settings;
}

void DropUnchangedSettings(std::span<const Segment> record, std::span<Segment> appended) {
  const ConversationSettings held = SettingsOf(record);
  const auto same = [](std::string_view before, std::string_view now) {
    return before == now || (IsEmptyJson(before) && IsEmptyJson(now));
  };
  for (Segment& segment : appended) {
    if (same(held.tools_json, segment.tools_json)) segment.tools_json.clear();
    if (same(held.template_arguments_json, segment.template_arguments_json)) {
      segment.template_arguments_json.clear();
    }
  }
}

absl::Status Validate(const AnswerRequest& request, const RequestLimits& limits) {
  WITHY_RETURN_IF_ERROR(CheckPrompt(request.prompt));
  WITHY_RETURN_IF_ERROR(Validate(request.sampling));
  WITHY_RETURN_IF_ERROR(ValidateStopStrings(request.stop));
  if (request.sampling.top_k > limits.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.top_k: ", request.sampling.top_k,
                                                   "; the vocabulary has ", limits.vocab_size));
  }
  for (const TokenBias& one : request.sampling.logit_bias) {
    if (one.token >= 0 && one.token < limits.vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrCat("sampling.logit_bias: token ", one.token,
                                                   "; the vocabulary has ", limits.vocab_size));
  }
  if (request.max_tokens < 1 || request.max_tokens > limits.context_length) {
    return absl::InvalidArgumentError(absl::StrCat("limits.max_tokens: ", request.max_tokens,
                                                   "; the window is 1 to ", limits.context_length,
                                                   " tokens"));
  }
  if (std::find(limits.levels_percent.begin(), limits.levels_percent.end(),
                request.level_percent) == limits.levels_percent.end()) {
    return absl::InvalidArgumentError(absl::StrCat("model_level_percent: ", request.level_percent,
                                                   "; the model has ",
                                                   absl::StrJoin(limits.levels_percent, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace withy::engine
