#include "engine/model/planned_pass.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "engine/model/emit.h"

namespace withy::engine {

PlannedPass::PlannedPass(const ModelFacts& facts, const ModelInfo& info,
                         std::unique_ptr<ProgramRun> run, int32_t max_piece_rows, bool tap,
                         WeightStream* stream)
    : facts_(facts),
      info_(info),
      run_(std::move(run)),
      max_piece_rows_(max_piece_rows),
      tap_(tap),
      stream_(stream) {}

absl::Status PlannedPass::Start(const Batch& batch, float* logits) {
  WITHY_RETURN_IF_ERROR(CheckBatch(batch, info_));
  status_ = absl::OkStatus();
  batch_ = batch;
  logits_ = logits;
  begin_row_ = end_row_ = logits_rows_ = 0;
  return absl::OkStatus();
}

bool PlannedPass::Run(const std::atomic<bool>* stop, double until) {
  while (end_row_ > begin_row_ || NextPiece()) {
    const int32_t wanted = OpsUntil(until);
    const int32_t ready = OpsReady();
    const int32_t end = std::min(wanted, ready);
    if (stream_ != nullptr && run_->ops_done() < end) {
      const int32_t arrived = AwaitWeights(stop);
      if (arrived <= run_->ops_done()) return false;
      if (arrived < end) {
        run_->Run(stop, arrived);
        if (FailedRun() || (stop != nullptr && *stop)) return false;
        continue;
      }
    }
    if (run_->Run(stop, end)) {
      begin_row_ = end_row_;
    } else if (FailedRun()) {
      return false;
    } else if (ready >= wanted || (stop != nullptr && *stop) || OpsReady() == ready) {
      return false;
    }
  }
  return true;
}

bool PlannedPass::FailedRun() {
  if (run_->status().ok()) return false;
  status_ = run_->status();
  return true;
}

int32_t PlannedPass::AwaitWeights(const std::atomic<bool>* stop) {
  const auto next = static_cast<int32_t>(run_->ops_done());
  const auto ops = static_cast<int32_t>(program_.ops.size());
  const int32_t level = plan_.LevelOf(0);
  if (next == 0 && !FetchEmbeddings(stop)) return 0;
  for (int32_t i = next; i < ops; ++i) {
    const int32_t stage = program_.ops[static_cast<size_t>(i)].Stage();
    if (stage < 0 || !stream_->Needs(stage, level) || stream_->Ready(stage, level)) continue;
    if (i > next) return i;
    const bool lends = batch_.meanwhile && (stop == nullptr || !*stop);
    if (lends) batch_.meanwhile(stream_->Demand(stage, level));
    const absl::StatusOr<bool> arrived = stream_->Await(stage, level, stop);
    if (lends && batch_.resumed) batch_.resumed();
    if (!arrived.ok()) status_ = arrived.status();
    if (!arrived.ok() || !*arrived) return next;
  }
  return ProgramRun::kToTheEnd;
}

bool PlannedPass::FetchEmbeddings(const std::atomic<bool>* stop) {
  tokens_.clear();
  for (const PlannedRow& row : plan_.rows()) tokens_.push_back(row.row->token);
  for (const EmbeddingTable table : {EmbeddingTable::kTokens, EmbeddingTable::kLayerInputs}) {
    if (!stream_->StreamsEmbedding(table)) continue;
    const absl::StatusOr<bool> arrived = stream_->FetchRows(tokens_, stop, table);
    if (!arrived.ok()) status_ = arrived.status();
    if (!arrived.ok() || !*arrived) return false;
  }
  return true;
}

int32_t PlannedPass::OpsReady() const {
  int32_t layers = INT32_MAX;
  for (const ContextView& view : batch_.contexts) {
    if (view.layers_ready == nullptr) continue;
    layers = std::min(layers, view.layers_ready->load(std::memory_order_acquire));
  }
  if (layers >= facts_.shape.kv_layers()) return ProgramRun::kToTheEnd;
  const int32_t begin = layers <= 0 ? 0 : program_.layer_end[static_cast<size_t>(layers) - 1];
  const auto first = std::find_if(program_.ops.begin() + begin, program_.ops.end(),
                                  [](const Op& op) { return op.kind == OpKind::kStoreKv; });
  return static_cast<int32_t>(first - program_.ops.begin());
}

bool PlannedPass::NextPiece() {
  const auto rows = static_cast<int32_t>(batch_.rows.size());
  if (end_row_ == rows) return false;
  begin_row_ = end_row_;
  end_row_ = std::min(rows, begin_row_ + max_piece_rows_);
  plan_.Plan(batch_, facts_, begin_row_, end_row_, logits_rows_);
  logits_rows_ += static_cast<int32_t>(plan_.wanted().size());
  Emit(plan_, facts_, tap_, &program_);
  if (stream_ != nullptr) stream_->ReadAheadAt(plan_.LevelOf(0));
  run_->Start(program_, plan_, batch_, logits_);
  return true;
}

double PlannedPass::Done() const {
  if (begin_row_ == end_row_) return ShareAfter(0);
  const double ops = run_->ops_done();
  const auto& ends = program_.layer_end;
  const auto end = std::upper_bound(ends.begin(), ends.end(), ops);
  if (end == ends.end()) return ShareAfter(static_cast<double>(ends.size()));
  const int32_t begin = end == ends.begin() ? 0 : *(end - 1);
  return ShareAfter(static_cast<double>(end - ends.begin()) + (ops - begin) / (*end - begin));
}

double PlannedPass::ShareAfter(double layers) const {
  const auto rows = static_cast<double>(batch_.rows.size());
  const double piece = end_row_ - begin_row_;
  return (begin_row_ + (piece > 0 ? piece * plan_.ShareDone(layers) : 0)) / rows;
}

int32_t PlannedPass::OpsUntil(double until) const {
  if (until >= 1) return ProgramRun::kToTheEnd;
  if (ShareAfter(0) >= until) return 0;
  for (size_t layer = 0; layer < program_.layer_end.size(); ++layer) {
    if (ShareAfter(static_cast<double>(layer + 1)) >= until) return program_.layer_end[layer];
  }
  return ProgramRun::kToTheEnd;
}

void PlannedPass::Abandon() {
  run_->Abandon();
  begin_row_ = end_row_ = static_cast<int32_t>(batch_.rows.size());
}

}  // namespace withy::engine
