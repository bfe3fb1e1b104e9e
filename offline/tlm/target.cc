#include "offline/tlm/target.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "engine/session/scored_text.h"
#include "engine/session/segment.h"
#include "engine/session/solo_answer.h"

namespace withy::tlm {
namespace {

// Negative log-probability of `token`.
double Loss(std::span<const float> logits, int32_t token) {
  const float best = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - best);
  return std::log(sum) + best - logits[static_cast<size_t>(token)];
}

bool IsBest(std::span<const float> logits, int32_t token) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin() == token;
}

std::vector<engine::Segment> SegmentsOf(const corpus::Record& record) {
  std::vector<engine::Segment> segments;
  for (const corpus::Message& message : record.messages) {
    segments.push_back({.role = message.role, .text = message.content});
  }
  return segments;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Target>> Target::Open(const std::string& path,
                                                     const engine::ModelOptions& options) {
  WITHY_ASSIGN_OR_RETURN(std::unique_ptr<engine::Model> model, engine::Model::Open(path, options));
  WITHY_ASSIGN_OR_RETURN(std::unique_ptr<engine::Tokenizer> tokenizer,
                         engine::MakeTokenizer(model->metadata()));
  if (!tokenizer->FindToken("<|im_start|>").has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     ": its tokenizer has no <|im_start|>, which the corpus is written with; "
                     "give a model that was trained on the corpus"));
  }
  return std::unique_ptr<Target>(
      new Target(std::move(model), train::ChatEncoder(std::move(tokenizer))));
}

absl::StatusOr<std::unique_ptr<Target>> Target::OpenForOwnAnswers(
    const std::string& path, const engine::ModelOptions& options) {
  engine::ServedModelOptions served;
  served.path = path;
  served.model = options;
  WITHY_ASSIGN_OR_RETURN(std::unique_ptr<engine::ServedModel> model,
                         engine::OpenServedModel(served));
  return std::unique_ptr<Target>(new Target(std::move(model)));
}

absl::StatusOr<train::Sample> Target::Encode(const corpus::Record& record) const {
  if (encoder_.has_value()) return encoder_->Encode(record);
  WITHY_ASSIGN_OR_RETURN(const engine::ScoredText text,
                         engine::EncodeScoredText(served_->encoder, SegmentsOf(record),
                                                  record.answer, /*cancelled=*/nullptr));
  train::Sample sample;
  sample.tokens = text.ids;
  sample.last_answer = static_cast<size_t>(text.first_scored);
  return sample;
}

absl::StatusOr<std::string> Target::Answer(const corpus::Record& record) {
  engine::AnswerRequest request;
  request.prompt = SegmentsOf(record);
  request.sampling.temperature = 0;
  request.max_tokens = kOwnAnswerTokens;
  WITHY_ASSIGN_OR_RETURN(const engine::SoloResult answer,
                         engine::AnswerAlone(*model_, served_->encoder, request,
                                             {.window = served_->window}, {}, Clock::Real()));
  return answer.text;
}

absl::StatusOr<Judgement> Target::Run(const train::Sample& sample, int32_t level, int32_t first,
                                      const engine::ContextView& view) {
  const auto tokens = static_cast<int32_t>(sample.tokens.size());
  const auto answer = static_cast<int32_t>(sample.last_answer);
  if (tokens > info().context_length) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a record has ", tokens, " tokens, the model's context only ", info().context_length));
  }
  std::vector<engine::Row> rows;
  for (int32_t i = first; i + 1 < tokens; ++i) {
    rows.push_back({.token = sample.tokens[static_cast<size_t>(i)],
                    .position = i,
                    .slot = i,
                    .level = level,
                    .want_logits = i + 1 >= answer});
  }
  const auto vocab = static_cast<size_t>(info().vocab_size);
  std::vector<float> logits(vocab * static_cast<size_t>(tokens - answer));
  WITHY_RETURN_IF_ERROR(
      model_->Forward({.rows = rows, .contexts = {&view, 1}}, logits.data(), nullptr));
  Judgement judgement{.loss = 0, .right = false, .prompt_tokens = answer};
  int32_t likeliest = 0;
  for (int32_t i = answer; i < tokens; ++i) {
    const std::span<const float> row(logits.data() + vocab * static_cast<size_t>(i - answer),
                                     vocab);
    const int32_t token = sample.tokens[static_cast<size_t>(i)];
    judgement.loss += Loss(row, token);
    likeliest += IsBest(row, token) ? 1 : 0;
  }
  const double needed = encoder_.has_value() ? 1 : kOwnAnswerShare;
  judgement.right = likeliest >= needed * (tokens - answer);
  return judgement;
}

absl::StatusOr<Judgement> Target::Judge(const corpus::Record& record, int32_t level) {
  WITHY_ASSIGN_OR_RETURN(const train::Sample sample, Encode(record));
  const engine::ScratchKv kv(info(), static_cast<int32_t>(sample.tokens.size()));
  return Run(sample, level, 0, kv.View());
}

absl::StatusOr<Judgement> Target::JudgeFirst(const corpus::Record& record) {
  WITHY_ASSIGN_OR_RETURN(const train::Sample sample, Encode(record));
  base_kv_ =
      std::make_unique<engine::ScratchKv>(info(), static_cast<int32_t>(sample.tokens.size()));
  base_tokens_ = sample.tokens;
  return Run(sample, -1, 0, base_kv_->View());
}

absl::StatusOr<Judgement> Target::JudgeVariant(const corpus::Record& record) {
  WITHY_ASSIGN_OR_RETURN(const train::Sample sample, Encode(record));
  size_t common = 0;
  const size_t limit =
      std::min({sample.last_answer - 1, sample.tokens.size(), base_tokens_.size() - 1});
  while (common < limit && sample.tokens[common] == base_tokens_[common]) ++common;
  // Whole chunks of the first record's K and V, then the variant's own chunks.
  const auto chunk = static_cast<size_t>(info().kv.chunk_tokens);
  const size_t shared = common / chunk;
  const size_t first_chunks = (base_tokens_.size() + chunk - 1) / chunk;
  const size_t chunks = (sample.tokens.size() + chunk - 1) / chunk;
  base_kv_->Extend(static_cast<int32_t>((first_chunks + chunks) * chunk));
  const auto layers = static_cast<size_t>(info().kv.layers);
  const engine::ContextView base = base_kv_->View();
  const auto of_first = base.blocks.first(shared * layers);
  const auto own = base.blocks.subspan(first_chunks * layers, (chunks - shared) * layers);
  std::vector<engine::KvBlockName> blocks(of_first.begin(), of_first.end());
  blocks.insert(blocks.end(), own.begin(), own.end());
  const auto first = static_cast<int32_t>(shared * chunk);
  return Run(sample, -1, first,
             {.memory = base.memory, .blocks = blocks, .committed_tokens = first});
}

}  // namespace withy::tlm
