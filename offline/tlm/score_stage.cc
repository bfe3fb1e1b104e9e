#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/status.h"
#include "offline/tlm/network.h"
#include "offline/tlm/optimizer.h"
#include "offline/tlm/stages.h"
#include "offline/tlm/text_windows.h"

namespace withy::tlm {
namespace {

using torch::Tensor;

absl::StatusOr<TextWindows> WindowsOf(const engine::Tokenizer& tokenizer,
                                      const engine::TlmShape& shape,
                                      std::span<const ScoreExample> examples) {
  std::vector<TextWindows::Text> texts;
  for (const ScoreExample& example : examples) texts.push_back({example.text, example.words});
  return TextWindows::Make(tokenizer, shape, texts);
}

// Several texts as one batch.
struct ScoreBatch {
  PaddedWindows windows;
  Tensor target;  // [windows, longest]: retain probability
  Tensor weight;  // [windows, longest]: the tokens of a word share a weight of 1
};

ScoreBatch MakeBatch(const TextWindows& texts, std::span<const ScoreExample> examples,
                     const std::vector<size_t>& drawn, const SloSteps& slo) {
  std::vector<std::vector<int32_t>> windows;
  std::vector<size_t> first;
  for (const size_t text : drawn) {
    first.push_back(windows.size());
    for (std::vector<int32_t>& window : texts.Windows(text, slo)) {
      windows.push_back(std::move(window));
    }
  }
  ScoreBatch batch{.windows = Pad(windows), .target = {}, .weight = {}};
  batch.target = torch::zeros_like(batch.windows.mask);
  batch.weight = torch::zeros_like(batch.windows.mask);
  const int64_t length = batch.windows.mask.size(1);
  for (size_t i = 0; i < drawn.size(); ++i) {
    const engine::WindowedText& text = texts.At(drawn[i]);
    const ScoreExample& example = examples[drawn[i]];
    for (size_t word = 0; word < example.keep.size(); ++word) {
      if (example.keep[word] < 0) continue;
      const auto [begin, end] = text.word_tokens[word];
      for (int32_t t = begin; t < end; ++t) {
        const engine::TextToken& token = text.tokens[static_cast<size_t>(t)];
        const int64_t at = (static_cast<int64_t>(first[i]) + token.window) * length + token.row;
        batch.target.data_ptr<float>()[at] = example.keep[word];
        batch.weight.data_ptr<float>()[at] = 1.0f / static_cast<float>(end - begin);
      }
    }
  }
  return batch;
}

// Ranks from 0; equal values share their mean.
std::vector<double> Ranks(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    const double mean = static_cast<double>(begin + end - 1) / 2;
    for (; begin < end; ++begin) ranks[order[begin]] = mean;
  }
  return ranks;
}

double Correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const double mean = (static_cast<double>(a.size()) - 1) / 2;  // of ranks
  double ab = 0;
  double aa = 0;
  double bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean) * (b[i] - mean);
    aa += (a[i] - mean) * (a[i] - mean);
    bb += (b[i] - mean) * (b[i] - mean);
  }
  return aa * bb == 0 ? 0 : ab / std::sqrt(aa * bb);
}

}  // namespace

absl::Status TrainScore(const engine::Tokenizer& tokenizer, std::span<const ScoreExample> examples,
                        const StageOptions& options, engine::TlmCheckpoint* tlm) {
  const bool asked = std::any_of(examples.begin(), examples.end(), [](const ScoreExample& e) {
    return std::any_of(e.keep.begin(), e.keep.end(), [](float keep) { return keep >= 0; });
  });
  if (!asked) {
    return absl::InvalidArgumentError("no word has a label: the score head has nothing to learn");
  }
  WITHY_ASSIGN_OR_RETURN(const TextWindows texts, WindowsOf(tokenizer, tlm->shape, examples));
  Network network(*tlm);
  std::vector<Trained> trained;
  for (auto& [name, value] : network.weights()) {
    const bool own = name.starts_with("score.");
    const bool bottom = !own && !name.starts_with("decision.");
    if (own || (bottom && options.train_bottom)) trained.push_back({value, {}});
  }
  WITHY_RETURN_IF_ERROR(Train(std::move(trained), options, [&](corpus::Rng& rng) {
    const std::vector<size_t> drawn = texts.Draw(options.batch, &rng);
    const ScoreBatch batch = MakeBatch(texts, examples, drawn, texts.DrawSlo(&rng));
    const Tensor keep = network.Score(batch.windows).keep;
    const Tensor loss = torch::softplus(keep) - batch.target * keep;
    return (loss * batch.weight).sum() / batch.weight.sum().clamp_min(1);
  }));
  network.Store(tlm);
  return absl::OkStatus();
}

absl::StatusOr<double> RankCorrelation(const engine::Tokenizer& tokenizer,
                                       std::span<const ScoreExample> examples,
                                       const engine::TlmCheckpoint& tlm) {
  torch::NoGradGuard no_grad;
  WITHY_ASSIGN_OR_RETURN(const TextWindows texts, WindowsOf(tokenizer, tlm.shape, examples));
  const Network network(tlm);
  const int32_t middle = (texts.slo_steps() + 1) / 2;
  double sum = 0;
  int64_t count = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const ScoreBatch batch = MakeBatch(texts, examples, {i}, {middle, middle});
    const Tensor keep = torch::sigmoid(network.Score(batch.windows).keep).contiguous();
    const int64_t length = keep.size(1);
    std::vector<double> scores;
    std::vector<double> labels;
    for (size_t word = 0; word < examples[i].keep.size(); ++word) {
      const auto [begin, end] = texts.At(i).word_tokens[word];
      if (examples[i].keep[word] < 0 || begin == end) continue;
      double score = 0;
      for (int32_t t = begin; t < end; ++t) {
        const engine::TextToken& token = texts.At(i).tokens[static_cast<size_t>(t)];
        score += keep.data_ptr<float>()[token.window * length + token.row];
      }
      scores.push_back(score / (end - begin));
      labels.push_back(examples[i].keep[word]);
    }
    if (scores.size() < 3) continue;
    sum += Correlation(Ranks(scores), Ranks(labels));
    ++count;
  }
  return sum / static_cast<double>(std::max<int64_t>(1, count));
}

}  // namespace withy::tlm
