// The token ids of a text that is scored, with what precedes it. Neighbours: conversation.h encodes
// prompts, text_scorer.h scores.
#pragma once

#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/session/conversation.h"
#include "engine/session/segment.h"
#include "engine/session/text_scorer.h"
#include "engine/tokenizer/cancel.h"

namespace withy::engine {

// `prompt`: what the text is an answer to; empty: the text stands alone, behind the token that
// begins a text, if the vocabulary wants one. Texts of control tokens become those tokens, as in
// raw prompts. `cancelled` may be null. Errors: of the chat template; CANCELLED.
absl::StatusOr<ScoredText> EncodeScoredText(const ConversationEncoder& encoder,
                                            std::span<const Segment> prompt, std::string_view text,
                                            const CancelCheck* cancelled);

}  // namespace withy::engine
