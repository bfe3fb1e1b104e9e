// The text that units are judged on and levels recovered with, as padded batches of next-token
// questions. Neighbours: importance.h, recovery.h. Comes from a plain text file or from the
// project's own corpus.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "offline/elastic/network.h"

namespace withy::elastic {

struct Batch {
  torch::Tensor tokens;  // [batch, length] int64, padded at the right
  torch::Tensor next;    // [batch * length] int64
  torch::Tensor weight;  // [batch * length] f32: 0 where nothing is asked
};

struct BatchOptions {
  int64_t batch_tokens = 2048;  // padding included
  int64_t window_tokens = 256;  // a plain text is cut so
  int64_t count = 32;           // batches
  uint64_t seed = 1;
  std::function<void(int64_t, int64_t)> progress = nullptr;  // (batches made, all), of the corpus
};

// Windows of a text file, no longer than the model's context or a batch. A text that is too short
// for options.count batches gives as many whole ones as it holds. Errors: from the disk;
// INVALID_ARGUMENT when it does not hold one, naming how many tokens it has and needs; those of
// ReadShape and MakeTokenizer.
absl::StatusOr<std::vector<Batch>> TextBatches(const engine::GgufFile& model,
                                               const std::string& path,
                                               const BatchOptions& options);

// Records of the training corpus, every other batch an exercise (train/batches.h), asked for the
// assistant's tokens. Errors: those of MakeTokenizer;
// INVALID_ARGUMENT for a tokenizer without ChatML's turn marks.
absl::StatusOr<std::vector<Batch>> CorpusBatches(const engine::GgufFile& model,
                                                 const BatchOptions& options);

// A batch in pieces for one thread each: of at most 512 tokens, or of one line. How many does not
// depend on the threads, so neither do sums over them.
std::vector<Batch> Pieces(const Batch& batch);

// Mean loss of the weighted positions of one batch; differentiable.
torch::Tensor Loss(const Network& network, const Batch& batch, const View& view = {});
// Mean of what the right token's logit is above the log-sum-exp of all others: the log of its odds.
// Differentiable, and other than the loss never flat.
torch::Tensor Margin(const Network& network, const Batch& batch, const View& view = {});
// Over several batches, without gradients.
double MeanLoss(const Network& network, const std::vector<Batch>& batches, const View& view = {});

}  // namespace withy::elastic
