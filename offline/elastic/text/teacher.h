// The whole model as writer and as teacher: text as it writes itself, and its probabilities of each
// next token, which the LoRA of a level learns (recovery.h). Computed by the engine, which needs no
// LibTorch. Neighbour: batches.h.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/bundle.h"
#include "offline/elastic/text/batches.h"
#include "offline/train/workers.h"

namespace withy::elastic {

// Not thread-safe.
class Teacher {
 public:
  // `cache_dir`: for the model's packed file. Errors: as engine::OpenBundle; INVALID_ARGUMENT for a
  // vocabulary of fewer than kTaught tokens.
  static absl::StatusOr<std::unique_ptr<Teacher>> Open(const std::string& model,
                                                       const std::string& cache_dir, int threads);

  // Number of batches that Write makes at once.
  int64_t BatchesAtOnce(const BatchOptions& options) const;

  // Batches of windows that the model writes, labelled: each begins as a user's message begins by
  // the model's chat template (else as a text), and goes on through turns as the model does. Tokens
  // are drawn from its kTaught most probable ones. `first`: number of the first batch; a batch
  // depends on its number and options.seed alone. Errors: as Model::Forward.
  absl::StatusOr<std::vector<Batch>> Write(int64_t first, const BatchOptions& options);

  // Adds the model's probabilities to a batch of given text. Errors: as Model::Forward.
  absl::Status Label(Batch* batch);

 private:
  // Probable next tokens at one position, most probable first.
  struct Probable {
    std::vector<int32_t> ids;
    std::vector<float> logs;  // natural logarithms of their probabilities
  };

  Teacher(engine::ModelBundle bundle, std::vector<int32_t> beginning, int threads)
      : bundle_(std::move(bundle)), beginning_(std::move(beginning)), workers_(threads) {}

  engine::Model& model() { return *bundle_.model; }
  int64_t LengthOf(const BatchOptions& options) const;
  static Probable MostProbable(std::span<const float> logits);
  // One for each row of logits.
  std::vector<Probable> MostProbable(int64_t rows) const;
  static void SetLabel(const Probable& probable, int64_t position, Batch* batch);

  engine::ModelBundle bundle_;
  const std::vector<int32_t> beginning_;
  const train::Workers workers_;
  std::vector<float> logits_;
};

}  // namespace withy::elastic
