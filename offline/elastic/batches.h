// Text for measuring importance and for recovery, as padded next-token batches. Neighbours:
// importance.h, recovery.h. The source is a plain text file or the project's corpus.
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
  torch::Tensor tokens;  // [batch, length] int64, padded on the right
  torch::Tensor next;    // [batch * length] int64
  torch::Tensor weight;  // [batch * length] f32: 0 for positions that do not count
};

struct BatchOptions {
  int64_t batch_tokens = 2048;  // padding included
  int64_t window_tokens = 256;  // length of the windows of a plain text
  int64_t count = 32;           // number of batches
  uint64_t seed = 1;
  std::function<void(int64_t, int64_t)> progress = nullptr;  // (batches made, all), for the corpus
};

// Windows of a text file, no longer than the model's context or a batch. A text too short for
// options.count batches gives as many full ones as it can. Errors: of the file system;
// INVALID_ARGUMENT if it is too short for one batch, naming the tokens it has and needs; those of
// ReadShape and MakeTokenizer.
absl::StatusOr<std::vector<Batch>> TextBatches(const engine::GgufFile& model,
                                               const std::string& path,
                                               const BatchOptions& options);

// Records of the training corpus, with every other batch an exercise (train/batches.h). Only the
// assistant's tokens count. Errors: those of MakeTokenizer; INVALID_ARGUMENT for a tokenizer
// without ChatML's turn marks.
absl::StatusOr<std::vector<Batch>> CorpusBatches(const engine::GgufFile& model,
                                                 const BatchOptions& options);

// Splits a batch into pieces of at most 512 tokens, or of one line, to be processed by one thread
// each. The division does not depend on the number of threads, so sums over pieces do not either.
std::vector<Batch> Pieces(const Batch& batch);

// Mean loss over the weighted positions of one batch; differentiable.
torch::Tensor Loss(const Network& network, const Batch& batch, const View& view = {});
// Mean margin: the correct token's logit minus the log-sum-exp of all others (its log odds).
// Differentiable; unlike the loss it never saturates.
torch::Tensor Margin(const Network& network, const Batch& batch, const View& view = {});
// Mean loss over several batches, without gradients.
double MeanLoss(const Network& network, const std::vector<Batch>& batches, const View& view = {});

}  // namespace withy::elastic
