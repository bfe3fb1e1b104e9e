// Runs a TLM over windows of token ids: embedding, shared layers, score tower, decision tower,
// heads. Neighbours: weights.h (its weights), attention.h, elementwise.h, kernels.h; tlm.h makes
// windows from text. One thread takes a block of rows through a whole layer, so that a layer costs
// one barrier and its activations stay in that core's cache. Source: MobileBERT (arXiv 2004.02984);
// ElastiLM 3.3.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/thread_pool.h"
#include "engine/encoder/attention.h"
#include "engine/encoder/weights.h"

namespace withy::engine {

enum class EncoderTower : uint8_t { kShared = 0, kScore = 1, kDecision = 2 };

struct EncoderOutput {
  std::vector<float> keep;    // [tokens of all windows]: logit of "retain"
  std::vector<float> prompt;  // [windows, prompt levels]: logits
  std::vector<float> model;   // [windows, model levels]: logits
};

// Receives the hidden states [tokens of all windows, hidden] after a layer. Layer -1 of the shared
// tower is the embeddings.
using EncoderTap =
    std::function<void(EncoderTower tower, int32_t layer, std::span<const float> hidden)>;

// Not thread-safe: one Run() at a time. Borrows weights, pool and kernels.
class Encoder {
 public:
  Encoder(const TlmWeights& weights, ThreadPool* pool, const Kernels& kernels);
  ~Encoder();

  // windows[i]: 1 to shape.window ids of the vocabulary, [CLS] first. A window's outputs are
  // bit-identical for any other windows and number of threads. Errors: InvalidArgument naming
  // window, value and limit; DataLoss if an output is not finite (damaged weights).
  absl::Status Run(std::span<const std::vector<int32_t>> windows, EncoderOutput* out);

  // For tests: with a tap, all rows of all layers are computed.
  void SetTap(EncoderTap tap) { tap_ = std::move(tap); }

 private:
  // Rows [begin, begin + rows) of the batch, which are the rows from `first` on of one window.
  struct Block {
    int window = 0;
    int first = 0;
    int begin = 0;
    int rows = 0;
  };
  // One pass over the blocks: finishes a layer, then starts the next one up to its keys and values,
  // which need nothing from other blocks.
  struct Stage {
    const EncoderLayer* finish = nullptr;   // null: compute the embedding
    const float* in = nullptr;              // residual input of the finished layer
    float* out = nullptr;                   // its output
    bool only_cls = false;                  // only row 0 of each window is needed
    const float* keep_from = nullptr;       // input rows of the score head
    const EncoderLayer* project = nullptr;  // next layer; null at the end
    const float* project_in = nullptr;
    EncoderTower tower = EncoderTower::kShared;  // of `finish`, for the tap
    int32_t layer = -1;
  };
  struct Scratch;

  absl::Status CheckWindows(std::span<const std::vector<int32_t>> windows) const;
  void Reserve(std::span<const std::vector<int32_t>> windows);
  std::vector<Stage> PlanStages();
  void RunStage(const Stage& stage, int index, std::span<const std::vector<int32_t>> windows,
                EncoderOutput* out);
  void Tap(const Stage& stage) const;

  void Embed(const Block& block, std::span<const int32_t> ids, Scratch* s);
  void Project(const EncoderLayer& layer, const Block& block, const float* in,
               AttentionMemory* memory, Scratch* s);
  void Finish(const Stage& stage, const Block& block, const AttentionMemory& memory, Scratch* s);
  void FeedForward(const FeedForwardWeights& ffn, int rows, Scratch* s);
  void Keep(const float* from, const Block& block, Scratch* s, EncoderOutput* out);
  void Decide(int windows, EncoderOutput* out);

  void Prepare(const float* x, ptrdiff_t stride, int rows, int n_in, unsigned forms,
               Activations* out) const;
  void Apply(const LinearWeights& linear, const Activations& x, int rows, float* y,
             ptrdiff_t stride) const;
  static Scratch& ThreadScratchOf();

  const TlmWeights& weights_;
  ThreadPool* pool_;
  const Kernels& kernels_;
  EncoderTap tap_;
  std::vector<int> window_rows_;
  std::vector<int> window_begin_;
  std::vector<Block> blocks_;
  std::vector<Block> cls_blocks_;
  AlignedArray<float> x_;            // [rows, hidden]: shared layers, then the decision tower
  AlignedArray<float> y_;            // [rows, hidden]: the score tower
  AlignedArray<float> layer_input_;  // [rows, bottleneck]
  AlignedArray<float> q_;            // [rows, bottleneck]
  AttentionMemory memory_[2];        // of the layer being finished and the one being started
};

}  // namespace withy::engine
