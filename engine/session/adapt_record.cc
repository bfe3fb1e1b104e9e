#include "engine/session/adapt_record.h"

#include <utility>

#include "engine/chat/template.h"

namespace withy::engine {
namespace {

// Appends messages of a record one by one.
class Adapter {
 public:
  explicit Adapter(const ChatTemplate& chat) : chat_(chat), alternates_(chat.alternates()) {}

  void Add(const Segment& segment, size_t number) {
    const bool answers_raw = in_raw_ && segment.role == kAssistantRole;
    if (segment.role.empty() || answers_raw) {
      in_raw_ = true;
      Append(segment, number);
      return;
    }
    const bool opens = record_.empty() || in_raw_;
    in_raw_ = false;
    Segment message = segment;
    if (!chat_.Takes(message.role, opens)) {
      const bool instructs = message.role == kDeveloperRole && chat_.Takes(kSystemRole, opens);
      message.role = instructs ? kSystemRole : kUserRole;
      ++adapted_;
    }
    if (!message.tool_calls.empty() && !chat_.takes_calls()) {
      message.text = message.VisibleText();
      if (!message.text.empty()) message.text += '\n';
      message.text += ToolCallsJson(message.tool_calls);
      message.kept.clear();
      message.token_ids.clear();
      message.tool_calls.clear();
      ++adapted_;
    }
    if (alternates_ && (message.role == kUserRole || message.role == kAssistantRole)) {
      if (!opens && record_.back().role == message.role) return Merge(message);
      if (message.role == kAssistantRole && (opens || record_.back().role == kSystemRole)) {
        Append({.role = kUserRole, .text = ""}, number);
        ++adapted_;
      }
    }
    Append(std::move(message), number);
  }

  std::vector<Segment> Take() { return std::move(record_); }
  std::vector<size_t> TakeOrigin() { return std::move(origin_); }
  int adapted() const { return adapted_; }

 private:
  void Append(Segment message, size_t number) {
    record_.push_back(std::move(message));
    origin_.push_back(number);
  }
  void Merge(const Segment& message) {
    Segment& before = record_.back();
    before.text = before.VisibleText() + "\n\n" + message.VisibleText();
    before.kept.clear();
    before.token_ids.clear();
    before.tool_calls.insert(before.tool_calls.end(), message.tool_calls.begin(),
                             message.tool_calls.end());
    ++adapted_;
  }

  const ChatTemplate& chat_;
  const bool alternates_;
  std::vector<Segment> record_;
  std::vector<size_t> origin_;
  bool in_raw_ = false;  // in raw text and its answers
  int adapted_ = 0;
};

}  // namespace

AdaptedRecord AdaptRecord(std::span<const Segment> segments, size_t recorded,
                          const ChatTemplate& chat) {
  Adapter adapter(chat);
  for (size_t i = 0; i < recorded; ++i) adapter.Add(segments[i], i);
  AdaptedRecord result;
  result.adapted = adapter.adapted();
  if (result.adapted == 0) return result;
  result.segments = adapter.Take();
  result.origin = adapter.TakeOrigin();
  result.recorded = result.segments.size();
  const std::span<const Segment> prompt = segments.subspan(recorded);
  result.segments.insert(result.segments.end(), prompt.begin(), prompt.end());
  for (size_t i = recorded; i < segments.size(); ++i) result.origin.push_back(i);
  return result;
}

}  // namespace withy::engine
