#include "engine/model/packed_model.h"

#include <utility>

#include "base/status.h"
#include "engine/model/devices.h"

namespace withy::engine {

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
      layer_tap_(options.layer_tap),
      max_piece_rows_(options.max_piece_rows),
      info_(DescribeModel(*file_, facts_)) {}

absl::StatusOr<std::unique_ptr<Model>> PackedModel::Open(std::unique_ptr<PackedFile> file,
                                                         const ModelOptions& options) {
  WITHY_ASSIGN_OR_RETURN(ModelFacts facts, ReadFacts(*file, options.levels));
  std::unique_ptr<PackedModel> model(new PackedModel(std::move(file), std::move(facts), options));
  WITHY_ASSIGN_OR_RETURN(model->executor_,
                         ChooseExecutor(*model->file_, model->facts_, options, model->layer_tap_));
  return model;
}

absl::StatusOr<std::unique_ptr<Pass>> PackedModel::Begin(const Batch& batch, float* logits) {
  if (idle_.empty()) {
    idle_.push_back(std::make_unique<PlannedPass>(facts_, info_, executor_->NewRun(),
                                                  max_piece_rows_, layer_tap_ != nullptr));
  }
  WITHY_RETURN_IF_ERROR(idle_.back()->Start(batch, logits));
  auto pass = std::make_unique<BorrowedPass>(*this, std::move(idle_.back()));
  idle_.pop_back();
  return pass;
}

}  // namespace withy::engine
