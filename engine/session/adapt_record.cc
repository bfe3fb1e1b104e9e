#include "engine/session/adapt_record.h"

#include <utility>

namespace withy::engine {
namespace {

constexpr char kSystem[] = "system";
constexpr char kUser[] = "user";
constexpr char kAssistant[] = "assistant";

// Appends messages of a record, one after the other.
class Adapter {
 public:
  explicit Adapter(bool alternates) : alternates_(alternates) {}

  void Add(const Segment& segment) {
    const bool answers_raw = in_raw_ && segment.role == kAssistant;
    if (segment.role.empty() || answers_raw) {
      in_raw_ = true;
      record_.push_back(segment);
      return;
    }
    const bool opens = record_.empty() || in_raw_;
    in_raw_ = false;
    Segment message = segment;
    if (message.role == kSystem && !opens) {
      message.role = kUser;
      ++adapted_;
    }
    if (alternates_ && message.role != kSystem) {
      if (!opens && record_.back().role == message.role) return Merge(message);
      if (message.role == kAssistant && (opens || record_.back().role == kSystem)) {
        record_.push_back({.role = kUser, .text = ""});
        ++adapted_;
      }
    }
    record_.push_back(std::move(message));
  }

  std::vector<Segment> Take() { return std::move(record_); }
  int adapted() const { return adapted_; }

 private:
  void Merge(const Segment& message) {
    Segment& before = record_.back();
    before.text = before.VisibleText() + "\n\n" + message.VisibleText();
    before.kept.clear();
    before.token_ids.clear();
    ++adapted_;
  }

  const bool alternates_;
  std::vector<Segment> record_;
  bool in_raw_ = false;  // in raw text and the answers to it
  int adapted_ = 0;
};

}  // namespace

AdaptedRecord AdaptRecord(std::span<const Segment> segments, size_t recorded,
                          const ChatTemplate& chat) {
  Adapter adapter(chat.alternates());
  for (const Segment& segment : segments.first(recorded)) adapter.Add(segment);
  AdaptedRecord result;
  result.adapted = adapter.adapted();
  if (result.adapted == 0) return result;
  result.segments = adapter.Take();
  result.recorded = result.segments.size();
  const std::span<const Segment> prompt = segments.subspan(recorded);
  result.segments.insert(result.segments.end(), prompt.begin(), prompt.end());
  return result;
}

}  // namespace withy::engine
