// Cuts the endless training corpus into batches of samples of like length, so that little is
// padding and a batch attends within records only. Which batch comes n-th depends on the options
// alone.
#pragma once

#include <cstdint>
#include <vector>

#include "offline/corpus/generator.h"
#include "offline/corpus/rng.h"
#include "offline/train/chat_encoder.h"

namespace withy::train {

// What the pocket models are trained and recovered with.
inline constexpr int kShortenedPercent = 33;

struct BatchOptions {
  corpus::Spec spec;
  int64_t tokens = 1536;  // a batch holds at most this many tokens, padding included
  // Every other batch is an exercise, many answers a token: at first, while the batches counted
  // over the run are below this number, echoes (drills.h);
  int64_t echo_batches = 0;
  // then, when this is positive, chats with many questions on one context, chats of many sums, and
  // recall (drills.h), which get harder up to this number.
  int64_t exercise_ramp_batches = 0;
  // From this batch on most exercises are on passages instead of screens, until noise begins.
  int64_t passages_from_batch = 0;
  // The first windows (of BatchStream::kWindowRecords records) hold easy questions only.
  int64_t easy_windows = 0;
  int64_t max_sample_tokens = 640;  // longer records are left out
  // From this batch on half of the exercises' wordings are garbled (corpus/author.h), and so many
  // of the other records have words left out (corpus/shorten.h).
  int64_t noise_from_batch = 0;
  int shortened_percent = 0;
};

// Sorts by length (stably) and cuts into batches of at most `tokens` tokens, padding included, or
// of one sample.
std::vector<std::vector<Sample>> CutBatches(std::vector<Sample> samples, int64_t tokens);

// Position in the stream of batches: what a checkpoint keeps.
struct BatchPosition {
  int64_t count = 0;         // batches handed out so far
  int64_t window = 0;        // windows of kWindowRecords records
  int64_t window_since = 0;  // batches handed out before its first
  int64_t batch = 0;         // within the window
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
  // Whether the batch after this many has what noise_from_batch says.
  bool Noisy(int64_t count) const { return count >= options_.noise_from_batch; }
  void LoadWindow();
  std::vector<Sample> EchoBatch(corpus::Rng& rng) const;
  std::vector<Sample> ExerciseBatch(corpus::Rng& rng) const;
  std::vector<Sample> RecallBatch(corpus::Rng& rng, double hardness) const;
  // Chats of one task without small talk: `contexts` of them, each with up to `follow_ups`
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
