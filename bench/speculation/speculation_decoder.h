// Answers prompts greedily with a target and a draft model in this process, one at a time, in the
// ways that LLMCad compares: by the service's own scheduler and speculation (serving/), plainly, by
// its sources of drafts, or with trees that grow as LLMCad's printed thresholds and linear
// speculation let them; and by the lossy Big Little Decoder, which is this benchmark's. Neighbours:
// local_drafter.h drafts, memory_leases.h has the KV, big_little.h; speculation_figures.cc and
// speculation_wall_pair.h compare.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/speculation/big_little.h"
#include "bench/speculation/decoded_answer.h"
#include "bench/speculation/memory_leases.h"
#include "engine/chat/template.h"
#include "engine/model/model.h"
#include "engine/session/conversation.h"
#include "engine/session/cost_probe.h"
#include "engine/session/segment.h"
#include "engine/tokenizer/tokenizer.h"
#include "policy/draft/speculation.h"
#include "serving/session/session.h"
#include "telemetry/recorder.h"

namespace withy::bench {

struct DecodeWay {
  // Who drafts, as the service does it: off, auto, or one of lookup, prefix, draft.
  policy::SpeculationMode speculation = policy::SpeculationMode::kOff;
  bool windows = false;  // trees go on growing while the target waits for its weights
  // Ways whose drafts are all verified, whatever that costs.
  int32_t chain = 0;                    // tokens a pass, in a line
  bool tree = false;                    // to a threshold, or 64 tokens
  bool adaptive = false;                // of trees: the threshold follows eq. 3
  BigLittleThresholds big_little = {};  // fallback 0: not so

  bool uses_draft() const;
  bool operator==(const DecodeWay&) const = default;
};

// Not thread-safe. Models of one vocabulary; all is borrowed.
class PairDecoder {
 public:
  struct Parts {
    engine::Model& target;
    const engine::Tokenizer& tokenizer;
    const engine::ChatTemplate& chat;
    engine::Model* draft = nullptr;  // null if no way uses it
  };

  // `tokens`: most of a prompt and its answer. Measures the target first. Errors: as
  // Model::Forward.
  static absl::StatusOr<std::unique_ptr<PairDecoder>> Create(const Parts& parts, int32_t tokens);
  ~PairDecoder();

  // At most `count` tokens after the messages. `open`: that many, also beyond tokens that end an
  // answer. What a way has learnt of its drafts stays for its next answers. Errors:
  // INVALID_ARGUMENT (the way lacks a model), those of the scheduler.
  absl::StatusOr<DecodedAnswer> Answer(const std::vector<engine::Segment>& messages, int32_t count,
                                       const DecodeWay& way, bool open = false);

 private:
  class OpenTokenizer;
  struct Service;

  PairDecoder(const Parts& parts, int32_t tokens);
  Service& ServiceOf(const DecodeWay& way);
  absl::StatusOr<DecodedAnswer> AnswerBigLittle(const std::vector<engine::Segment>& messages,
                                                int32_t count, const DecodeWay& way);

  const Parts parts_;
  const std::unique_ptr<OpenTokenizer> tokenizer_;
  const engine::ConversationEncoder encoder_;
  const serving::ChunkNamer namer_;
  const serving::SessionEnv env_;
  const std::unique_ptr<telemetry::Recorder> recorder_;
  engine::StepCost cost_;
  engine::StepCost draft_cost_;
  MemoryLeases leases_;
  uint64_t calls_ = 0;
  std::vector<std::pair<DecodeWay, std::unique_ptr<Service>>> services_;
};

}  // namespace withy::bench
