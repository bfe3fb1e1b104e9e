#include "engine/cuda/run.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/status.h"
#include "engine/kv/block.h"
#include "engine/kv/rotation.h"

namespace withy::engine::cuda {
namespace {

// Rows up to which a pass is started whole: it is short, and its graph is used again.
constexpr int32_t kRowsTogether = 32;

Shape KernelShape(const ModelShape& s) {
  return {.layers = s.layers,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .head_dim = s.head_dim,
          .rotation = RotationBlock(s.head_dim),
          .rank_major = !s.cuts_kv_heads(),
          .interleaved = s.rope_pairing == RopePairing::kAdjacent,
          .scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim)),
          .epsilon = s.rms_epsilon};
}

}  // namespace

CudaRun::CudaRun(CudaExecutor& executor)
    : executor_(executor),
      gpu_(executor.gpu()),
      kernels_(executor.gpu().kernels()),
      weights_(executor.weights()),
      kernel_shape_(KernelShape(shape())),
      stamps_(gpu_, executor.observer(), executor.clock()),
      workspace_(gpu_),
      inputs_(executor, kernel_shape_, workspace_) {
  const ModelShape& s = shape();
  const KvGeometry geometry{s.layers, s.kv_heads, s.head_dim};
  block_bytes_ = static_cast<uint32_t>(geometry.BlockBytes());
}

void CudaRun::Start(const Program& program, const RowPlan& plan, const Batch& batch,
                    float* logits) {
  program_ = &program;
  plan_ = &plan;
  batch_ = batch;
  logits_ = logits;
  next_op_ = 0;
  status_ = absl::OkStatus();
  prepared_ = finished_ = false;
  marked_layer_ = -1;
  stamps_.Start(batch.tag, plan.count(), program.ops.size());
}

void CudaRun::Abandon() {
  // What is queued reads the caller's blocks.
  if (program_ != nullptr && next_op_ > 0 && !finished_) gpu_.Wait().IgnoreError();
  inputs_.Release();
  program_ = nullptr;
}

bool CudaRun::Fail(absl::Status status) {
  status_ = std::move(status);
  return false;
}

bool CudaRun::Run(const std::atomic<bool>* stop, int32_t end) {
  if (finished_) return true;
  status_ = prepared_ ? absl::OkStatus() : inputs_.Prepare(*program_, *plan_, batch_);
  if (!status_.ok()) return false;
  prepared_ = true;
  status_ = stamps_.Begin();
  if (!status_.ok()) return false;
  const auto ops = static_cast<int32_t>(program_->ops.size());
  if (stop != nullptr && *stop && next_op_ == 0) return false;
  status_ = StartsTogether(end) ? LaunchTogether() : LaunchUntil(std::min(end, ops), stop);
  if (!status_.ok()) return false;
  absl::Status status = next_op_ < ops ? gpu_.Wait() : Finish();
  if (status.ok()) status = stamps_.Report(next_op_ == ops);
  if (!status.ok()) return Fail(std::move(status));
  if (next_op_ < ops) return false;
  finished_ = true;
  inputs_.Release();
  return true;
}

bool CudaRun::StartsTogether(int32_t end) const {
  return next_op_ == 0 && end >= static_cast<int32_t>(program_->ops.size()) &&
         plan_->count() <= kRowsTogether && !weights_.streams() && !executor_.tap() &&
         !plan_->hidden() &&
         std::ranges::all_of(inputs_.ops(), [](const OpData& data) { return data.dense.empty(); });
}

absl::Status CudaRun::LaunchNext() {
  const auto i = static_cast<size_t>(next_op_);
  stamps_.OnQueueing();
  WITHY_RETURN_IF_ERROR(Launch(program_->ops[i], inputs_.op(i)));
  ++next_op_;
  stamps_.OnQueued(program_->ops[i]);
  return absl::OkStatus();
}

absl::Status CudaRun::LaunchTogether() {
  gpu_.queue().Collect();
  while (next_op_ < static_cast<int32_t>(program_->ops.size())) {
    if (absl::Status status = LaunchNext(); !status.ok()) {
      gpu_.queue().Drop();
      return status;
    }
  }
  WITHY_RETURN_IF_ERROR(gpu_.queue().Submit());
  stamps_.OnStarted();
  return absl::OkStatus();
}

absl::Status CudaRun::LaunchUntil(int32_t end, const std::atomic<bool>* stop) {
  while (next_op_ < end && (stop == nullptr || !*stop)) {
    const int32_t layer = program_->ops[static_cast<size_t>(next_op_)].layer;
    WITHY_RETURN_IF_ERROR(LaunchNext());
    if (layer > marked_layer_) {
      marked_layer_ = layer;
      WITHY_RETURN_IF_ERROR(gpu_.Mark(marked_layer_ % 2));
      if (marked_layer_ > 0) WITHY_RETURN_IF_ERROR(gpu_.WaitFor((marked_layer_ - 1) % 2));
    }
  }
  return absl::OkStatus();
}

absl::Status CudaRun::Finish() {
  const auto wanted = plan_->wanted().size();
  const auto vocab = static_cast<size_t>(shape().vocab_size);
  if (wanted > 0 && !plan_->hidden()) {
    WITHY_RETURN_IF_ERROR(
        gpu_.Download(logits_ + static_cast<size_t>(plan_->first_logits_row()) * vocab,
                      workspace_.logits.as<float>(), wanted * vocab * sizeof(float)));
  }
  if (inputs_.at().density_chunks > 0) WITHY_RETURN_IF_ERROR(AddDensities());
  return gpu_.Wait();
}

absl::Status CudaRun::AddDensities() {
  const auto heads = static_cast<size_t>(shape().heads);
  const auto stride = static_cast<size_t>(inputs_.at().density_chunks);
  std::vector<float> density(static_cast<size_t>(plan_->count()) * heads * stride);
  WITHY_RETURN_IF_ERROR(gpu_.Download(density.data(), workspace_.density.as<float>(),
                                      density.size() * sizeof(float)));
  for (int32_t i = 0; i < plan_->count(); ++i) {
    const engine::Row& asked = *plan_->row(i).row;
    if (!asked.ancestor_slots.empty() && asked.density.empty()) continue;
    const std::span<float> sums = asked.density.empty()
                                      ? batch_.contexts[static_cast<size_t>(asked.context)].density
                                      : asked.density;
    const size_t seen = static_cast<size_t>(asked.position) / kChunkTokens + 1;
    const float* row = density.data() + static_cast<size_t>(i) * heads * stride;
    for (size_t head = 0; head < heads; ++head, row += stride) {
      for (size_t chunk = 0; chunk < std::min(seen, sums.size()); ++chunk)
        sums[chunk] += row[chunk];
    }
  }
  return absl::OkStatus();
}

absl::Status CudaRun::Launch(const Op& op, const OpData& data) {
  if (weights_.streams()) WITHY_RETURN_IF_ERROR(LaunchStage(op));
  switch (op.kind) {
    case OpKind::kEmbed:
      LaunchEmbed(op);
      break;
    case OpKind::kNorm:
      LaunchNorm(op, data);
      break;
    case OpKind::kQkv:
    case OpKind::kAttentionOut:
    case OpKind::kDown:
    case OpKind::kHead:
      return LaunchAll(data, false);
    case OpKind::kGateUp:
      return LaunchAll(data, true);
    case OpKind::kStoreKv:
      LaunchStoreKv(op, data);
      break;
    case OpKind::kGatherTail:
      kernels_.gather(gpu_.queue(), {.shape = kernel_shape_,
                                     .layer = op.layer,
                                     .count = inputs_.at().copy_count,
                                     .copies = inputs_.at().copies,
                                     .contexts = inputs_.at().contexts,
                                     .places = inputs_.at().places,
                                     .tail = workspace_.tail.as<uint8_t>(),
                                     .block_bytes = block_bytes_});
      break;
    case OpKind::kKeepWanted:
      kernels_.keep(gpu_.queue(), {.x = workspace_.x.as<float>(),
                                   .width = shape().d_model,
                                   .wanted = inputs_.at().wanted,
                                   .count = op.rows});
      break;
    case OpKind::kAttend:
      LaunchAttend(op, data);
      break;
    case OpKind::kClearHeads:
      break;  // the merge writes zeros where a row has no head
    case OpKind::kTap:
      return Tap(op, data);
    case OpKind::kTakeLogitRows:
      LaunchTakeLogitRows(op, data);
      break;
    case OpKind::kHidden:
      return Hidden(op, data);
    case OpKind::kLayerInputs:
    case OpKind::kSpread:
    case OpKind::kPredict:
    case OpKind::kLaurel:
    case OpKind::kAddBranch:
    case OpKind::kCorrect:
    case OpKind::kAddLayerInput:
    case OpKind::kMerge:
    case OpKind::kKeepFeatures:
    case OpKind::kFinishLogits:
    case OpKind::kRoute:
    case OpKind::kExpertGateUp:
    case OpKind::kExpertDown:
      return absl::InternalError("CudaExecutor::Create refuses models with this operation");
  }
  return absl::OkStatus();
}

absl::Status CudaRun::LaunchStage(const Op& op) {
  const int32_t stage = op.Stage();
  WeightStream* const stream = executor_.stream();
  if (stage < 0) return absl::OkStatus();
  const int32_t level = plan_->LevelOf(0);
  WITHY_RETURN_IF_ERROR(weights_.LoadStage(op, executor_.facts().Extent(level, op.layer)));
  if (stream->Needs(stage, level)) stream->Release(stage, level);
  return absl::OkStatus();
}

void CudaRun::LaunchEmbed(const Op& op) {
  EmbedArgs args{.fetched = inputs_.at().fetched,
                 .tokens = inputs_.at().tokens,
                 .x = workspace_.x.as<float>(),
                 .width = shape().d_model};
  if (inputs_.at().fetched == nullptr) args.embedding = weights_.matrix(op.weights[0]);
  kernels_.embed(gpu_.queue(), args, op.rows);
}

void CudaRun::LaunchNorm(const Op& op, const OpData& data) {
  if (!inputs_.normed(static_cast<size_t>(next_op_))) {
    kernels_.norm(gpu_.queue(),
                  {.x = workspace_.x.as<float>(),
                   .width = shape().d_model,
                   .weight = weights_.vector(op.weights[0]),
                   .to = workspace_.input.get(),
                   .runs = data.runs,
                   .run_count = data.run_count,
                   .a = workspace_.lora.as<float>(),
                   .a_stride = 7 * executor_.facts().lora_rank,
                   .quantise = workspace_.input.quantise(),
                   .keep_floats = workspace_.input.keep_floats()},
                  op.rows);
  }
  LaunchProducts(data.lower, false);
}

absl::Status CudaRun::LaunchAll(const OpData& data, bool fused) {
  LaunchProducts(data.products, fused);
  for (const DenseGroup& group : data.dense) {
    WITHY_RETURN_IF_ERROR(executor_.dense()->Launch(group));
  }
  return absl::OkStatus();
}

void CudaRun::LaunchProducts(const OpProducts& products, bool fused) {
  if (products.strips == 0) return;
  const ProductPath path =
      products.rows >= executor_.options().mma_rows ? ProductPath::kMma : ProductPath::kDp4a;
  kernels_.products(gpu_.queue(),
                    {.products = products.products,
                     .count = products.count,
                     .strips = products.strips,
                     .rows = products.rows},
                    path, fused);
}

void CudaRun::LaunchStoreKv(const Op& op, const OpData& data) {
  const auto vector = [&](WeightRole role) -> const float* {
    return op.Reads(role) ? weights_.vector({role, op.layer}) : nullptr;
  };
  // The operation of the products before it says which rows have queries.
  const Op& qkv = program_->ops[static_cast<size_t>(next_op_) - 1];
  kernels_.store_kv(
      gpu_.queue(),
      {.shape = kernel_shape_,
       .layer = op.layer,
       .rows = op.rows,
       .first_query = qkv.first_query,
       .queries = qkv.queries,
       .row = inputs_.at().rows,
       .contexts = inputs_.at().contexts,
       .places = inputs_.at().places,
       .kv_extent = data.kv_rows,
       .q_extent = data.q_rows,
       .k = workspace_.k.as<float>(),
       .v = workspace_.v.as<float>(),
       .q = workspace_.q.as<float>(),
       .angles = inputs_.at().angles,
       .k_bias = op.Reads(WeightRole::kKBias) ? weights_.stored_key_bias(op.layer) : nullptr,
       .v_bias = vector(WeightRole::kVBias),
       .q_bias = vector(WeightRole::kQBias),
       .k_norm = vector(WeightRole::kKNorm),
       .q_norm = vector(WeightRole::kQNorm),
       .runs = data.runs,
       .run_count = data.run_count,
       .a = workspace_.lora.as<float>(),
       .a_stride = 7 * executor_.facts().lora_rank,
       .bias = weights_.key_bias(op.layer),
       .to = workspace_.queries});
}

void CudaRun::LaunchAttend(const Op& op, const OpData& data) {
  const bool last = op.layer == LastLayer();
  AttendArgs args{.shape = kernel_shape_,
                  .layer = op.layer,
                  .runs = inputs_.at().runs,
                  .row = inputs_.at().rows,
                  .wanted = last ? inputs_.at().wanted : nullptr,
                  .contexts = inputs_.at().contexts,
                  .places = inputs_.at().places,
                  .tail = workspace_.tail.as<uint8_t>(),
                  .block_bytes = block_bytes_,
                  .head_extent = data.heads,
                  .queries = workspace_.queries,
                  .bias = weights_.key_bias(op.layer),
                  .parts = workspace_.parts.as<float>(),
                  .to = workspace_.attention_input.get(),
                  .quantise = workspace_.attention_input.quantise(),
                  .keep_floats = workspace_.attention_input.keep_floats()};
  if (inputs_.at().density_chunks > 0 && !last) {
    args.densities = true;
    args.density = workspace_.density.as<float>();
    args.density_stride = inputs_.at().density_chunks;
  }
  const Tiles& tiles = last ? inputs_.at().wanted_tiles : inputs_.at().all_tiles;
  for (int row = 0; row < op.rows; row += inputs_.at().tile_limits.at_once) {
    args.first_row = row;
    args.rows = std::min(inputs_.at().tile_limits.at_once, op.rows - row);
    const auto launch = [&](const TileList& list, void (*attend)(LaunchSink&, const AttendArgs&)) {
      TakeTiles(list.host, list.on_device, row, args.rows, &args);
      if (args.tile_count > 0) attend(gpu_.queue(), args);
    };
    launch(tiles.tiles, kernels_.attend_tiles);
    launch(tiles.tails, kernels_.attend_tiles);
    launch(tiles.single, kernels_.attend);
    kernels_.merge(gpu_.queue(), args);
  }
}

absl::StatusOr<std::vector<float>> CudaRun::Stream(int32_t rows, const OpData& data) {
  const auto floats = static_cast<size_t>(rows) * static_cast<size_t>(shape().d_model);
  WITHY_RETURN_IF_ERROR(workspace_.tapped.Reserve(floats * sizeof(float)));
  kernels_.norm(gpu_.queue(),
                {.x = workspace_.x.as<float>(),
                 .width = shape().d_model,
                 .runs = data.runs,
                 .run_count = data.run_count,
                 .a = workspace_.lora.as<float>(),
                 .a_stride = 7 * executor_.facts().lora_rank,
                 .added = workspace_.tapped.as<float>()},
                rows);
  std::vector<float> stream(floats);
  WITHY_RETURN_IF_ERROR(
      gpu_.Download(stream.data(), workspace_.tapped.as<float>(), floats * sizeof(float)));
  return stream;
}

absl::Status CudaRun::Tap(const Op& op, const OpData& data) {
  WITHY_ASSIGN_OR_RETURN(const std::vector<float> hidden, Stream(op.rows, data));
  executor_.tap()(op.layer, hidden);
  return absl::OkStatus();
}

// The host norms: it has the rows anyway, and no head follows that could do it on its way.
absl::Status CudaRun::Hidden(const Op& op, const OpData& data) {
  const auto width = static_cast<size_t>(shape().d_model);
  WITHY_ASSIGN_OR_RETURN(const std::vector<float> stream, Stream(op.rows, data));
  std::vector<float> weight(width);
  WITHY_RETURN_IF_ERROR(
      gpu_.Download(weight.data(), weights_.vector(op.weights[0]), width * sizeof(float)));
  for (int32_t i = 0; i < op.rows; ++i) {
    const int32_t row = plan_->row(plan_->wanted()[static_cast<size_t>(i)]).logits_row;
    const float* x = stream.data() + static_cast<size_t>(i) * width;
    float* to = logits_ + static_cast<size_t>(row) * width;
    double squares = 0;
    for (size_t c = 0; c < width; ++c) squares += static_cast<double>(x[c]) * x[c];
    const auto factor = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(width) +
                                                         static_cast<double>(shape().rms_epsilon)));
    for (size_t c = 0; c < width; ++c) to[c] = x[c] * factor * weight[c];
  }
  return absl::OkStatus();
}

void CudaRun::LaunchTakeLogitRows(const Op& op, const OpData& data) {
  kernels_.norm(gpu_.queue(),
                {.x = workspace_.x.as<float>(),
                 .width = shape().d_model,
                 .weight = weights_.vector({WeightRole::kOutputNorm, -1}),
                 .map = inputs_.at().logit_rows,
                 .to = workspace_.head_input.get(),
                 .runs = data.runs,
                 .run_count = data.run_count,
                 .a = workspace_.lora.as<float>(),
                 .a_stride = 7 * executor_.facts().lora_rank,
                 .quantise = workspace_.head_input.quantise(),
                 .keep_floats = workspace_.head_input.keep_floats()},
                op.rows);
}

}  // namespace withy::engine::cuda
