#include "engine/head/draft_head.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/kv/block.h"
#include "engine/model/rows.h"

namespace withy::engine {
namespace {

const Kernels& KernelsOf(const Model& target) {
  Target kernels = BestTarget();
  ParseTarget(target.target(), &kernels);
  return *KernelsFor(kernels);
}

int64_t ParametersOf(const HeadWeights& w) {
  int64_t count = 0;
  for (const PackedMatrix* matrix :
       {&w.fc, &w.q, &w.k, &w.v, &w.attention_out, &w.gate, &w.up, &w.down, &w.output}) {
    count += int64_t{matrix->n_out} * matrix->n_in;
  }
  return count;
}

int64_t PassBytesOf(const HeadWeights& w) {
  size_t bytes = 0;
  for (const PackedMatrix* matrix :
       {&w.q, &w.k, &w.v, &w.attention_out, &w.gate, &w.up, &w.down, &w.output}) {
    bytes += PackedBytes(*matrix);
  }
  return static_cast<int64_t>(bytes);
}

ModelInfo InfoOf(const HeadShape& shape, const HeadWeights& weights, const Model& target) {
  const ModelShape& s = shape.layer;
  const KvGeometry geometry{.layers = 1, .kv_heads = s.kv_heads, .head_dim = s.head_dim};
  ModelInfo info;
  info.name = s.name;
  info.architecture = s.architecture;
  info.layers = 1;
  info.d_model = s.d_model;
  info.heads = s.heads;
  info.kv_heads = s.kv_heads;
  info.head_dim = s.head_dim;
  info.d_ff = s.d_ff;
  info.vocab_size = target.info().vocab_size;
  info.context_length = std::max(s.context_length, target.info().context_length);
  info.parameters = ParametersOf(weights);
  info.weight_bytes = static_cast<int64_t>(weights.bytes);
  info.kv = {.layers = 1,
             .kv_heads = s.kv_heads,
             .head_dim = s.head_dim,
             .block_bytes = geometry.BlockBytes()};
  info.levels.push_back(
      {.weight_bytes = PassBytesOf(weights), .flops_per_token = 2 * ParametersOf(weights)});
  return info;
}

}  // namespace

// The head's pass while it is under way.
class DraftHead::BorrowedPass final : public Pass {
 public:
  explicit BorrowedPass(DraftHead& head) : head_(head) { head_.under_way_ = true; }
  ~BorrowedPass() override {
    head_.pass_->Abandon();
    head_.under_way_ = false;
  }
  bool Run(const std::atomic<bool>* stop, double /*until*/) override {
    return head_.pass_->Run(stop);
  }
  bool WaitsForKv() const override { return false; }
  double Done() const override { return head_.pass_->Done(); }

 private:
  DraftHead& head_;
};

DraftHead::DraftHead(HeadShape shape, const Model& target)
    : shape_(std::move(shape)), kernels_(KernelsOf(target)), pool_(target.threads()) {}

absl::StatusOr<std::unique_ptr<DraftHead>> DraftHead::Open(const std::string& path,
                                                           const Model& target) {
  WITHY_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
  WITHY_ASSIGN_OR_RETURN(HeadShape shape, ReadHead(file));
  WITHY_RETURN_IF_ERROR(CheckHeadFits(path, shape, target.info()));
  if (!target.gives_features()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        ": a draft head reads hidden states that a GPU does not give: set model.device to "
        "cpu, or leave model.head_path out"));
  }
  std::unique_ptr<DraftHead> head(new DraftHead(std::move(shape), target));
  WITHY_ASSIGN_OR_RETURN(head->weights_, LoadHeadWeights(file, head->shape_, target, head->pool_));
  head->info_ = InfoOf(head->shape_, head->weights_, target);
  head->pass_ =
      std::make_unique<HeadPass>(head->shape_, head->weights_, head->kernels_, head->pool_);
  return head;
}

absl::StatusOr<std::unique_ptr<Pass>> DraftHead::Begin(const Batch& batch, float* logits) {
  if (under_way_) return absl::FailedPreconditionError("a pass of the draft head is under way");
  for (size_t i = 0; i < batch.contexts.size(); ++i) {
    if (batch.contexts[i].head != nullptr) continue;
    return absl::InvalidArgumentError(absl::StrCat("context ", i, " has no hidden states"));
  }
  WITHY_RETURN_IF_ERROR(CheckBatch(batch, info_));
  WITHY_RETURN_IF_ERROR(pass_->Start(batch, logits));
  return std::make_unique<BorrowedPass>(*this);
}

}  // namespace withy::engine
