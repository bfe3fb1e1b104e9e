#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/status.h"
#include "offline/tlm/network.h"
#include "offline/tlm/optimizer.h"
#include "offline/tlm/stages.h"
#include "offline/tlm/text_windows.h"

namespace withy::tlm {
namespace {

using torch::Tensor;

constexpr int64_t kScoredAtOnce = 32;
// Weight of pairs outside the SLO's choice; they teach what the prompt needs.
constexpr float kOtherPairs = 0.1f;
// Minimum distance of a share of correct answers from 0 and 1 before taking its logit.
constexpr double kUnsure = 0.01;

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

// Logits. The probability that a pair is correct is the logistic function of the sum of its two.
struct Answers {
  Tensor prompt;  // [questions, prompt levels]
  Tensor model;   // [questions, model levels]

  Tensor Pairs() const {  // [questions, pairs]
    return (prompt.unsqueeze(2) + model.unsqueeze(1)).flatten(1);
  }
};

// Averages the windows of a text as engine::Tlm does.
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
    return sums.index_add(0, index, logits * share);
  };
  return {merge(out.prompt), merge(out.model)};
}

// Parameters to train: the decision tower and the SLO tokens' rows.
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

// Initialises the heads to predict the mean over all prompts: the sums of row and column logits
// that are closest (least squares) to the logits of each pair's share of correct answers.
void StartFromMean(const DecisionSpace& space, std::span<const double> mean_right,
                   Network* network) {
  const auto prompts = static_cast<int64_t>(space.prompt_levels.size());
  const auto models = static_cast<int64_t>(space.model_levels.size());
  std::vector<float> logits;
  for (const double mean : mean_right) {
    const double p = std::clamp(mean, kUnsure, 1 - kUnsure);
    logits.push_back(static_cast<float>(std::log(p / (1 - p))));
  }
  const Tensor table = torch::tensor(logits).reshape({prompts, models});
  const Tensor half = table.mean() / 2;
  const auto set = [&](const std::string& head, const Tensor& bias) {
    network->weights().at(head + ".weight").zero_();
    network->weights().at(head + ".bias").copy_(bias);
  };
  set("decision.prompt", table.mean(1) - half);
  set("decision.model", table.mean(0) - half);
}

// 1 for pairs that are answered correctly.
Tensor RightOf(std::span<const DecisionExample> examples, const std::vector<Question>& questions) {
  std::vector<Tensor> rows;
  for (const Question& question : questions) {
    const std::vector<bool>& right = examples[question.text].row.right;
    rows.push_back(torch::tensor(std::vector<float>(right.begin(), right.end())));
  }
  return torch::stack(rows);
}

}  // namespace

absl::Status TrainDecision(const engine::Tokenizer& tokenizer, const DecisionSpace& space,
                           std::span<const DecisionExample> examples,
                           std::span<const double> mean_right, const StageOptions& options,
                           engine::TlmCheckpoint* tlm) {
  if (examples.empty()) {
    return absl::InvalidArgumentError("no prompts: the decision head has nothing to learn");
  }
  WITHY_ASSIGN_OR_RETURN(const TextWindows texts, WindowsOf(tokenizer, tlm->shape, examples));
  WITHY_ASSIGN_OR_RETURN(
      const std::vector<int32_t> slo_ids,
      engine::SloTokenIds(tlm->vocab, tlm->shape.slo_steps, "the TLM to be trained"));
  Network network(*tlm);
  StartFromMean(space, mean_right, &network);
  const auto pairs = static_cast<int64_t>(space.pairs());
  WITHY_RETURN_IF_ERROR(Train(TrainedParts(slo_ids, &network), options, [&](corpus::Rng& rng) {
    std::vector<Question> questions;
    for (const size_t text : texts.Draw(options.batch, &rng)) {
      questions.push_back({text, texts.DrawSlo(&rng)});
    }
    const auto rows = static_cast<int64_t>(questions.size());
    const Tensor weights = torch::full({rows, pairs}, kOtherPairs);
    for (int64_t i = 0; i < rows; ++i) {
      const Question& question = questions[static_cast<size_t>(i)];
      for (const size_t pair :
           Frontier(space, examples[question.text].row, texts.Slo(question.slo))) {
        weights.data_ptr<float>()[i * pairs + static_cast<int64_t>(pair)] = 1;
      }
    }
    return torch::binary_cross_entropy_with_logits(Ask(network, texts, questions).Pairs(),
                                                   RightOf(examples, questions),
                                                   weights / weights.sum(), {}, at::Reduction::Sum);
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
    const Tensor pairs = Ask(network, texts, some).Pairs().contiguous();
    for (size_t i = 0; i < n; ++i) {
      const DecisionRow& row = examples[some[i].text].row;
      const engine::TlmSlo slo = texts.Slo(some[i].slo);
      const float* logits = pairs.data_ptr<float>() + i * space.pairs();
      const std::vector<size_t> feasible = Feasible(space, row, slo);
      const size_t fallback = DefaultPair(space, row, mean_right, slo);
      size_t chosen = fallback;
      float likeliest = -std::numeric_limits<float>::infinity();
      for (const size_t pair : Frontier(space, row, slo)) {
        if (logits[pair] < likeliest) continue;
        likeliest = logits[pair];
        chosen = pair;
      }
      const bool any = std::any_of(feasible.begin(), feasible.end(),
                                   [&](size_t pair) { return bool{row.right[pair]}; });
      const size_t random =
          feasible.empty() ? fallback : feasible[rng.Below(static_cast<uint32_t>(feasible.size()))];
      scores.tlm += row.right[chosen] ? 1 : 0;
      scores.fixed += row.right[fallback] ? 1 : 0;
      scores.random += row.right[random] ? 1 : 0;
      scores.oracle += any || (feasible.empty() && row.right[fallback]) ? 1 : 0;
      scores.full += row.right.back() ? 1 : 0;
    }
  }
  const double count = std::max<double>(1, static_cast<double>(questions.size()));
  for (double* score : {&scores.tlm, &scores.fixed, &scores.random, &scores.oracle, &scores.full}) {
    *score /= count;
  }
  return scores;
}

}  // namespace withy::tlm
