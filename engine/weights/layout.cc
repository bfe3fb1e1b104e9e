#include "engine/weights/layout.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "base/round_up.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/cpu/low_rank.h"
#include "engine/cpu/packed_matrix.h"
#include "engine/weights/file_kind.h"
#include "engine/weights/types/packed_type.h"

namespace withy::engine {
namespace {

constexpr char kMakeAgain[] = ": download the model again, or convert it again";
constexpr int32_t kMaxPanelInputs = 256;
constexpr int32_t kMinPanelInputs = 64;  // of ffn_down
constexpr int32_t kMinNeuronPanels = 8;

// The largest multiple of a block up to `most` that divides `unit`.
int32_t LargestPanel(int32_t unit, int32_t most) {
  for (int32_t blocks = std::min(most, unit) / kQuantBlock; blocks > 1; --blocks) {
    if (unit % (blocks * kQuantBlock) == 0) return blocks * kQuantBlock;
  }
  return kQuantBlock;
}

// Expands the query head order to units of `width` per head (rows: head_dim; blocks of columns:
// head_dim / 32).
std::vector<int32_t> ExpandHeads(const std::vector<int32_t>& heads, int32_t width) {
  std::vector<int32_t> order;
  order.reserve(heads.size() * static_cast<size_t>(width));
  for (int32_t head : heads) {
    for (int32_t i = 0; i < width; ++i) order.push_back(head * width + i);
  }
  return order;
}

// Every type that cannot be packed, with a tensor that has it.
absl::Status CheckTypes(const GgufFile& file) {
  struct Unsupported {
    std::string first;
    size_t tensors = 0;
  };
  std::map<GgmlType, Unsupported> found;
  for (const TensorInfo& tensor : file.tensors()) {
    if (PackedTypeFor(tensor.type).ok()) continue;
    Unsupported& type = found[tensor.type];
    if (type.tensors++ == 0) type.first = ValidUtf8(tensor.name, kMaxShownBytes);
  }
  if (found.empty()) return absl::OkStatus();
  std::string text;
  for (const auto& [type, in] : found) {
    absl::StrAppend(
        &text, text.empty() ? "" : ", ", "tensor ", in.first,
        in.tensors > 1 ? absl::StrCat(" and ", in.tensors - 1, " more have type ") : " has type ",
        TypeLabel(type));
  }
  return absl::UnimplementedError(absl::StrCat(file.path(), ": ", text,
                                               found.size() > 1 ? ", which are" : ", which is",
                                               " not supported; ", kSupportedTypes));
}

class Planner {
 public:
  explicit Planner(const GgufFile& file) : file_(file) {}

  // `shape`: of the file.
  absl::StatusOr<PackedLayout> Plan(ModelShape shape) {
    layout_.shape = std::move(shape);
    WITHY_ASSIGN_OR_RETURN(layout_.levels, ReadLevels(file_, layout_.shape));
    WITHY_RETURN_IF_ERROR(PlanEnds());
    for (int32_t layer = 0; layer < layout_.shape.layers; ++layer) {
      WITHY_RETURN_IF_ERROR(PlanLayer(layer));
    }
    for (const LevelSpec& level : layout_.levels.levels) WITHY_RETURN_IF_ERROR(PlanLora(level));
    WITHY_RETURN_IF_ERROR(RefuseOthers());
    WITHY_RETURN_IF_ERROR(CheckLimits());
    layout_.data_bytes = RoundUp(offset_, kPackedPage);
    return std::move(layout_);
  }

 private:
  absl::Status PlanEnds() {
    const ModelShape& s = layout_.shape;
    WITHY_RETURN_IF_ERROR(Matrix("token_embd", ".weight", s.vocab_size, s.d_model, s.d_model));
    if (FindArchitecture(s.architecture)->needs_head ||
        file_.FindTensor("output.weight") != nullptr) {
      WITHY_RETURN_IF_ERROR(Matrix("output", ".weight", s.vocab_size, s.d_model, s.d_model));
    }
    if (s.learned_positions) {
      WITHY_RETURN_IF_ERROR(
          Matrix("position_embd", ".weight", s.context_length, s.d_model, s.d_model));
    }
    WITHY_RETURN_IF_ERROR(NormOf("output_norm"));
    WITHY_RETURN_IF_ERROR(PlanBesideLayers());
    PlanFrequencies("rope_frequencies", s.rope_frequencies);
    if (!s.long_rope_frequencies.empty()) {
      PlanFrequencies(kLongRopeVector, s.long_rope_frequencies);
    }
    used_.insert({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"});
    return absl::OkStatus();
  }

  void PlanFrequencies(std::string_view name, const std::vector<float>& values) {
    LayoutItem item;
    Place(std::string(name), PackedKind::kVector, 1, static_cast<int32_t>(values.size()), 0,
          sizeof(float) * values.size(), &item);
    layout_.items.push_back(std::move(item));
  }

  absl::Status PlanLayer(int32_t layer) {
    const ModelShape& s = layout_.shape;
    const std::vector<int32_t> heads = QueryHeadOrder(s.heads, s.kv_heads);
    const bool rank_major = !s.cuts_kv_heads();
    const std::vector<int32_t> q_rows =
        rank_major ? ExpandHeads(heads, s.head_dim) : std::vector<int32_t>();
    const std::vector<int32_t> o_blocks =
        rank_major ? ExpandHeads(heads, s.head_dim / kQuantBlock) : std::vector<int32_t>();
    const int32_t unit = s.query_heads_per_unit() * s.head_dim;
    const auto name = [&](std::string_view part) {
      return absl::StrCat("blk.", layer, ".", ToAbsl(part));
    };
    offset_ = RoundUp(offset_, kPackedPage);
    WITHY_RETURN_IF_ERROR(
        PlanNorms(name("attn"), name("attn_norm.weight"), name("post_attention_norm")));
    const bool own_kv = s.KvSourceOf(layer) == layer;
    if (!own_kv) PassOver({name("attn_k"), name("attn_v"), name("attn_k_norm")});
    if (s.qk_norm == QkNorm::kHeads) {
      WITHY_RETURN_IF_ERROR(Vector(name("attn_q_norm"), ".weight", s.head_dim));
      if (own_kv) WITHY_RETURN_IF_ERROR(Vector(name("attn_k_norm"), ".weight", s.head_dim));
    } else if (s.qk_norm == QkNorm::kWhole) {
      WITHY_RETURN_IF_ERROR(Vector(name("attn_q_norm"), ".weight", s.q_rows(), q_rows));
      WITHY_RETURN_IF_ERROR(Vector(name("attn_k_norm"), ".weight", s.kv_rows()));
    }
    WITHY_RETURN_IF_ERROR(PlanQkvBiases(name("attn_"), q_rows));
    const Architecture& architecture = *FindArchitecture(s.architecture);
    WITHY_RETURN_IF_ERROR(
        PlanNorms(name("ffn"), name(architecture.ffn_norm) + ".weight", name("post_ffw_norm")));
    if (s.attention_sinks) {
      WITHY_RETURN_IF_ERROR(Vector(name("attn_sinks"), ".weight", s.heads,
                                   rank_major ? heads : std::vector<int32_t>()));
    }
    WITHY_RETURN_IF_ERROR(PlanQkv(name("attn_"), q_rows, own_kv));
    WITHY_RETURN_IF_ERROR(Matrix(name("attn_output"), ".weight", s.d_model, s.q_rows(),
                                 PanelInputs(unit), {}, o_blocks));
    if (s.product_biases) {
      WITHY_RETURN_IF_ERROR(Vector(name("attn_output"), ".bias", s.d_model));
    }
    WITHY_RETURN_IF_ERROR(PlanBesideAttention(name("")));
    if (s.experts > 0) return PlanExperts(name("ffn_"));
    const int32_t neurons = s.NeuronsOf(layer);
    if (s.product_biases) {
      WITHY_RETURN_IF_ERROR(Vector(name("ffn_up"), ".bias", neurons));
      WITHY_RETURN_IF_ERROR(Vector(name("ffn_down"), ".bias", s.d_model));
    }
    if (s.fused_gate_up) {
      const std::string fused = name("ffn_up.weight");
      WITHY_RETURN_IF_ERROR(PartOf(fused, 2 * neurons, 0, name("ffn_gate"), neurons));
      WITHY_RETURN_IF_ERROR(PartOf(fused, 2 * neurons, neurons, name("ffn_up"), neurons));
    } else {
      if (s.gated_mlp) {
        WITHY_RETURN_IF_ERROR(Matrix(name("ffn_gate"), ".weight", neurons, s.d_model, s.d_model));
      }
      WITHY_RETURN_IF_ERROR(Matrix(name("ffn_up"), ".weight", neurons, s.d_model, s.d_model));
    }
    return Matrix(name("ffn_down"), ".weight", s.d_model, neurons, NeuronPanel(neurons));
  }

  // What models with copies of the stream or with inputs of each layer have once.
  absl::Status PlanBesideLayers() {
    const ModelShape& s = layout_.shape;
    if (s.streams > 1) {
      WITHY_RETURN_IF_ERROR(Stack("altup_proj", s.streams - 1, s.d_model, s.d_model, "copies"));
      WITHY_RETURN_IF_ERROR(
          Stack("altup_unembd_proj", s.streams - 1, s.d_model, s.d_model, "copies"));
    }
    if (!s.has_layer_inputs()) return absl::OkStatus();
    const int32_t width = s.layer_inputs_width();
    WITHY_RETURN_IF_ERROR(Matrix("per_layer_token_embd", ".weight", s.vocab_size, width, width));
    WITHY_RETURN_IF_ERROR(Matrix("per_layer_model_proj", ".weight", width, s.d_model, s.d_model));
    return Vector("per_layer_proj_norm", ".weight", s.layer_width);
  }

  // What their layers, and those with LAuReL, have more than others.
  absl::Status PlanBesideAttention(const std::string& blk) {
    const ModelShape& s = layout_.shape;
    if (s.streams > 1) {
      const int32_t n = s.streams;
      WITHY_RETURN_IF_ERROR(Vector(blk + "altup_router_norm", ".weight", s.d_model));
      WITHY_RETURN_IF_ERROR(Rows(blk + "altup_router", n, s.d_model));
      WITHY_RETURN_IF_ERROR(Rows(blk + "altup_predict_coef", n * n, n));
      WITHY_RETURN_IF_ERROR(Rows(blk + "altup_correct_coef", n, n));
      WITHY_RETURN_IF_ERROR(Vector(blk + "altup_correct_scale", ".weight", s.d_model));
    }
    if (s.laurel_rank > 0) {
      const int32_t rank = s.laurel_rank;
      WITHY_RETURN_IF_ERROR(Vector(blk + "laurel_post_norm", ".weight", s.d_model));
      WITHY_RETURN_IF_ERROR(Matrix(blk + "laurel_l", ".weight", rank, s.d_model, s.d_model));
      WITHY_RETURN_IF_ERROR(Matrix(blk + "laurel_r", ".weight", s.d_model, rank, rank));
    }
    if (!s.has_layer_inputs()) return absl::OkStatus();
    const int32_t width = s.layer_width;
    WITHY_RETURN_IF_ERROR(Vector(blk + "post_norm", ".weight", s.d_model));
    WITHY_RETURN_IF_ERROR(Matrix(blk + "inp_gate", ".weight", width, s.d_model, s.d_model));
    return Matrix(blk + "proj", ".weight", s.d_model, width, width);
  }

  // A small matrix, packed as one vector.
  absl::Status Rows(const std::string& name, int32_t rows, int32_t cols) {
    WITHY_ASSIGN_OR_RETURN(const TensorInfo* source, Source(name + ".weight", rows, cols));
    return VectorOf(*source, name, rows * cols, {});
  }

  // The router, and the matrices of all experts one below the other, each in whole tiles.
  absl::Status PlanExperts(const std::string& prefix) {
    const ModelShape& s = layout_.shape;
    if (s.product_biases) {
      WITHY_RETURN_IF_ERROR(Vector(prefix + "gate_inp", ".bias", s.experts));
      WITHY_RETURN_IF_ERROR(ExpertBiases(prefix + "gate_exps", s.expert_neurons));
      WITHY_RETURN_IF_ERROR(ExpertBiases(prefix + "up_exps", s.expert_neurons));
      WITHY_RETURN_IF_ERROR(ExpertBiases(prefix + "down_exps", s.d_model));
    }
    WITHY_RETURN_IF_ERROR(Matrix(prefix + "gate_inp", ".weight", s.experts, s.d_model, s.d_model));
    WITHY_RETURN_IF_ERROR(Experts(prefix + "gate_exps", s.expert_neurons, s.d_model));
    WITHY_RETURN_IF_ERROR(Experts(prefix + "up_exps", s.expert_neurons, s.d_model));
    return Experts(prefix + "down_exps", s.d_model, s.expert_neurons);
  }

  // The tensor's dimensions are [experts, rows, cols].
  absl::Status Experts(const std::string& name, int32_t rows, int32_t cols) {
    return Stack(name, layout_.shape.experts, rows, cols, "experts");
  }

  // Matrices that a tensor of the dimensions [count, rows, cols] holds, one below the other.
  absl::Status Stack(const std::string& name, int32_t count, int32_t rows, int32_t cols,
                     std::string_view what) {
    WITHY_RETURN_IF_ERROR(Matrix(name, ".weight", count * rows, cols, cols));
    const TensorInfo& tensor = *layout_.items.back().source;
    if (tensor.dims.size() == 3 && tensor.dims[2] == count) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path(), ": tensor ", tensor.name, " has ", tensor.dims.size(),
                     " dimensions, the last of ", tensor.dims.back(),
                     "; the metadata asks for three, the last of ", count, " ", ToAbsl(what)));
  }

  // The tensor's dimensions are [experts, outputs]; as one vector.
  absl::Status ExpertBiases(const std::string& name, int32_t outputs) {
    const int32_t experts = layout_.shape.experts;
    WITHY_ASSIGN_OR_RETURN(const TensorInfo* source, Source(name + ".bias", experts, outputs));
    return VectorOf(*source, name + ".bias", experts * outputs, {});
  }

  // The norms before attention or MLP, whose tensor is `before`, and after it, as far as the
  // architecture has them.
  absl::Status PlanNorms(const std::string& part, const std::string& before,
                         const std::string& after) {
    const ModelShape& s = layout_.shape;
    if (s.pre_norms && before != part + "_norm.weight") {
      WITHY_ASSIGN_OR_RETURN(const TensorInfo* source, Source(before, 1, s.d_model));
      WITHY_RETURN_IF_ERROR(VectorOf(*source, part + "_norm", s.d_model, {}));
    } else if (s.pre_norms) {
      WITHY_RETURN_IF_ERROR(NormOf(part + "_norm"));
    }
    return s.post_norms ? Vector(after, ".weight", s.d_model) : absl::OkStatus();
  }

  absl::Status NormOf(const std::string& name) {
    const ModelShape& s = layout_.shape;
    WITHY_RETURN_IF_ERROR(Vector(name, ".weight", s.d_model));
    return s.layer_norms ? Vector(name, ".bias", s.d_model) : absl::OkStatus();
  }

  // The biases of Q, K and V, of tensors of their own or of one that holds them in this order.
  absl::Status PlanQkvBiases(const std::string& prefix, const std::vector<int32_t>& q_order) {
    const ModelShape& s = layout_.shape;
    const std::string fused = prefix + "qkv.bias";
    const int32_t q = s.q_rows();
    const int32_t kv = s.kv_rows();
    const bool fused_weights = file_.FindTensor(prefix + "qkv.weight") != nullptr;
    if (file_.FindTensor(fused) == nullptr && !(s.needs_qkv_bias && fused_weights)) {
      WITHY_RETURN_IF_ERROR(Bias(prefix + "q", q, q_order));
      WITHY_RETURN_IF_ERROR(Bias(prefix + "k", kv, {}));
      return Bias(prefix + "v", kv, {});
    }
    WITHY_ASSIGN_OR_RETURN(const TensorInfo* source, Source(fused, 1, q + 2 * kv));
    WITHY_RETURN_IF_ERROR(VectorOf(*source, prefix + "q.bias", q, RowsFrom(0, q, q_order)));
    WITHY_RETURN_IF_ERROR(VectorOf(*source, prefix + "k.bias", kv, RowsFrom(q, kv, {})));
    return VectorOf(*source, prefix + "v.bias", kv, RowsFrom(q + kv, kv, {}));
  }

  // K, V and Q, of tensors of their own or of one that holds the rows of Q, K and V.
  // `own_kv`: false: only Q.
  absl::Status PlanQkv(const std::string& prefix, const std::vector<int32_t>& q_order,
                       bool own_kv) {
    const ModelShape& s = layout_.shape;
    const std::string fused = prefix + "qkv.weight";
    const int32_t q = s.q_rows();
    const int32_t kv = s.kv_rows();
    if (file_.FindTensor(fused) == nullptr && file_.FindTensor(prefix + "qkv.bias") == nullptr) {
      if (own_kv) {
        WITHY_RETURN_IF_ERROR(Matrix(prefix + "k", ".weight", kv, s.d_model, s.d_model));
        WITHY_RETURN_IF_ERROR(Matrix(prefix + "v", ".weight", kv, s.d_model, s.d_model));
      }
      return Matrix(prefix + "q", ".weight", q, s.d_model, s.d_model, q_order);
    }
    if (own_kv) {
      WITHY_RETURN_IF_ERROR(PartOf(fused, q + 2 * kv, q, prefix + "k", kv));
      WITHY_RETURN_IF_ERROR(PartOf(fused, q + 2 * kv, q + kv, prefix + "v", kv));
    }
    return PartOf(fused, q + 2 * kv, 0, prefix + "q", q, q_order);
  }

  // `order`, or ascending numbers if it is empty, of rows that begin at `first`.
  static std::vector<int32_t> RowsFrom(int32_t first, int32_t rows, std::vector<int32_t> order) {
    if (order.empty()) {
      order.resize(static_cast<size_t>(rows));
      std::iota(order.begin(), order.end(), 0);
    }
    for (int32_t& row : order) row += first;
    return order;
  }

  // Packs rows [first, first + rows) of the tensor `source`, which has `of` rows, as `name`.
  absl::Status PartOf(const std::string& source, int32_t of, int32_t first, const std::string& name,
                      int32_t rows, std::vector<int32_t> order = {}) {
    const int32_t width = layout_.shape.d_model;
    WITHY_ASSIGN_OR_RETURN(const TensorInfo* tensor, Source(source, of, width));
    return MatrixOf(*tensor, name, rows, width, width, RowsFrom(first, rows, std::move(order)));
  }

  // The LoRA of the layers that a level cuts.
  absl::Status PlanLora(const LevelSpec& level) {
    const ModelShape& s = layout_.shape;
    const int32_t rank = layout_.levels.lora_rank;
    if (rank == 0) return absl::OkStatus();
    for (int32_t layer = 0; layer < s.layers; ++layer) {
      const LayerExtent& extent = level.layers[static_cast<size_t>(layer)];
      if (extent == FullExtent(s, layer)) continue;
      for (int i = 0; i < kLoraParts; ++i) {
        const auto part = static_cast<LoraPart>(i);
        const std::string name = LoraName(level.percent, layer, part);
        const LoraShape shape = LoraShapeOf(part, s, extent, rank);
        if (shape.empty()) continue;
        WITHY_RETURN_IF_ERROR(IsLoraIn(part) ? Matrix(name, "", shape.rows, shape.cols, shape.cols)
                                             : LowRank(name, shape.cols, shape.rows));
      }
    }
    return absl::OkStatus();
  }

  absl::Status LowRank(const std::string& name, int32_t outputs, int32_t rank) {
    WITHY_ASSIGN_OR_RETURN(const TensorInfo* source, Source(name, rank, outputs));
    if (outputs % kQuantBlock != 0) {
      return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": tensor ", name, " has ",
                                                     outputs, " outputs, not a multiple of ",
                                                     kQuantBlock));
    }
    LayoutItem item;
    item.source = source;
    Place(name, PackedKind::kLowRank, outputs, rank, 0, LowRankBytes(rank, outputs), &item);
    layout_.items.push_back(std::move(item));
    return absl::OkStatus();
  }

  void Place(const std::string& name, PackedKind kind, int32_t n_out, int32_t n_in, int32_t panel,
             uint64_t bytes, LayoutItem* item) {
    PackedEntry& entry = item->entry;
    std::memcpy(entry.name.data(), name.data(), std::min(name.size(), entry.name.size() - 1));
    entry.kind = kind;
    entry.n_out = static_cast<uint32_t>(n_out);
    entry.n_in = static_cast<uint32_t>(n_in);
    entry.panel_inputs = static_cast<uint32_t>(panel);
    entry.bytes = bytes;
    offset_ = RoundUp(offset_, kind == PackedKind::kMatrix ? kPackedPage : uint64_t{64});
    entry.offset = offset_;
    offset_ += bytes;
  }

  absl::StatusOr<const TensorInfo*> Source(const std::string& name, int64_t rows, int64_t cols) {
    const absl::StatusOr<const TensorInfo*> found = file_.GetTensor(name);
    if (!found.ok()) {
      return absl::NotFoundError(absl::StrCat(found.status().message(), kMakeAgain));
    }
    const TensorInfo* tensor = *found;
    used_.insert(name);
    if (tensor->cols() != cols || tensor->rows() != rows) {
      return absl::InvalidArgumentError(absl::StrCat(
          file_.path(), ": tensor ", name, " is [", tensor->rows(), ", ", tensor->cols(),
          "]; the metadata asks for [", rows, ", ", cols, "]", kMakeAgain));
    }
    return tensor;
  }

  // Packs as `name`; the file's tensor is name + suffix.
  absl::Status Matrix(const std::string& name, std::string_view suffix, int32_t n_out, int32_t n_in,
                      int32_t panel, std::vector<int32_t> row_order = {},
                      std::vector<int32_t> block_order = {}) {
    WITHY_ASSIGN_OR_RETURN(const TensorInfo* source,
                           Source(absl::StrCat(name, ToAbsl(suffix)), n_out, n_in));
    return MatrixOf(*source, name, n_out, n_in, panel, std::move(row_order),
                    std::move(block_order));
  }

  absl::Status MatrixOf(const TensorInfo& source, const std::string& name, int32_t n_out,
                        int32_t n_in, int32_t panel, std::vector<int32_t> row_order,
                        std::vector<int32_t> block_order = {}) {
    auto type = PackedTypeFor(source.type);
    if (!type.ok()) {
      return Annotate(type.status(), absl::StrCat(file_.path(), ": tensor ", source.name));
    }
    LayoutItem item;
    item.source = &source;
    item.row_order = std::move(row_order);
    item.block_order = std::move(block_order);
    PackedMatrix matrix{.type = *type, .n_out = n_out, .n_in = n_in, .panel_inputs = panel};
    Place(name, PackedKind::kMatrix, n_out, n_in, panel, PackedBytes(matrix), &item);
    item.entry.type = static_cast<uint32_t>(*type);
    layout_.items.push_back(std::move(item));
    return absl::OkStatus();
  }

  // Packs weights as `name` and biases as name + ".bias".
  absl::Status Vector(const std::string& name, std::string_view suffix, int32_t n,
                      std::vector<int32_t> order = {}) {
    WITHY_ASSIGN_OR_RETURN(const TensorInfo* source,
                           Source(absl::StrCat(name, ToAbsl(suffix)), 1, n));
    return VectorOf(*source, suffix == ".bias" ? absl::StrCat(name, ".bias") : name, n,
                    std::move(order));
  }

  absl::Status VectorOf(const TensorInfo& source, const std::string& name, int32_t n,
                        std::vector<int32_t> order) {
    if (source.type != GgmlType::kF32 && source.type != GgmlType::kF16 &&
        source.type != GgmlType::kBF16) {
      return absl::UnimplementedError(absl::StrCat(file_.path(), ": tensor ", source.name,
                                                   " has type ", ToAbsl(TypeName(source.type)),
                                                   "; norms and biases must be F32, F16 or BF16"));
    }
    LayoutItem item;
    item.source = &source;
    item.row_order = std::move(order);
    Place(name, PackedKind::kVector, 1, n, 0, sizeof(float) * static_cast<uint64_t>(n), &item);
    layout_.items.push_back(std::move(item));
    return absl::OkStatus();
  }

  absl::Status Bias(const std::string& name, int32_t n, std::vector<int32_t> order) {
    if (!layout_.shape.needs_qkv_bias && file_.FindTensor(absl::StrCat(name, ".bias")) == nullptr) {
      return absl::OkStatus();
    }
    return Vector(name, ".bias", n, std::move(order));
  }

  // Files have these weights, which nothing computes with.
  void PassOver(std::initializer_list<std::string> names) {
    for (const std::string& name : names) used_.insert(name + ".weight");
  }

  // Ignoring an unused tensor would change the model's function and give wrong answers.
  absl::Status RefuseOthers() const {
    for (const TensorInfo& tensor : file_.tensors()) {
      const bool ours = tensor.name.starts_with(kGgufOwnPrefix);
      const bool derived = tensor.name.ends_with("rot_embd.weight");  // RoPE table of old files
      if (!ours && !derived && !used_.contains(tensor.name)) {
        return absl::InvalidArgumentError(
            absl::StrCat(file_.path(), ": tensor ", ValidUtf8(tensor.name, kMaxShownBytes),
                         " does not belong to a ", layout_.shape.architecture, " model of ",
                         layout_.shape.layers, " layers", kMakeAgain));
      }
    }
    return absl::OkStatus();
  }

  // Refuses to pack what the reader of packed files would refuse.
  absl::Status CheckLimits() const {
    if (layout_.items.size() > kPackedMaxTensors) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_.path(), ": the model has ", layout_.items.size(),
                       " tensors with its levels' LoRA, at most ", kPackedMaxTensors,
                       " can be packed: make fewer levels"));
    }
    uint64_t metadata_bytes = 0;
    for (const MetadataEntry& entry : file_.metadata()) metadata_bytes += entry.payload.size();
    if (metadata_bytes > kPackedMaxMetadataBytes / 2) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_.path(), ": the metadata has ", metadata_bytes, " bytes, at most ",
                       kPackedMaxMetadataBytes / 2, " can be packed"));
    }
    return absl::OkStatus();
  }

  const GgufFile& file_;
  PackedLayout layout_;
  std::unordered_set<std::string> used_;
  uint64_t offset_ = 0;
};

}  // namespace

std::vector<int32_t> QueryHeadOrder(int32_t heads, int32_t kv_heads) {
  const int32_t ranks = heads / kv_heads;
  std::vector<int32_t> order;
  order.reserve(static_cast<size_t>(heads));
  for (int32_t place = 0; place < heads; ++place) {
    order.push_back(ranks >= 3 ? (place % kv_heads) * ranks + place / kv_heads : place);
  }
  return order;
}

int32_t PanelInputs(int32_t unit) { return LargestPanel(unit, kMaxPanelInputs); }

int32_t NeuronPanel(int32_t d_ff) {
  return LargestPanel(d_ff, std::clamp(d_ff / kMinNeuronPanels, kMinPanelInputs, kMaxPanelInputs));
}

absl::StatusOr<PackedLayout> JudgeLayout(const GgufFile& file,
                                         std::vector<absl::Status>* problems) {
  const FileKind kind = RecogniseFile(file);
  problems->insert(problems->end(), kind.problems.begin(), kind.problems.end());
  absl::StatusOr<ModelShape> shape = absl::UnknownError("");
  if (kind.is_model) {
    shape = ReadShape(file);
    if (!shape.ok()) problems->push_back(shape.status());
  }
  if (kind.has_weights) {
    const absl::Status types = CheckTypes(file);
    if (!types.ok()) problems->push_back(types);
  }
  WITHY_RETURN_IF_ERROR(JoinProblems(*problems));
  absl::StatusOr<PackedLayout> layout = Planner(file).Plan(*std::move(shape));
  if (!layout.ok()) problems->push_back(layout.status());
  return layout;
}

absl::StatusOr<PackedLayout> PlanLayout(const GgufFile& file) {
  std::vector<absl::Status> problems;
  return JudgeLayout(file, &problems);
}

}  // namespace withy::engine
