#include "offline/train/evaluate.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "offline/train/batches.h"

namespace withy::train {
namespace {

using torch::Tensor;

constexpr int64_t kBatchTokens = 2048;

// Rows of the flattened [batch, longest] whose next token belongs to the record's own answer.
std::vector<int64_t> AnswerRows(const std::vector<Sample>& samples, int64_t longest) {
  std::vector<int64_t> rows;
  for (size_t s = 0; s < samples.size(); ++s) {
    for (size_t i = samples[s].last_answer; i < samples[s].tokens.size(); ++i) {
      rows.push_back(static_cast<int64_t>(s) * longest + static_cast<int64_t>(i) - 1);
    }
  }
  return rows;
}

std::vector<int64_t> BestTokens(const Model& model, const Tensor& tokens, const Tensor& rows) {
  const Tensor best = model.Logits(model.Hidden(tokens).index_select(0, rows))
                          .argmax(-1)
                          .to(torch::kCPU)
                          .contiguous();
  const int64_t* data = best.data_ptr<int64_t>();
  return {data, data + best.numel()};
}

void Count(Share& share, bool hit) {
  share.hits += hit ? 1 : 0;
  ++share.count;
}

void ScoreBatch(const Model& model, const Model* draft, const std::vector<Sample>& samples,
                Accuracy& accuracy) {
  const Tensor tokens = PadTokens(samples, model.device());
  const std::vector<int64_t> row_list = AnswerRows(samples, tokens.size(1));
  const Tensor rows = torch::tensor(row_list, torch::kInt64).to(model.device());
  const std::vector<int64_t> best = BestTokens(model, tokens, rows);
  if (draft != nullptr) {
    const std::vector<int64_t> guess = BestTokens(*draft, tokens, rows);
    for (size_t i = 0; i < best.size(); ++i) Count(accuracy.draft_agreement, best[i] == guess[i]);
  }
  size_t row = 0;
  for (const Sample& sample : samples) {
    bool exact = true;
    for (size_t i = sample.last_answer; i < sample.tokens.size(); ++i)
      exact &= best[row++] == sample.tokens[i];
    const size_t task = static_cast<size_t>(sample.task);
    Count(accuracy.overall, exact);
    Count(accuracy.by_task[task], exact);
    Count(accuracy.by_difficulty[task][static_cast<size_t>(sample.difficulty - 1)], exact);
    Count(accuracy.by_shots[sample.shots > 0 ? 1 : 0], exact);
  }
}

}  // namespace

void Accuracy::Add(const Accuracy& other) {
  overall.Add(other.overall);
  draft_agreement.Add(other.draft_agreement);
  for (size_t s = 0; s < by_shots.size(); ++s) by_shots[s].Add(other.by_shots[s]);
  for (size_t t = 0; t < by_task.size(); ++t) {
    by_task[t].Add(other.by_task[t]);
    for (size_t d = 0; d < by_difficulty[t].size(); ++d) {
      by_difficulty[t][d].Add(other.by_difficulty[t][d]);
    }
  }
}

std::string Accuracy::Summary() const {
  char text[64];
  std::snprintf(text, sizeof(text), "%.3f (", overall.value());
  std::string summary = text;
  for (size_t t = 0; t < by_task.size(); ++t) {
    std::snprintf(text, sizeof(text), "%s%s %.2f", t > 0 ? " " : "",
                  std::string(corpus::kTaskNames[t]).c_str(), by_task[t].value());
    summary += text;
  }
  return summary + ")";
}

Tensor PadTokens(const std::vector<Sample>& samples, torch::Device device) {
  size_t longest = 0;
  for (const Sample& sample : samples) longest = std::max(longest, sample.tokens.size());
  Tensor tokens = torch::zeros(
      {static_cast<int64_t>(samples.size()), static_cast<int64_t>(longest)}, torch::kInt64);
  int64_t* data = tokens.data_ptr<int64_t>();
  for (size_t s = 0; s < samples.size(); ++s) {
    std::copy(samples[s].tokens.begin(), samples[s].tokens.end(), data + s * longest);
  }
  return tokens.to(device);
}

Accuracy Evaluate(const Model& model, const corpus::Spec& spec, uint64_t count,
                  const ChatEncoder& encoder, const Workers& workers, const Model* draft) {
  const corpus::Generator generator(spec);
  std::vector<Sample> samples;
  for (uint64_t i = 0; i < count; ++i) samples.push_back(encoder.Encode(generator.At(i)));
  const std::vector<std::vector<Sample>> batches = CutBatches(std::move(samples), kBatchTokens);
  std::vector<Accuracy> parts(batches.size());
  workers.Run(static_cast<int64_t>(batches.size()), [&](int64_t i) {
    torch::NoGradGuard no_grad;
    const size_t b = static_cast<size_t>(i);
    ScoreBatch(model, draft, batches[b], parts[b]);
  });
  Accuracy accuracy;
  for (const Accuracy& part : parts) accuracy.Add(part);
  return accuracy;
}

}  // namespace withy::train
