#include "elasticizer/train/batches.h"

#include <algorithm>
#include <utility>

namespace withy::train {
namespace {

constexpr int kEasyDifficulty = 2;

}  // namespace

std::vector<std::vector<Sample>> CutBatches(std::vector<Sample> samples, int64_t tokens) {
  std::stable_sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) {
    return a.tokens.size() < b.tokens.size();
  });
  std::vector<std::vector<Sample>> batches;
  std::vector<Sample> batch;
  for (Sample& sample : samples) {
    // Sorted, so this sample is the longest so far and sets the padded length.
    const int64_t padded = static_cast<int64_t>(sample.tokens.size() * (batch.size() + 1));
    if (!batch.empty() && padded > tokens) batches.push_back(std::exchange(batch, {}));
    batch.push_back(std::move(sample));
  }
  if (!batch.empty()) batches.push_back(std::move(batch));
  return batches;
}

void BatchStream::Seek(const BatchPosition& position) {
  position_ = position;
  loaded_ = false;
}

Sample EchoSample(corpus::Rng& rng, int32_t vocab_size, int64_t phrase_tokens) {
  Sample sample;
  for (int64_t i = 0; i < phrase_tokens; ++i) {
    sample.tokens.push_back(static_cast<int32_t>(rng.Below(static_cast<uint32_t>(vocab_size))));
  }
  sample.answer.assign(sample.tokens.size(), false);
  sample.last_answer = sample.tokens.size();
  sample.tokens.insert(sample.tokens.end(), sample.tokens.begin(),
                       sample.tokens.begin() + phrase_tokens);
  // The first token of the second saying cannot be known.
  sample.answer.push_back(false);
  sample.answer.resize(sample.tokens.size(), true);
  return sample;
}

std::vector<Sample> BatchStream::EchoBatch() const {
  corpus::Rng rng(options_.spec.seed + 7919 * static_cast<uint64_t>(position_.count));
  const int64_t phrase_tokens = rng.Between(8, 48);
  std::vector<Sample> samples;
  for (int64_t used = 0; used + 2 * phrase_tokens <= options_.tokens; used += 2 * phrase_tokens) {
    samples.push_back(EchoSample(rng, encoder_.vocab_size(), phrase_tokens));
  }
  return samples;
}

std::vector<Sample> BatchStream::Next() {
  const int64_t count = position_.count++;
  if (count < options_.echo_batches && count % 2 == 1) return EchoBatch();
  if (!loaded_) LoadWindow();
  if (position_.batch == static_cast<int64_t>(batches_.size())) {
    position_.window += 1;
    position_.batch = 0;
    LoadWindow();
  }
  return batches_[static_cast<size_t>(position_.batch++)];
}

void BatchStream::LoadWindow() {
  corpus::Spec spec = options_.spec;
  if (position_.window < options_.easy_windows) spec.max_difficulty = kEasyDifficulty;
  const corpus::Generator generator(spec);
  std::vector<Sample> samples;
  const uint64_t first = static_cast<uint64_t>(position_.window) * kWindowRecords;
  for (uint64_t i = first; i < first + kWindowRecords; ++i) {
    Sample sample = encoder_.Encode(generator.At(i));
    if (static_cast<int64_t>(sample.tokens.size()) <= options_.max_sample_tokens)
      samples.push_back(std::move(sample));
  }
  batches_ = CutBatches(std::move(samples), options_.tokens);
  corpus::Rng rng(options_.spec.seed + static_cast<uint64_t>(position_.window));
  rng.Shuffle(batches_);
  loaded_ = true;
}

}  // namespace withy::train
