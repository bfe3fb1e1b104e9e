#include "engine/model/packed_model.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "engine/model/devices.h"
#include "engine/model/plan_weights.h"

namespace withy::engine {
namespace {

// Rows computed at once where nothing else is said. A weight budget counts the embeddings of so
// many.
constexpr int32_t kPieceRows = 256;

}  // namespace

// Returns the pass to the model's idle passes when it is destroyed.
class PackedModel::BorrowedPass final : public Pass {
 public:
  BorrowedPass(PackedModel& model, std::unique_ptr<PlannedPass> pass)
      : model_(model), pass_(std::move(pass)) {}
  ~BorrowedPass() override {
    pass_->Abandon();
    model_.idle_.push_back(std::move(pass_));
  }
  bool Run(const std::atomic<bool>* stop, double until) override { return pass_->Run(stop, until); }
  absl::Status status() const override { return pass_->status(); }
  bool WaitsForKv() const override { return pass_->WaitsForKv(); }
  double Done() const override { return pass_->Done(); }

 private:
  PackedModel& model_;
  std::unique_ptr<PlannedPass> pass_;
};

PackedModel::PackedModel(std::unique_ptr<PackedFile> file, ModelFacts facts,
                         const ModelOptions& options)
    : file_(std::move(file)),
      facts_(std::move(facts)),
      layer_tap_(options.hooks.layer_tap),
      max_piece_rows_(options.max_piece_rows),
      on_lost_(options.on_lost),
      info_(DescribeModel(*file_, facts_)) {}

absl::StatusOr<std::unique_ptr<Model>> PackedModel::Open(std::unique_ptr<PackedFile> file,
                                                         OpenedDevice device,
                                                         const ModelOptions& options) {
  WITHY_ASSIGN_OR_RETURN(ModelFacts facts, ReadFacts(*file, options.levels, options.window));
  std::unique_ptr<PackedModel> model(new PackedModel(std::move(file), std::move(facts), options));
  WITHY_RETURN_IF_ERROR(model->PlaceWeights(options));
  WITHY_ASSIGN_OR_RETURN(model->executor_,
                         ChooseExecutor(std::move(device), *model->file_, model->facts_, options,
                                        model->layer_tap_, model->stream_.get(), &model->on_gpu_));
  if (model->on_gpu_ && model->stream_ == nullptr)
    model->file_->ForgetData();  // the GPU has the weights
  if (model->max_piece_rows_ == 0) {
    const int32_t rows = model->stream_ == nullptr ? model->executor_->piece_rows() : 0;
    model->max_piece_rows_ = std::max(rows, kPieceRows);
  }
  return model;
}

absl::Status PackedModel::PlaceWeights(const ModelOptions& options) {
  if (options.weight_budget_bytes == 0) return absl::OkStatus();
  auto plan =
      PlanWeights(file_->tensors(), facts_,
                  {.budget_bytes = options.weight_budget_bytes,
                   .whole_layers = options.hooks.stream_whole_layers,
                   .max_rows = options.max_piece_rows > 0 ? options.max_piece_rows : kPieceRows});
  if (!plan.ok()) return Annotate(plan.status(), file_->path());
  if (!plan->streams()) return file_->MoveToMemory();
  WITHY_ASSIGN_OR_RETURN(stream_,
                         WeightStream::Start(*std::move(plan), options.stream, file_.get()));
  return absl::OkStatus();
}

WeightStreamStats PackedModel::weight_stats() const {
  return stream_ == nullptr ? WeightStreamStats() : stream_->stats();
}

bool PackedModel::Rest() { return stream_ == nullptr && !on_gpu_ && file_->Rest(); }

absl::Status PackedModel::Wake() {
  wakes_ = true;
  const absl::Status awake = file_->Wake();
  wakes_ = false;
  if (awake.ok()) return awake;
  if (on_lost_) on_lost_(awake);
  return absl::UnavailableError(awake.message());  // opened again, the model may have them
}

absl::StatusOr<std::unique_ptr<Pass>> PackedModel::Begin(const Batch& batch, float* logits) {
  if (!batch.feature_layers.empty() && !gives_features()) {
    return absl::InvalidArgumentError("inputs of layers are not given by a GPU");
  }
  WITHY_RETURN_IF_ERROR(Wake());
  if (idle_.empty()) {
    idle_.push_back(std::make_unique<PlannedPass>(
        facts_, info_, executor_->NewRun(), max_piece_rows_, layer_tap_ != nullptr, stream_.get()));
  }
  WITHY_RETURN_IF_ERROR(idle_.back()->Start(batch, logits));
  auto pass = std::make_unique<BorrowedPass>(*this, std::move(idle_.back()));
  idle_.pop_back();
  return pass;
}

}  // namespace withy::engine
