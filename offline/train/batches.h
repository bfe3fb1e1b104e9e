// Divides the endless training corpus into batches of samples of similar length, so that there is
// little padding and attention stays within records. The n-th batch depends only on the options.
#pragma once

#include <cstdint>
#include <vector>

#include "offline/corpus/generator.h"
#include "offline/corpus/rng.h"
#include "offline/train/chat_encoder.h"

namespace withy::train {

// Per cent of records with dropped words in training and recovery of the pocket models.
inline constexpr int kShortenedPercent = 33;

struct BatchOptions {
  corpus::Spec spec;
  int64_t tokens = 1536;  // maximum tokens of a batch, padding included
  // Every other batch is an exercise with many answers per token. While fewer than `echo_batches`
  // batches were made in the run, exercises are echoes (drills.h).
  int64_t echo_batches = 0;
  // After that, if positive: chats with many questions on one context, chats with many sums, and
  // recall (drills.h). Their difficulty rises until this batch.
  int64_t exercise_ramp_batches = 0;
  // From this batch until noise begins, most exercises are about passages instead of screens.
  int64_t passages_from_batch = 0;
  // Number of initial windows (BatchStream::kWindowRecords records each) with easy questions only.
  int64_t easy_windows = 0;
  int64_t max_sample_tokens = 640;  // longer records are skipped
  // From this batch on half of the exercises' wordings are garbled (corpus/author.h), and
  // `shortened_percent` of the other records have words dropped (corpus/shorten.h).
  int64_t noise_from_batch = 0;
  int shortened_percent = 0;
};

// Sorts stably by length and divides into batches of at most `tokens` tokens, padding included, or
// of one sample.
std::vector<std::vector<Sample>> CutBatches(std::vector<Sample> samples, int64_t tokens);

// Position in the stream of batches, for checkpoints.
struct BatchPosition {
  int64_t count = 0;         // batches returned so far
  int64_t window = 0;        // index of the current window of kWindowRecords records
  int64_t window_since = 0;  // batches returned before this window
  int64_t batch = 0;         // index within the window
};

// Not thread-safe; `encoder` must outlive it.
class BatchStream {
 public:
  static constexpr uint64_t kWindowRecords = 480;

  BatchStream(const BatchOptions& options, const ChatEncoder& encoder)
      : options_(options), encoder_(encoder) {}

  std::vector<Sample> Next();
  BatchPosition position() const { return position_; }
  void Seek(const BatchPosition& position);

 private:
  // Whether the batch with this index has the noise of noise_from_batch.
  bool Noisy(int64_t count) const { return count >= options_.noise_from_batch; }
  void LoadWindow();
  std::vector<Sample> EchoBatch(corpus::Rng& rng) const;
  std::vector<Sample> ExerciseBatch(corpus::Rng& rng) const;
  std::vector<Sample> RecallBatch(corpus::Rng& rng, double hardness) const;
  // Chats of one task without small talk: `contexts` contexts, each with up to `follow_ups`
  // questions after the first.
  std::vector<Sample> DenseBatch(corpus::Rng& rng, corpus::Task task, int contexts, int follow_ups,
                                 int min_difficulty, int max_difficulty) const;

  BatchOptions options_;
  const ChatEncoder& encoder_;
  BatchPosition position_;
  bool loaded_ = false;
  std::vector<std::vector<Sample>> batches_;
};

}  // namespace withy::train
