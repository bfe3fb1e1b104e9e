#include "offline/train/batches.h"

#include <algorithm>
#include <utility>

#include "offline/corpus/shorten.h"
#include "offline/train/drills.h"

namespace withy::train {
namespace {

constexpr int kEasyDifficulty = 2;
constexpr int kSums = 10;  // per chat
constexpr int kCatalogues = 5;
constexpr int kFollowUps = 11;
constexpr int kGarbledPercent = 50;
constexpr uint64_t kDenseRecords = 8;  // more than fit a batch

// Number of exercises of each kind among 100; the rest is recall.
struct Shares {
  int math = 0;
  int api = 0;
  int qa = 0;
  int ui = 0;
  int reply = 0;
};
// The model first learns to find values on screens, when most exercises are screens, then in
// passages, when most are passages. A few of both teach neither.
constexpr Shares kScreens = {.math = 20, .api = 5, .qa = 25, .ui = 35, .reply = 10};
constexpr Shares kPassages = {.math = 15, .api = 0, .qa = 60, .ui = 10, .reply = 10};
constexpr Shares kAll = {.math = 20, .api = 5, .qa = 40, .ui = 15, .reply = 15};

}  // namespace

std::vector<std::vector<Sample>> CutBatches(std::vector<Sample> samples, int64_t tokens) {
  std::stable_sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) {
    return a.tokens.size() < b.tokens.size();
  });
  std::vector<std::vector<Sample>> batches;
  std::vector<Sample> batch;
  for (Sample& sample : samples) {
    // Samples are sorted, so this one is the longest so far and sets the padded length.
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

std::vector<Sample> BatchStream::EchoBatch(corpus::Rng& rng) const {
  const int64_t phrase_tokens = rng.Between(8, 48);
  std::vector<Sample> samples;
  for (int64_t used = 0; used + 2 * phrase_tokens <= options_.tokens; used += 2 * phrase_tokens) {
    samples.push_back(EchoSample(rng, encoder_.vocab_size(), phrase_tokens));
  }
  return samples;
}

std::vector<Sample> BatchStream::RecallBatch(corpus::Rng& rng, double hardness) const {
  const RecallShape shape = DrawRecallShape(rng, hardness);
  std::vector<Sample> samples;
  int64_t used = 0;
  do {
    samples.push_back(RecallSample(rng, encoder_.vocab_size(), shape));
    used += static_cast<int64_t>(samples.back().tokens.size());
  } while (used + static_cast<int64_t>(samples.back().tokens.size()) <= options_.tokens);
  return samples;
}

std::vector<Sample> BatchStream::DenseBatch(corpus::Rng& rng, corpus::Task task, int contexts,
                                            int follow_ups, int min_difficulty,
                                            int max_difficulty) const {
  corpus::Spec spec = options_.spec;
  spec.seed += rng.Below(1u << 30);
  spec.five_shot_percent = 0;
  spec.few_shot_percent = 0;
  spec.exact_shots = contexts - 1;
  spec.follow_ups = follow_ups;
  spec.max_filler = 0;
  // The word order of a sum is its meaning, so sums are not garbled.
  const bool garbled = task != corpus::Task::kMath && Noisy(position_.count - 1);
  spec.garbled_percent = garbled ? kGarbledPercent : 0;
  spec.max_difficulty = max_difficulty;
  const corpus::Generator generator(spec);
  std::vector<Sample> samples;
  for (uint64_t i = 0; i < kDenseRecords; ++i) {
    samples.push_back(
        encoder_.Encode(generator.At(i, task, rng.Between(min_difficulty, max_difficulty))));
  }
  std::vector<std::vector<Sample>> batches = CutBatches(std::move(samples), options_.tokens);
  return std::move(batches[rng.Below(static_cast<uint32_t>(batches.size()))]);
}

std::vector<Sample> BatchStream::ExerciseBatch(corpus::Rng& rng) const {
  using corpus::Task;
  const double hardness = std::min(1.0, static_cast<double>(position_.count) /
                                            static_cast<double>(options_.exercise_ramp_batches));
  const int hardest =
      std::min(corpus::kMaxDifficulty, 1 + static_cast<int>(corpus::kMaxDifficulty * hardness));
  const int64_t count = position_.count - 1;
  const Shares& shares = Noisy(count)                            ? kAll
                         : count >= options_.passages_from_batch ? kPassages
                                                                 : kScreens;
  int roll = rng.Between(0, 99);
  const auto is = [&](int share) {
    roll -= share;
    return roll < 0;
  };
  if (is(shares.math)) return DenseBatch(rng, Task::kMath, kSums, 0, 1, corpus::kMaxDifficulty);
  if (is(shares.api)) return DenseBatch(rng, Task::kApi, kCatalogues, 0, 1, hardest);
  const int contexts = rng.Between(1, 2);
  if (is(shares.qa)) {
    // Questions about two facts occur only at the highest difficulty and are learnt last.
    const int least = rng.Between(0, 1) == 1 ? hardest : 1;
    return DenseBatch(rng, Task::kQa, contexts, kFollowUps, least, hardest);
  }
  if (is(shares.ui)) return DenseBatch(rng, Task::kUi, contexts, kFollowUps, 1, hardest);
  if (is(shares.reply)) return DenseBatch(rng, Task::kReply, contexts, kFollowUps, 1, hardest);
  return RecallBatch(rng, hardness);
}

std::vector<Sample> BatchStream::Next() {
  const int64_t count = position_.count++;
  corpus::Rng rng(options_.spec.seed + 7919 * static_cast<uint64_t>(count));
  if (count % 2 == 1 && count < options_.echo_batches) return EchoBatch(rng);
  if (count % 2 == 1 && options_.exercise_ramp_batches > 0) return ExerciseBatch(rng);
  if (!loaded_) LoadWindow();
  if (position_.batch == static_cast<int64_t>(batches_.size())) {
    position_.window += 1;
    position_.window_since = count;
    position_.batch = 0;
    LoadWindow();
  }
  return batches_[static_cast<size_t>(position_.batch++)];
}

void BatchStream::LoadWindow() {
  const int shortened_percent = Noisy(position_.window_since) ? options_.shortened_percent : 0;
  corpus::Spec spec = options_.spec;
  if (position_.window < options_.easy_windows) spec.max_difficulty = kEasyDifficulty;
  const corpus::Generator generator(spec);
  std::vector<Sample> samples;
  const uint64_t first = static_cast<uint64_t>(position_.window) * kWindowRecords;
  for (uint64_t i = first; i < first + kWindowRecords; ++i) {
    corpus::Record record = generator.At(i);
    corpus::Rng chance(options_.spec.seed + 104729 * i);
    if (chance.Chance(shortened_percent)) record = corpus::Shorten(record, chance);
    Sample sample = encoder_.Encode(record);
    if (static_cast<int64_t>(sample.tokens.size()) <= options_.max_sample_tokens)
      samples.push_back(std::move(sample));
  }
  batches_ = CutBatches(std::move(samples), options_.tokens);
  corpus::Rng rng(options_.spec.seed + static_cast<uint64_t>(position_.window));
  rng.Shuffle(batches_);
  loaded_ = true;
}

}  // namespace withy::train
