#include "engine/model/packed_model.h"

#include <utility>

#include "base/status.h"

namespace withy::engine {
namespace {

ActivationFormsOf FormsOf(const ModelWeights& weights) {
  ActivationFormsOf forms;
  for (const LayerWeights& w : weights.layers) {
    for (const PackedMatrix* m : {&w.q, &w.k, &w.v, &w.gate, &w.up})
      forms.input |= FormFor(m->type);
    forms.attention |= FormFor(w.output.type);
    forms.neurons |= FormFor(w.down.type);
  }
  for (const std::vector<LoraWeights>& layers : weights.lora) {
    for (const LoraWeights& lora : layers) {
      if (lora.attention) {
        forms.input |= FormFor(lora.attention_in.type);
        forms.attention |= FormFor(lora.attention_out_in.type);
      }
      if (lora.mlp) {
        forms.input |= FormFor(lora.ffn_in.type);
        forms.neurons |= FormFor(lora.down_in.type);
      }
    }
  }
  forms.head = FormFor(weights.head.type);
  return forms;
}

// And the full one behind them.
std::vector<LevelSpec> AllLevels(const ModelWeights& weights) {
  std::vector<LevelSpec> levels = weights.levels;
  const ModelShape& s = weights.shape;
  LevelSpec& full = levels.emplace_back(LevelSpec{.percent = 100});
  full.layers.assign(static_cast<size_t>(s.layers), LayerExtent{s.heads, s.d_ff});
  return levels;
}

}  // namespace

// Gives the pass back when it is over.
class PackedModel::BorrowedPass final : public Pass {
 public:
  BorrowedPass(PackedModel& model, std::unique_ptr<ForwardPass> pass)
      : model_(model), pass_(std::move(pass)) {}
  ~BorrowedPass() override {
    pass_->Abandon();
    model_.idle_.push_back(std::move(pass_));
  }
  bool Run(const std::atomic<bool>* stop, double until) override { return pass_->Run(stop, until); }
  double Done() const override { return pass_->Done(); }

 private:
  PackedModel& model_;
  std::unique_ptr<ForwardPass> pass_;
};

PackedModel::PackedModel(std::unique_ptr<PackedFile> file, ModelWeights weights,
                         std::unique_ptr<ThreadPool> pool, const Kernels& kernels,
                         const ModelOptions& options)
    : file_(std::move(file)),
      weights_(std::move(weights)),
      pool_(std::move(pool)),
      kernels_(kernels),
      levels_(AllLevels(weights_)),
      layer_tap_(options.layer_tap),
      max_piece_rows_(options.max_piece_rows),
      info_(DescribeModel(*file_, weights_)) {}

absl::StatusOr<std::unique_ptr<Pass>> PackedModel::Begin(const Batch& batch, float* logits) {
  if (idle_.empty()) {
    idle_.push_back(
        std::make_unique<ForwardPass>(ModelParts{.weights = weights_,
                                                 .levels = levels_,
                                                 .info = info_,
                                                 .kernels = kernels_,
                                                 .pool = *pool_,
                                                 .geometry = {.layers = info_.layers,
                                                              .kv_heads = info_.kv_heads,
                                                              .head_dim = info_.head_dim},
                                                 .forms = FormsOf(weights_),
                                                 .layer_tap = layer_tap_,
                                                 .max_piece_rows = max_piece_rows_}));
  }
  WITHY_RETURN_IF_ERROR(idle_.back()->Start(batch, logits));
  auto pass = std::make_unique<BorrowedPass>(*this, std::move(idle_.back()));
  idle_.pop_back();
  return pass;
}

}  // namespace withy::engine
