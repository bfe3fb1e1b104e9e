// Text for measuring importance and for recovery, as padded next-token batches. Neighbours:
// importance.h, recovery.h. The source is a plain text file or the project's corpus.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "offline/elastic/network.h"

namespace withy::elastic {

// Next tokens whose probabilities a teacher gives at each position; the others count as one.
inline constexpr int64_t kTaught = 32;

struct Batch {
  torch::Tensor tokens;  // [batch, length] int64, padded on the right
  torch::Tensor next;    // [batch * length] int64
  torch::Tensor weight;  // [batch * length] f32: 0 for positions that do not count
  // The whole model's most probable next tokens (teacher.h), most probable first, and the natural
  // logarithms of their probabilities; undefined: not asked. [batch * length, kTaught], int32 and
  // f16.
  torch::Tensor taught_ids = {}, taught_logs = {};

  void AddLabels();  // makes both, of zeros
};

// Tokens of one text, each with its weight in the loss (the first one's does not count).
struct TextLine {
  std::vector<int32_t> tokens;
  std::vector<float> weight;
};
Batch BatchOf(std::span<const TextLine> lines);

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

// A batch as tensors, for saving, and back. The latter returns false if they are none.
std::vector<torch::Tensor> TensorsOf(const std::vector<Batch>& batches);
bool BatchesFrom(const std::vector<torch::Tensor>& tensors, std::vector<Batch>* batches);

// Mean loss over the weighted positions of one batch; differentiable.
torch::Tensor Loss(const Network& network, const Batch& batch, const View& view = {});
// Mean divergence of the view's probabilities from the teacher's, KL(teacher || view), over the
// weighted positions of a labelled batch; differentiable once. Products of the output head are as
// those of the layers: its rounding is far below what is learnt.
torch::Tensor Divergence(const Network& network, const Batch& batch, const View& view = {});
// What levels learn and are judged by: the divergence of a labelled batch, the loss of another.
torch::Tensor Judge(const Network& network, const Batch& batch, const View& view);
// Mean margin: the correct token's logit minus the log-sum-exp of all others (its log odds).
// Differentiable; unlike the loss it never saturates.
torch::Tensor Margin(const Network& network, const Batch& batch, const View& view = {});
// Mean loss over several batches, without gradients.
double MeanLoss(const Network& network, const std::vector<Batch>& batches, const View& view = {});

}  // namespace withy::elastic
