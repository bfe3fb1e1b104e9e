#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/status.h"
#include "elasticizer/tlm/network.h"
#include "elasticizer/tlm/optimizer.h"
#include "elasticizer/tlm/stages.h"
#include "elasticizer/tlm/text_windows.h"

namespace withy::tlm {
namespace {

using torch::Tensor;

constexpr int64_t kScoredAtOnce = 32;

absl::StatusOr<TextWindows> WindowsOf(const engine::Tokenizer& tokenizer,
                                      const engine::TlmShape& shape,
                                      std::span<const DecisionExample> examples) {
  std::vector<TextWindows::Text> texts;
  for (const DecisionExample& example : examples) texts.push_back({example.text, {}});
  return TextWindows::Make(tokenizer, shape, texts);
}

// A text with an SLO.
struct Question {
  size_t text = 0;
  SloSteps slo;
};

struct Answers {
  Tensor prompt;  // [questions, prompt levels]: log-probabilities
  Tensor model;   // [questions, model levels]
};

// Windows of a text are merged as engine::Tlm merges them.
Answers Ask(const Network& network, const TextWindows& texts,
            const std::vector<Question>& questions) {
  std::vector<std::vector<int32_t>> windows;
  std::vector<float> shares;
  std::vector<int64_t> of;
  for (size_t i = 0; i < questions.size(); ++i) {
    const std::vector<float> weights = texts.Weights(questions[i].text);
    float sum = 0;
    for (const float weight : weights) sum += weight;
    for (const float weight : weights) {
      shares.push_back(weight / sum);
      of.push_back(static_cast<int64_t>(i));
    }
    for (std::vector<int32_t>& window : texts.Windows(questions[i].text, questions[i].slo)) {
      windows.push_back(std::move(window));
    }
  }
  const NetworkOutput out = network.Decide(Pad(windows));
  const Tensor share = torch::tensor(shares).unsqueeze(1);
  const Tensor index = torch::tensor(of, torch::kInt64);
  const auto merge = [&](const Tensor& logits) {
    const Tensor sums = torch::zeros({static_cast<int64_t>(questions.size()), logits.size(1)});
    return torch::log_softmax(sums.index_add(0, index, logits * share), 1);
  };
  return {merge(out.prompt), merge(out.model)};
}

// Everything but the decision tower and the SLO tokens' rows stays.
std::vector<Trained> TrainedParts(const std::vector<int32_t>& slo_ids, Network* network) {
  std::vector<Trained> trained;
  for (auto& [name, value] : network->weights()) {
    if (name.starts_with("decision.")) trained.push_back({value, {}});
  }
  Tensor& tokens = network->weights().at("token_embd.weight");
  const Tensor mask = torch::zeros({tokens.size(0), 1});
  for (const int32_t id : slo_ids) mask[id] = 1.0f;
  trained.push_back({tokens, mask});
  return trained;
}

// The higher of equals, as engine::LevelChoice.
size_t Best(const Tensor& row) {
  const float* p = row.data_ptr<float>();
  size_t best = 0;
  for (size_t i = 1; i < static_cast<size_t>(row.numel()); ++i) {
    if (p[i] >= p[best]) best = i;
  }
  return best;
}

}  // namespace

absl::Status TrainDecision(const engine::Tokenizer& tokenizer, const DecisionSpace& space,
                           std::span<const DecisionExample> examples,
                           std::span<const double> mean_right, Objective objective,
                           const StageOptions& options, engine::TlmCheckpoint* tlm) {
  if (examples.empty()) {
    return absl::InvalidArgumentError("no prompts: the decision head has nothing to learn");
  }
  WITHY_ASSIGN_OR_RETURN(const TextWindows texts, WindowsOf(tokenizer, tlm->shape, examples));
  WITHY_ASSIGN_OR_RETURN(
      const std::vector<int32_t> slo_ids,
      engine::SloTokenIds(tlm->vocab, tlm->shape.slo_steps, "the TLM to be trained"));
  Network network(*tlm);
  const auto pairs = static_cast<int64_t>(space.pairs());
  WITHY_RETURN_IF_ERROR(Train(TrainedParts(slo_ids, &network), options, [&](corpus::Rng& rng) {
    std::vector<Question> questions;
    for (const size_t text : texts.Draw(options.batch, &rng)) {
      questions.push_back({text, texts.DrawSlo(&rng)});
    }
    const auto rows = static_cast<int64_t>(questions.size());
    const Tensor mask = torch::full({rows, pairs}, -std::numeric_limits<float>::infinity());
    for (int64_t i = 0; i < rows; ++i) {
      const Question& question = questions[static_cast<size_t>(i)];
      for (const size_t pair : Labels(space, examples[question.text].row, mean_right,
                                      texts.Slo(question.slo), objective)) {
        mask.data_ptr<float>()[i * pairs + static_cast<int64_t>(pair)] = 0;
      }
    }
    const Answers answers = Ask(network, texts, questions);
    const Tensor joint =
        (answers.prompt.unsqueeze(2) + answers.model.unsqueeze(1)).reshape({rows, pairs});
    return -torch::logsumexp(joint + mask, 1).mean();
  }));
  network.Store(tlm);
  return absl::OkStatus();
}

absl::StatusOr<DecisionScores> ScoreDecisions(const engine::Tokenizer& tokenizer,
                                              const DecisionSpace& space,
                                              std::span<const DecisionExample> examples,
                                              std::span<const double> mean_right,
                                              const engine::TlmCheckpoint& tlm) {
  torch::NoGradGuard no_grad;
  WITHY_ASSIGN_OR_RETURN(const TextWindows texts, WindowsOf(tokenizer, tlm.shape, examples));
  const Network network(tlm);
  std::vector<Question> questions;
  for (size_t text = 0; text < texts.size(); ++text) {
    for (int32_t ttft = 2; ttft <= texts.slo_steps(); ttft += 2) {
      for (int32_t tpot = 2; tpot <= texts.slo_steps(); tpot += 2) {
        questions.push_back({text, {ttft, tpot}});
      }
    }
  }
  DecisionScores scores;
  corpus::Rng rng(1);
  for (size_t begin = 0; begin < questions.size(); begin += kScoredAtOnce) {
    const size_t n = std::min<size_t>(kScoredAtOnce, questions.size() - begin);
    const std::vector<Question> some(questions.begin() + static_cast<ptrdiff_t>(begin),
                                     questions.begin() + static_cast<ptrdiff_t>(begin + n));
    const Answers answers = Ask(network, texts, some);
    for (size_t i = 0; i < n; ++i) {
      const DecisionRow& row = examples[some[i].text].row;
      const engine::TlmSlo slo = texts.Slo(some[i].slo);
      const auto at = static_cast<int64_t>(i);
      const size_t chosen = Best(answers.prompt[at].contiguous()) * space.model_levels.size() +
                            Best(answers.model[at].contiguous());
      const std::vector<size_t> feasible = Feasible(space, row, slo);
      const size_t fallback = DefaultPair(space, row, mean_right, slo);
      const bool meets = std::find(feasible.begin(), feasible.end(), chosen) != feasible.end();
      const bool any = std::any_of(feasible.begin(), feasible.end(),
                                   [&](size_t pair) { return bool{row.right[pair]}; });
      const size_t random =
          feasible.empty() ? fallback : feasible[rng.Below(static_cast<uint32_t>(feasible.size()))];
      scores.feasible += meets ? 1 : 0;
      scores.tlm += row.right[meets ? chosen : fallback] ? 1 : 0;
      scores.fixed += row.right[fallback] ? 1 : 0;
      scores.random += row.right[random] ? 1 : 0;
      scores.oracle += any || (feasible.empty() && row.right[fallback]) ? 1 : 0;
      scores.full += row.right.back() ? 1 : 0;
    }
  }
  const double count = std::max<double>(1, static_cast<double>(questions.size()));
  for (double* score : {&scores.tlm, &scores.fixed, &scores.random, &scores.oracle, &scores.full,
                        &scores.feasible}) {
    *score /= count;
  }
  return scores;
}

}  // namespace withy::tlm
