#include "engine/session/scored_text.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace withy::engine {

absl::StatusOr<ScoredText> EncodeScoredText(const ConversationEncoder& encoder,
                                            std::span<const Segment> prompt, std::string_view text,
                                            const CancelCheck* cancelled) {
  const Tokenizer& tokenizer = encoder.tokenizer();
  ScoredText scored;
  EncodeOptions options{.parse_special = true, .cancelled = cancelled};
  if (prompt.empty()) {
    options.add_bos = tokenizer.wants_bos();
    scored.bos = options.add_bos ? tokenizer.bos_id() : kNoToken;
  } else {
    WITHY_ASSIGN_OR_RETURN(
        EncodedConversation encoded,
        encoder.MeasurePrompt(prompt, ConversationEncoder::kNoWindow, /*recorded=*/0, cancelled));
    scored.ids = std::move(encoded.ids);
    options.continues = true;
  }
  const bool begins = options.add_bos && tokenizer.bos_id() != kNoToken;
  const size_t before = scored.ids.size() + (begins ? 1 : 0);
  const TextPiece piece{.text = text, .parse_special = true};
  const Encoding encoded = tokenizer.EncodePieces({&piece, 1}, options);
  if (encoded.cancelled) return absl::CancelledError("cancelled while the text was encoded");
  scored.ids.insert(scored.ids.end(), encoded.ids.begin(), encoded.ids.end());
  scored.first_scored = std::max(static_cast<int32_t>(before), 1);
  return scored;
}

}  // namespace withy::engine
