#include "engine/head/head_weights.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "engine/gguf/quants.h"
#include "engine/weights/types/packed_type.h"
#include "engine/weights/types/row_decoder.h"

namespace withy::engine {
namespace {

constexpr PieceSize kPackedRows{16, 256};

// The first error of several threads.
class FirstError {
 public:
  void Keep(const absl::Status& status) {
    if (status.ok()) return;
    const absl::MutexLock lock(&mutex_);
    status_.Update(status);
  }
  absl::Status status() {
    const absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class Loader {
 public:
  Loader(const GgufFile& file, ThreadPool& pool, HeadWeights* weights)
      : file_(file), pool_(pool), weights_(*weights) {}

  absl::Status Vector(const std::string& name, const float** to) {
    WITHY_ASSIGN_OR_RETURN(const TensorInfo* info, file_.GetTensor(name));
    const auto count = static_cast<size_t>(info->elements());
    auto* const values = reinterpret_cast<float*>(Room(count * sizeof(float)));
    WITHY_RETURN_IF_ERROR(Annotate(Dequantize(info->type, file_.Data(*info), {values, count}),
                                   absl::StrCat(file_.path(), ": tensor ", name)));
    *to = values;
    return absl::OkStatus();
  }

  absl::Status Matrix(const std::string& name, PackedMatrix* to) {
    WITHY_ASSIGN_OR_RETURN(const TensorInfo* info, file_.GetTensor(name));
    WITHY_ASSIGN_OR_RETURN(const WeightType type, PackedTypeFor(info->type));
    PackedMatrix matrix{.type = type,
                        .n_out = static_cast<int>(info->rows()),
                        .n_in = static_cast<int>(info->cols())};
    matrix.panel_inputs = matrix.padded_inputs();
    std::byte* const bytes = Room(PackedBytes(matrix));
    ZeroPacked(matrix, bytes);
    const std::span<const uint8_t> data = file_.Data(*info);
    const size_t row_bytes = data.size() / static_cast<size_t>(matrix.n_out);
    FirstError error;
    pool_.ParallelFor(matrix.n_out, kPackedRows, [&](int begin, int end) {
      RowDecoder decoder(info->type, type, info->cols(), {});
      for (int row = begin; row < end; ++row) {
        const auto decoded =
            decoder.Decode(data.subspan(static_cast<size_t>(row) * row_bytes, row_bytes));
        error.Keep(decoded.status());
        if (!decoded.ok()) return;
        PackRow(matrix, row, *decoded, bytes);
      }
    });
    WITHY_RETURN_IF_ERROR(Annotate(error.status(), absl::StrCat(file_.path(), ": tensor ", name)));
    matrix.data = bytes;
    *to = matrix;
    return absl::OkStatus();
  }

  // A copy of the target's matrix.
  PackedMatrix Copy(PackedMatrix matrix) {
    std::byte* const bytes = Room(PackedBytes(matrix));
    std::memcpy(bytes, matrix.data, PackedBytes(matrix));
    matrix.data = bytes;
    return matrix;
  }

 private:
  std::byte* Room(size_t bytes) {
    weights_.bytes += bytes;
    return weights_.storage.emplace_back(bytes).data();
  }

  const GgufFile& file_;
  ThreadPool& pool_;
  HeadWeights& weights_;
};

// Of the target, what the head has not.
absl::Status Borrow(const HeadShape& shape, const Model& target, Loader& loader,
                    HeadWeights* weights) {
  if (shape.own_embedding && shape.own_output) return absl::OkStatus();
  WITHY_ASSIGN_OR_RETURN(weights->target,
                         PackedFile::Open(target.packed_path(), PackedFile::Verify::kHead));
  const PackedTensor* const embedding = weights->target->Find("token_embd");
  const PackedTensor* output = weights->target->Find("output");
  if (output == nullptr) output = embedding;
  if (embedding == nullptr) {
    return absl::DataLossError(
        absl::StrCat(weights->target->path(), ": tensor token_embd is missing"));
  }
  if (!shape.own_embedding) weights->embedding = embedding->matrix;
  if (shape.own_output) return absl::OkStatus();
  const bool streams = target.weight_stats().streams();
  weights->output = streams ? loader.Copy(output->matrix) : output->matrix;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HeadWeights> LoadHeadWeights(const GgufFile& file, const HeadShape& shape,
                                            const Model& target, ThreadPool& pool) {
  HeadWeights weights;
  Loader loader(file, pool, &weights);
  const std::pair<const char*, PackedMatrix*> matrices[] = {
      {"fc", &weights.fc},
      {"blk.0.attn_q", &weights.q},
      {"blk.0.attn_k", &weights.k},
      {"blk.0.attn_v", &weights.v},
      {"blk.0.attn_output", &weights.attention_out},
      {"blk.0.ffn_gate", &weights.gate},
      {"blk.0.ffn_up", &weights.up},
      {"blk.0.ffn_down", &weights.down}};
  for (const auto& [name, matrix] : matrices) {
    WITHY_RETURN_IF_ERROR(loader.Matrix(absl::StrCat(name, ".weight"), matrix));
  }
  const std::pair<std::string, const float**> vectors[] = {
      {"blk.0.attn_norm.weight", &weights.embedding_norm},
      {shape.hidden_norm, &weights.hidden_norm},
      {"blk.0.ffn_norm.weight", &weights.ffn_norm},
      {"output_norm.weight", &weights.output_norm}};
  for (const auto& [name, vector] : vectors) {
    WITHY_RETURN_IF_ERROR(loader.Vector(name, vector));
  }
  if (shape.norm_before_fc) {
    WITHY_RETURN_IF_ERROR(loader.Vector("enc.output_norm.weight", &weights.feature_norm));
  }
  if (shape.own_embedding) {
    WITHY_RETURN_IF_ERROR(loader.Matrix("token_embd.weight", &weights.embedding));
  }
  if (shape.own_output) {
    WITHY_RETURN_IF_ERROR(loader.Matrix("output.weight", &weights.output));
  }
  WITHY_RETURN_IF_ERROR(Borrow(shape, target, loader, &weights));
  return weights;
}

}  // namespace withy::engine
