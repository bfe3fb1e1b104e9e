// The text of one call's context: the record, the call's prompt, and what the call appends to the
// record. Neighbours: engine/session/conversation.h encodes it and cuts it to the window;
// call_answer.h has the answer's text.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/session/conversation.h"
#include "engine/session/segment.h"
#include "serving/call/call.h"
#include "serving/session/call_tokens.h"

namespace withy::serving {

// Owned by the call's session; what is passed to the constructor outlives it. Not thread-safe.
class CallText {
 public:
  // `record`: that the lease brought.
  CallText(const engine::ConversationEncoder& encoder, const CallRequest& request,
           const std::vector<engine::Segment>& record)
      : encoder_(encoder), request_(request), record_(record) {}

  // Record and prompt (a rebuild: the record alone) as tokens, cut to `window`. `cancelled` is
  // polled; null: never. Errors: INVALID_ARGUMENT (the template refuses the messages), OUT_OF_RANGE
  // (window), CANCELLED.
  absl::StatusOr<engine::EncodedConversation> Encode(int32_t window,
                                                     const engine::CancelCheck* cancelled) const;
  // What the call appends to the record: its prompt, without settings that are as before, and
  // `answer`. `unix_s`: the present time.
  std::vector<engine::Segment> Appended(const CallTokens& tokens, engine::Segment answer,
                                        int64_t unix_s) const;

  // The record after the call, as later calls will encode it.
  struct NextRecord {
    int32_t context_tokens = 0;    // within the window
    int32_t dropped_segments = 0;  // for which the window has no room
    int32_t kept_tokens = 0;       // of the call's first tokens, those that it begins with
  };
  // With `appended`. At most the first `computed` of the call's tokens are kept.
  NextRecord Measure(std::span<const engine::Segment> appended, const CallTokens& tokens,
                     int32_t computed) const;

 private:
  const engine::ConversationEncoder& encoder_;
  const CallRequest& request_;
  const std::vector<engine::Segment>& record_;
};

}  // namespace withy::serving
