#include "bench/speculation/speculation_decoder.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/status.h"
#include "bench/speculation/local_drafter.h"
#include "policy/draft/token_tree.h"
#include "serving/call/scheduler.h"

namespace withy::bench {
namespace {

constexpr int32_t kTreeRows = 65;  // the service's default

engine::KvGeometry GeometryOf(const engine::KvInfo& kv) {
  return {.layers = kv.layers, .kv_heads = kv.kv_heads, .head_dim = kv.head_dim};
}

int32_t ChunksFor(int32_t tokens) {
  return (tokens + engine::kChunkTokens - 1) / engine::kChunkTokens;
}

// Steps of one call with several rows, as the worker takes them at start.
std::vector<policy::RowCost> RowCostsOf(const engine::StepCost& cost) {
  std::vector<policy::RowCost> rows = {{1, cost.decode_us / 1e3}};
  for (const engine::PrefillTime& prompt : cost.prefill) {
    if (prompt.tokens > 1)
      rows.push_back({prompt.tokens, std::max(prompt.us / 1e3, rows.back().ms)});
  }
  return rows;
}

bool IsLlmcads(const DecodeWay& way) { return way.chain > 0 || way.tree; }

// LLMCad's ways: linear speculation, and trees that stop at a threshold (sections 3.2 and 3.3).
LocalDrafter::LimitsOf LimitsOf(const DecodeWay& way) {
  if (!IsLlmcads(way)) return nullptr;
  return [way](const serving::DraftTask& task) {
    constexpr double kFixedThreshold = 0.01;
    policy::GrowthLimits limits{.max_nodes = task.limits.max_nodes,
                                .max_depth = task.limits.max_depth,
                                .alpha = kFixedThreshold};
    if (way.adaptive) limits.alpha = task.drafts.step.speculation.context.fallback.alpha();
    if (way.chain > 0) {
      limits.max_nodes = limits.max_depth = std::min(limits.max_depth, way.chain);
      limits.alpha = 0;
      limits.branch_threshold = 2;
    }
    return limits;
  };
}

class AnswerSink final : public serving::CallSink {
 public:
  void Accepted(const serving::CallAccepted& /*accepted*/) override {}
  void Progress(int32_t /*computed*/, int32_t /*tokens*/) override {}
  void LevelChanged(int32_t /*level_percent*/) override {}
  void Delta(const engine::AnswerDelta& /*delta*/) override {}
  void Flush() override {}
  void Finished(const serving::CallOutcome& outcome) override {
    outcome_ = outcome;
    over_.Notify();
  }
  void Failed(const absl::Status& status) override {
    outcome_ = status;
    over_.Notify();
  }
  bool HasRoom() const override { return true; }

  const absl::StatusOr<serving::CallOutcome>& Wait() const {
    over_.WaitForNotification();
    return outcome_;
  }

 private:
  absl::Notification over_;
  absl::StatusOr<serving::CallOutcome> outcome_ = absl::UnknownError("");  // once it is over
};

DecodedAnswer AnswerOf(const serving::CallOutcome& outcome) {
  const serving::SpeculationStats& stats = outcome.speculation;
  DecodedAnswer answer;
  for (const engine::Sample& token : outcome.tokens) answer.tokens.push_back(token.id);
  // The token that ends a turn is not among them, nor is the first one the decode steps'.
  const bool ended = outcome.reason == engine::FinishReason::kEndOfTurn;
  answer.decoded = std::max(0, static_cast<int32_t>(answer.tokens.size()) - (ended ? 0 : 1));
  answer.target_passes = stats.target_passes;
  answer.window_drafted = stats.window_drafted;
  answer.drafted = std::accumulate(stats.drafted.begin(), stats.drafted.end(), int64_t{0});
  answer.accepted = std::accumulate(stats.accepted.begin(), stats.accepted.end(), int64_t{0});
  answer.ms = Millis(outcome.times.last_token_ns - outcome.times.first_token_ns);
  answer.draft_ms = Millis(stats.draft_ns);
  return answer;
}

}  // namespace

bool DecodeWay::uses_draft() const {
  return chain > 0 || tree || big_little.fallback > 0 ||
         speculation == policy::SpeculationMode::kAuto ||
         speculation == policy::SpeculationMode::kDraft;
}

// A model's tokenizer whose answers do not end, while they are to be open.
class PairDecoder::OpenTokenizer final : public engine::Tokenizer {
 public:
  explicit OpenTokenizer(const engine::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  // Not while a call is under way.
  void set_open(bool open) { open_ = open; }

  std::span<const int32_t> end_of_generation_ids() const override {
    return open_ ? std::span<const int32_t>() : tokenizer_.end_of_generation_ids();
  }
  engine::Encoding EncodePieces(std::span<const engine::TextPiece> pieces,
                                const engine::EncodeOptions& options) const override {
    return tokenizer_.EncodePieces(pieces, options);
  }
  int32_t vocab_size() const override { return tokenizer_.vocab_size(); }
  std::string_view TokenText(int32_t id) const override { return tokenizer_.TokenText(id); }
  std::string_view TokenBytes(int32_t id) const override { return tokenizer_.TokenBytes(id); }
  bool IsControl(int32_t id) const override { return tokenizer_.IsControl(id); }
  bool IsSpecial(int32_t id) const override { return tokenizer_.IsSpecial(id); }
  std::optional<int32_t> FindToken(std::string_view text) const override {
    return tokenizer_.FindToken(text);
  }
  int32_t bos_id() const override { return tokenizer_.bos_id(); }
  int32_t eos_id() const override { return tokenizer_.eos_id(); }
  int32_t eot_id() const override { return tokenizer_.eot_id(); }
  bool wants_bos() const override { return tokenizer_.wants_bos(); }
  bool adds_space_prefix() const override { return tokenizer_.adds_space_prefix(); }
  uint64_t fingerprint() const override { return tokenizer_.fingerprint(); }

 private:
  const engine::Tokenizer& tokenizer_;
  bool open_ = false;
};

// One way's: what it learns of its drafts is its own.
struct PairDecoder::Service {
  Service(PairDecoder& pair, const DecodeWay& way) {
    serving::SchedulerOptions options{.max_batch = 1,
                                      .speculation = {.enabled = true,
                                                      .always = IsLlmcads(way),
                                                      .windows = way.windows,
                                                      .max_tree_rows = kTreeRows,
                                                      .row_costs = RowCostsOf(pair.cost_)}};
    if (way.uses_draft()) {
      const bool streams = pair.parts_.target.weight_stats().streams();
      const LocalDrafter::Options drafts{
          .window = pair.env_.window + policy::TokenTree::kMaxDraftedTokens,
          .windows = way.windows && streams,
          .pass_ms = pair.draft_cost_.decode_us / 1e3,
          .token_ms = pair.draft_cost_.prefill_us_per_token / 1e3};
      drafter.emplace(*pair.parts_.draft, drafts, LimitsOf(way));
      options.speculation.draft = &*drafter;
    }
    scheduler.emplace(pair.parts_.target, pair.env_, pair.leases_, pair.cost_, options,
                      Clock::Real(), *pair.recorder_);
  }

  std::optional<LocalDrafter> drafter;
  std::optional<serving::Scheduler> scheduler;  // drafts with it
};

PairDecoder::PairDecoder(const Parts& parts, int32_t tokens)
    : parts_(parts),
      tokenizer_(std::make_unique<OpenTokenizer>(parts.tokenizer)),
      encoder_(*tokenizer_, parts.chat),
      namer_(serving::ModelIdentity(parts.target.info().id, GeometryOf(parts.target.info().kv),
                                    parts.target.target()),
             /*lora_id=*/"", engine::KvFormat::kQ8),
      env_{.model = parts.target.info(),
           .encoder = encoder_,
           .namer = namer_,
           .window = std::min(tokens, parts.target.info().context_length),
           .draft_slots = kTreeRows,
           .prompt_rows = parts.target.piece_rows()},
      recorder_(telemetry::Recorder::Disabled()),
      leases_(parts.target.info().kv, ChunksFor(tokens + kTreeRows) + 1) {}

PairDecoder::~PairDecoder() = default;

absl::StatusOr<std::unique_ptr<PairDecoder>> PairDecoder::Create(const Parts& parts,
                                                                 int32_t tokens) {
  std::unique_ptr<PairDecoder> pair(new PairDecoder(parts, tokens));
  WITHY_ASSIGN_OR_RETURN(pair->cost_, engine::MeasureCost(parts.target, Clock::Real()));
  if (parts.draft != nullptr) {
    WITHY_ASSIGN_OR_RETURN(pair->draft_cost_, engine::MeasureCost(*parts.draft, Clock::Real()));
  }
  return pair;
}

PairDecoder::Service& PairDecoder::ServiceOf(const DecodeWay& way) {
  for (auto& [known, service] : services_) {
    if (known == way) return *service;
  }
  services_.emplace_back(way, std::make_unique<Service>(*this, way));
  return *services_.back().second;
}

absl::StatusOr<DecodedAnswer> PairDecoder::Answer(const std::vector<engine::Segment>& messages,
                                                  int32_t count, const DecodeWay& way, bool open) {
  if (way.uses_draft() && parts_.draft == nullptr) {
    return absl::InvalidArgumentError("this way of decoding needs a draft model");
  }
  if (way.speculation == policy::SpeculationMode::kPrefix &&
      parts_.target.info().levels.size() < 2) {
    return absl::InvalidArgumentError(
        "the target has no lower level that could draft: choose an elastic model");
  }
  tokenizer_->set_open(open);
  if (way.big_little.fallback > 0) return AnswerBigLittle(messages, count, way);
  serving::CallRequest request;
  request.call_id = ++calls_;
  request.app_id = "bench";
  request.answer = {.prompt = messages, .sampling = {}, .max_tokens = count, .stop = {}};
  request.speculation = IsLlmcads(way) ? policy::SpeculationMode::kDraft : way.speculation;
  const auto sink = std::make_shared<AnswerSink>();  // shared with the scheduler
  Service& service = ServiceOf(way);
  const double before_ms = service.drafter.has_value() ? service.drafter->caught_up_ms() : 0;
  WITHY_RETURN_IF_ERROR(service.scheduler->Submit(std::move(request), sink).status());
  WITHY_RETURN_IF_ERROR(sink->Wait().status());
  DecodedAnswer answer = AnswerOf(*sink->Wait());
  if (!IsLlmcads(way)) return answer;
  // LLMCad's times begin when both models have computed the prompt.
  const double caught_up_ms = service.drafter->caught_up_ms() - before_ms;
  answer.ms -= caught_up_ms;
  answer.draft_ms -= caught_up_ms;
  return answer;
}

absl::StatusOr<DecodedAnswer> PairDecoder::AnswerBigLittle(
    const std::vector<engine::Segment>& messages, int32_t count, const DecodeWay& way) {
  WITHY_ASSIGN_OR_RETURN(const engine::EncodedConversation prompt,
                         encoder_.EncodePrompt(messages, env_.window));
  return DecodeBigLittle({.target = parts_.target,
                          .draft = *parts_.draft,
                          .ends = tokenizer_->end_of_generation_ids(),
                          .thresholds = way.big_little},
                         prompt.ids, count);
}

}  // namespace withy::bench
