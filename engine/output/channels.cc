#include "engine/output/channels.h"

#include <algorithm>
#include <utility>

#include "engine/chat/thoughts.h"

namespace withy::engine {
namespace {

constexpr std::string_view kThoughts = "analysis";
constexpr std::string_view kToFunction = "to=functions.";
constexpr std::string_view kCallEnd = "}\n</tool_call>";
// Bytes; a longer text is no header. Not tuned: names of tools have at most 64.
constexpr size_t kMaxHeader = 256;

bool EndsName(char c) { return c == ' ' || c == '\n' || c == '<'; }

// The function that a header names as its receiver; "" for none.
std::string FunctionOf(std::string_view header) {
  const size_t at = header.find(kToFunction);
  if (at == std::string_view::npos) return "";
  const std::string_view name = header.substr(at + kToFunction.size());
  const auto end = std::find_if(name.begin(), name.end(), EndsName);
  std::string function(name.begin(), end);
  const bool plain = std::all_of(function.begin(), function.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
  return plain ? function : "";
}

}  // namespace

std::optional<Channels> Channels::Of(const Tokenizer& tokenizer) {
  Channels channels;
  for (const auto& [text, id] :
       {std::pair{"<|start|>", &channels.start_}, std::pair{"<|channel|>", &channels.channel_},
        std::pair{"<|message|>", &channels.message_}, std::pair{"<|end|>", &channels.end_}}) {
    const std::optional<int32_t> found = tokenizer.FindToken(text);
    if (!found || !tokenizer.IsControl(*found) || tokenizer.IsEndOfGeneration(*found)) {
      return std::nullopt;
    }
    *id = *found;
  }
  return channels;
}

void Channels::BeginBehind(std::span<const int32_t> prompt) {
  for (auto id = prompt.rbegin(); id != prompt.rend(); ++id) {
    if (*id == message_) return;
    if (*id != start_ && *id != channel_) continue;
    place_ = Place::kHeader;
    return;
  }
}

std::string Channels::Push(int32_t id, std::string text) {
  if (id == start_ || id == channel_) {
    std::string shown = place_ == Place::kCall ? std::string(kCallEnd) : "";
    if (id == start_ || place_ != Place::kHeader) header_.clear();
    if (id == channel_) header_ += '\n';
    place_ = Place::kHeader;
    return shown;
  }
  if (id == message_) return Begin();
  if (id == end_) {
    std::string shown = place_ == Place::kCall ? std::string(kCallEnd) : "";
    header_.clear();
    place_ = Place::kHeader;
    return shown;
  }
  if (place_ == Place::kHidden) return "";
  if (place_ != Place::kHeader) return text;
  header_ += text;
  if (header_.size() <= kMaxHeader) return "";
  return NoHeader();
}

std::string Channels::NoHeader() {
  place_ = Place::kAnswer;
  return header_.find('\n') == std::string::npos ? std::exchange(header_, "") : "";
}

std::string Channels::Begin() {
  const size_t mark = header_.rfind('\n');
  const std::string_view channel =
      mark == std::string::npos ? std::string_view() : std::string_view(header_).substr(mark + 1);
  if (channel.starts_with(kThoughts)) {
    // A thought behind the answer has no place where others have theirs.
    place_ = answered_ ? Place::kHidden : Place::kThought;
    if (answered_) return "";
    return std::exchange(thinks_, true) ? "\n\n" : std::string(kThoughtBegin);
  }
  std::string shown = CloseThought();
  const std::string function = FunctionOf(header_);
  place_ = function.empty() ? Place::kAnswer : Place::kCall;
  if (std::exchange(answered_, true)) shown += '\n';
  if (!function.empty()) {
    shown += "<tool_call>\n{\"name\": \"" + function + "\", \"arguments\": ";
  }
  return shown;
}

std::string Channels::CloseThought() {
  return std::exchange(thinks_, false) ? std::string(kThoughtEnd) : "";
}

std::string Channels::Finish() {
  if (place_ == Place::kHeader && !thinks_ && !answered_) return NoHeader();
  return std::exchange(place_, Place::kHeader) == Place::kCall ? std::string(kCallEnd) : "";
}

}  // namespace withy::engine
