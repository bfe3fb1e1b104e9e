#include "engine/weights/overlay.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/utf8.h"
#include "engine/gguf/quants.h"
#include "engine/gguf/writer.h"
#include "engine/weights/layout.h"
#include "engine/weights/levels.h"
#include "engine/weights/sha256.h"
#include "engine/weights/types/packed_type.h"

namespace withy::engine {
namespace {

constexpr char kOverlayRemedy[] =
    ": take the overlay that belongs to this model, or make the model elastic with ./withy "
    "elasticize";

absl::Status WithRemedy(const absl::Status& status) {
  if (status.ok()) return status;
  return {status.code(), absl::StrCat(status.message(), kOverlayRemedy)};
}

// Where the units of one tensor come from: position p has unit order[p], of `size` rows or columns.
struct UnitMove {
  std::span<const int32_t> order;
  int32_t size = 1;
  bool columns = false;
};

// A checked overlay.
struct OverlayPlan {
  ModelShape shape;
  LevelTable levels;
  std::string source_sha256;
  std::vector<int32_t> heads;     // [layers * heads]
  std::vector<int32_t> kv_heads;  // [layers * kv_heads]
  std::vector<int32_t> neurons;   // [layers * d_ff]
  std::vector<const TensorInfo*> lora;
};

class OverlayChecker {
 public:
  OverlayChecker(const GgufFile& plain, const GgufFile& overlay)
      : plain_(plain), overlay_(overlay) {}

  // `source_sha256`: of the plain file; empty: to be computed.
  absl::StatusOr<OverlayPlan> Check(const std::string& source_sha256) {
    for (const MetadataEntry& entry : plain_.metadata()) {
      if (!entry.key.starts_with("withy.level.")) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(plain_.path(), ": it has levels already (", ToAbsl(entry.key),
                       "): name the plain file that the overlay was made for"));
    }
    WITHY_ASSIGN_OR_RETURN(const PackedLayout layout, PlanLayout(plain_));
    plan_.shape = layout.shape;
    WITHY_RETURN_IF_ERROR(RefuseFused());
    WITHY_RETURN_IF_ERROR(WithRemedy(CheckKeysKnown()));
    WITHY_RETURN_IF_ERROR(CheckSource(source_sha256));
    const ModelShape& s = plan_.shape;
    WITHY_ASSIGN_OR_RETURN(plan_.heads, Order(kOverlayHeads, s.heads));
    WITHY_ASSIGN_OR_RETURN(plan_.neurons, Order(kOverlayNeurons, s.d_ff));
    WITHY_RETURN_IF_ERROR(WithRemedy(CheckGroups()));
    WITHY_ASSIGN_OR_RETURN(plan_.levels, ReadLevels(overlay_, s));
    if (plan_.levels.levels.empty()) {
      return Wrong("withy.level.percent", "is missing or empty; it must list at least one level");
    }
    WITHY_RETURN_IF_ERROR(WithRemedy(CheckFindings()));
    WITHY_RETURN_IF_ERROR(WithRemedy(CheckLora()));
    if (layout.items.size() + plan_.lora.size() > kPackedMaxTensors) {
      return absl::InvalidArgumentError(
          absl::StrCat(overlay_.path(), ": with its LoRA the model has ",
                       layout.items.size() + plan_.lora.size(), " tensors, at most ",
                       kPackedMaxTensors, " can be served: take an overlay of fewer levels"));
    }
    return std::move(plan_);
  }

 private:
  absl::Status Wrong(std::string_view item, std::string_view what) const {
    return WithRemedy(absl::InvalidArgumentError(
        absl::StrCat(overlay_.path(), ": ", ValidUtf8(item, kMaxShownBytes), " ", ToAbsl(what))));
  }

  // A misspelt key would otherwise be left out in silence.
  absl::Status CheckKeysKnown() const {
    static const std::set<std::string_view> known = {kOverlaySource,
                                                     kOverlayHeads,
                                                     kOverlayNeurons,
                                                     kGgufOwnTensors,
                                                     "withy.level.percent",
                                                     "withy.level.heads",
                                                     "withy.level.neurons",
                                                     "withy.level.anchors",
                                                     "withy.level.whole_loss",
                                                     "withy.level.loss",
                                                     "withy.lora.rank",
                                                     "withy.level.lora_loss",
                                                     "withy.importance.layers",
                                                     "withy.importance.heads",
                                                     "withy.importance.neurons"};
    for (const MetadataEntry& entry : overlay_.metadata()) {
      if (!entry.key.starts_with("withy.") || known.contains(entry.key)) continue;
      return absl::InvalidArgumentError(absl::StrCat(overlay_.path(), ": metadata key ",
                                                     ValidUtf8(entry.key, kMaxShownBytes),
                                                     " does not belong to an overlay"));
    }
    return absl::OkStatus();
  }

  // Units are moved within a tensor by its name, and such a tensor holds those of several matrices.
  absl::Status RefuseFused() const {
    for (const TensorInfo& tensor : plain_.tensors()) {
      const bool gate_up = plan_.shape.fused_gate_up && tensor.name.ends_with(".ffn_up.weight");
      if (!gate_up && !tensor.name.ends_with(".attn_qkv.weight")) continue;
      return absl::UnimplementedError(
          absl::StrCat(plain_.path(), ": tensor ", tensor.name,
                       " holds several matrices in one, and an overlay moves rows of single ones: "
                       "use the model without levels"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckSource(const std::string& known) {
    const auto wanted = overlay_.GetString(kOverlaySource);
    if (!wanted.ok()) return WithRemedy(wanted.status());
    const bool hexadecimal = std::all_of(wanted->begin(), wanted->end(), [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    });
    if (wanted->size() != 64 || !hexadecimal) {
      return Wrong(kOverlaySource, "is no SHA-256 of 64 hexadecimal digits in lower case");
    }
    plan_.source_sha256 = known.empty() ? Sha256Of(plain_) : known;
    if (plan_.source_sha256 == *wanted) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(overlay_.path(), ": it was made for the file with the SHA-256 ",
                     ToAbsl(*wanted), " (", ToAbsl(kOverlaySource), "), and ", plain_.path(),
                     " has ", plan_.source_sha256, kOverlayRemedy));
  }

  // The order of `units` units in each layer.
  absl::StatusOr<std::vector<int32_t>> Order(std::string_view key, int32_t units) const {
    const auto values = overlay_.GetIntArray(key);
    if (!values.ok()) return WithRemedy(values.status());
    const auto wanted = static_cast<size_t>(plan_.shape.layers) * static_cast<size_t>(units);
    if (values->size() != wanted) {
      return Wrong(key, absl::StrCat("has ", values->size(), " numbers; ", plan_.shape.layers,
                                     " layers of ", units, " need ", wanted));
    }
    std::vector<int32_t> order(wanted);
    std::vector<bool> seen;
    for (size_t i = 0; i < wanted; ++i) {
      if (i % static_cast<size_t>(units) == 0) seen.assign(static_cast<size_t>(units), false);
      const int64_t value = (*values)[i];
      const std::string where =
          absl::StrCat("is ", value, " at position ", i % static_cast<size_t>(units), " of layer ",
                       i / static_cast<size_t>(units));
      if (value < 0 || value >= units) {
        return Wrong(key, absl::StrCat(where, "; it must be from 0 to ", units - 1));
      }
      if (seen[static_cast<size_t>(value)]) {
        return Wrong(key, absl::StrCat(where, " for the second time; each unit has one position"));
      }
      seen[static_cast<size_t>(value)] = true;
      order[i] = static_cast<int32_t>(value);
    }
    return order;
  }

  // The heads at the positions of one KV group come from one group: from itself, or, if levels cut
  // KV heads, from any. Fills kv_heads.
  absl::Status CheckGroups() {
    const ModelShape& s = plan_.shape;
    const int32_t group = s.query_heads_per_group();
    for (size_t i = 0; i < plan_.heads.size(); ++i) {
      const int32_t position = static_cast<int32_t>(i % static_cast<size_t>(s.heads));
      const int32_t from = plan_.heads[i] / group;
      if (position % group == 0) plan_.kv_heads.push_back(from);
      const int32_t wanted = s.cuts_kv_heads() ? plan_.kv_heads.back() : position / group;
      if (from == wanted) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          overlay_.path(), ": ", ToAbsl(kOverlayHeads), " is ", plan_.heads[i], " at position ",
          position, " of layer ", i / static_cast<size_t>(s.heads), ", which is a head of group ",
          from, "; the heads there must be of group ", wanted));
    }
    return absl::OkStatus();
  }

  // Sizes of what the levels were chosen by, which is only shown.
  absl::Status CheckFindings() const {
    const ModelShape& s = plan_.shape;
    const auto layers = static_cast<uint64_t>(s.layers);
    const uint64_t levels = plan_.levels.levels.size();
    const std::pair<const char*, uint64_t> arrays[] = {
        {"withy.level.anchors", layers},
        {"withy.level.loss", levels},
        {"withy.level.lora_loss", levels},
        {"withy.importance.layers", layers},
        {"withy.importance.heads", layers * static_cast<uint64_t>(s.heads)},
        {"withy.importance.neurons", layers * static_cast<uint64_t>(s.d_ff)}};
    for (const auto& [key, most] : arrays) {
      if (!overlay_.Has(key)) continue;
      WITHY_ASSIGN_OR_RETURN(const uint64_t count, overlay_.GetArrayCount(key));
      if (count <= most) continue;
      return absl::InvalidArgumentError(absl::StrCat(overlay_.path(), ": ", key, " has ", count,
                                                     " numbers; there are at most ", most));
    }
    return absl::OkStatus();
  }

  // Every LoRA tensor of the levels is there, of its shape, in a type that can be packed, finite,
  // and there is no other tensor.
  absl::Status CheckLora() {
    const ModelShape& s = plan_.shape;
    const int32_t rank = plan_.levels.lora_rank;
    for (const LevelSpec& level : plan_.levels.levels) {
      for (int32_t layer = 0; rank > 0 && layer < s.layers; ++layer) {
        const LayerExtent& extent = level.layers[static_cast<size_t>(layer)];
        if (extent == LayerExtent{s.heads, s.d_ff}) continue;
        for (int i = 0; i < kLoraParts; ++i) {
          const auto part = static_cast<LoraPart>(i);
          const LoraShape shape = LoraShapeOf(part, s, extent, rank);
          if (shape.empty()) continue;
          WITHY_RETURN_IF_ERROR(CheckTensor(LoraName(level.percent, layer, part), shape));
        }
      }
    }
    std::set<const TensorInfo*> wanted(plan_.lora.begin(), plan_.lora.end());
    for (const TensorInfo& tensor : overlay_.tensors()) {
      if (wanted.contains(&tensor)) continue;
      return absl::InvalidArgumentError(absl::StrCat(overlay_.path(), ": tensor ",
                                                     ValidUtf8(tensor.name, kMaxShownBytes),
                                                     " does not belong to a LoRA of its levels"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckTensor(const std::string& name, const LoraShape& shape) {
    WITHY_ASSIGN_OR_RETURN(const TensorInfo* tensor, overlay_.GetTensor(name));
    const auto wrong = [&](std::string_view what) {
      return absl::InvalidArgumentError(
          absl::StrCat(overlay_.path(), ": tensor ", name, " ", ToAbsl(what)));
    };
    if (tensor->cols() != shape.cols || tensor->rows() != shape.rows) {
      return wrong(absl::StrCat("is [", tensor->rows(), ", ", tensor->cols(),
                                "]; the levels ask for [", shape.rows, ", ", shape.cols, "]"));
    }
    if (!PackedTypeFor(tensor->type).ok() || !CanDequantize(tensor->type)) {
      return wrong(
          absl::StrCat("has type ", TypeLabel(tensor->type), "; Q8_0 and F32 are supported"));
    }
    std::vector<float> values(static_cast<size_t>(tensor->elements()));
    WITHY_RETURN_IF_ERROR(Dequantize(tensor->type, overlay_.Data(*tensor), values));
    if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) {
      return wrong("has a value that is infinite or no number");
    }
    plan_.lora.push_back(tensor);
    return absl::OkStatus();
  }

  const GgufFile& plain_;
  const GgufFile& overlay_;
  OverlayPlan plan_;
};

// The tensors of layers whose units move, by name.
std::map<std::string, UnitMove> MovesOf(const OverlayPlan& plan) {
  const ModelShape& s = plan.shape;
  std::map<std::string, UnitMove> moves;
  for (int32_t layer = 0; layer < s.layers; ++layer) {
    const auto order = [&](const std::vector<int32_t>& all, int32_t units) {
      return std::span(all).subspan(static_cast<size_t>(layer) * static_cast<size_t>(units),
                                    static_cast<size_t>(units));
    };
    const std::string blk = absl::StrCat("blk.", layer, ".");
    const UnitMove heads{order(plan.heads, s.heads), s.head_dim};
    const UnitMove kv_heads{order(plan.kv_heads, s.kv_heads), s.head_dim};
    const UnitMove neurons{order(plan.neurons, s.d_ff), 1};
    const auto columns = [](UnitMove move) {
      move.columns = true;
      return move;
    };
    // A bias is one row.
    moves[blk + "attn_q.weight"] = heads;
    moves[blk + "attn_q.bias"] = columns(heads);
    moves[blk + "attn_output.weight"] = columns(heads);
    for (const char* name : {"attn_k", "attn_v"}) {
      moves[absl::StrCat(blk, name, ".weight")] = kv_heads;
      moves[absl::StrCat(blk, name, ".bias")] = columns(kv_heads);
    }
    moves[blk + "ffn_gate.weight"] = neurons;
    moves[blk + "ffn_up.weight"] = neurons;
    moves[blk + "ffn_down.weight"] = columns(neurons);
  }
  return moves;
}

// Whether the units can be moved without taking blocks apart.
bool MovesBlocks(const TensorInfo& info, const UnitMove& move) {
  if (!move.columns) return true;
  return move.size % static_cast<int32_t>(FindTypeTraits(info.type)->block_elements) == 0;
}

bool IsIdentity(const UnitMove& move) {
  for (size_t i = 0; i < move.order.size(); ++i) {
    if (move.order[i] != static_cast<int32_t>(i)) return false;
  }
  return true;
}

// `move`: null for a tensor whose units stay where they are.
GgmlType NewType(const TensorInfo& info, const UnitMove* move, const OverlayOptions& options) {
  if (IsMatrix(info) && (move != nullptr || options.every_matrix)) {
    if (options.type.has_value()) return *options.type;
    if (options.every_matrix && IsFloatType(info.type)) return GgmlType::kQ8_0;
  }
  if (move == nullptr || MovesBlocks(info, *move) || IsIdentity(*move)) return info.type;
  return GgmlType::kQ8_0;
}

// Sends the rows of `data` with their units moved, as `type`.
absl::Status SendMoved(const TensorInfo& info, std::span<const uint8_t> data, const UnitMove& move,
                       GgmlType type, const TensorSink& sink) {
  const size_t row_bytes = data.size() / static_cast<size_t>(info.rows());
  const auto cols = static_cast<size_t>(info.cols());
  const auto size = static_cast<size_t>(move.size);
  const bool copies = type == info.type && MovesBlocks(info, move);
  WITHY_ASSIGN_OR_RETURN(const uint64_t new_bytes, RowBytes(type, info.cols()));
  std::vector<uint8_t> row(new_bytes);
  std::vector<float> was(copies ? 0 : cols);
  std::vector<float> moved(was.size());
  for (size_t r = 0; r < static_cast<size_t>(info.rows()); ++r) {
    const size_t from =
        move.columns ? r : static_cast<size_t>(move.order[r / size]) * size + r % size;
    const std::span<const uint8_t> source = data.subspan(from * row_bytes, row_bytes);
    if (copies && !move.columns) {
      WITHY_RETURN_IF_ERROR(sink(source));
      continue;
    }
    if (copies) {
      const size_t unit_bytes = row_bytes / move.order.size();
      for (size_t p = 0; p < move.order.size(); ++p) {
        const auto unit =
            source.subspan(static_cast<size_t>(move.order[p]) * unit_bytes, unit_bytes);
        std::copy(unit.begin(), unit.end(), row.begin() + static_cast<ptrdiff_t>(p * unit_bytes));
      }
    } else {
      WITHY_RETURN_IF_ERROR(Dequantize(info.type, source, was));
      for (size_t c = 0; c < cols; ++c) {
        moved[c] = move.columns ? was[static_cast<size_t>(move.order[c / size]) * size + c % size]
                                : was[c];
      }
      WITHY_RETURN_IF_ERROR(Quantize(type, moved, row));
    }
    WITHY_RETURN_IF_ERROR(sink(row));
  }
  return absl::OkStatus();
}

void SetMetadata(const GgufFile& plain, const GgufFile& overlay, const OverlayPlan& plan,
                 const OverlayOptions& options, GgufWriter* writer) {
  writer->CopyMetadata(plain, [&](std::string_view key) {
    return key.starts_with("withy.") ||
           ((options.type.has_value() || options.every_matrix) && key == "general.file_type");
  });
  writer->CopyMetadata(overlay, [](std::string_view key) {
    return !key.starts_with("withy.level.") && !key.starts_with("withy.lora.") &&
           !key.starts_with("withy.importance.");
  });
  writer->SetString(kOverlaySource, plan.source_sha256);
  writer->SetString(kOverlayApplied, Sha256Of(overlay));
  writer->Set<uint32_t>(kOverlayAppliedBy, kOverlayRevision);
}

}  // namespace

absl::Status ApplyOverlay(const GgufFile& plain, const GgufFile& overlay,
                          const OverlayOptions& options, const std::string& out) {
  WITHY_ASSIGN_OR_RETURN(const OverlayPlan plan,
                         OverlayChecker(plain, overlay).Check(options.source_sha256));
  const std::map<std::string, UnitMove> moves = MovesOf(plan);
  std::deque<std::vector<int32_t>> stays;  // of matrices that only change their type
  GgufWriter writer;
  SetMetadata(plain, overlay, plan, options, &writer);
  for (const TensorInfo& info : plain.tensors()) {
    if (info.name.starts_with(kGgufOwnPrefix)) continue;
    const auto found = moves.find(info.name);
    const std::span<const uint8_t> data = plain.Data(info);
    const UnitMove* const moved = found == moves.end() ? nullptr : &found->second;
    const GgmlType type = NewType(info, moved, options);
    if (type == info.type && (moved == nullptr || IsIdentity(*moved))) {
      writer.AddTensor(info.name, type, info.dims, data);
      continue;
    }
    if (moved == nullptr) {
      std::vector<int32_t>& stay = stays.emplace_back(static_cast<size_t>(info.cols()));
      std::iota(stay.begin(), stay.end(), 0);
    }
    const UnitMove move = moved != nullptr ? *moved : UnitMove{stays.back(), 1, /*columns=*/true};
    writer.AddTensor(info.name, type, info.dims, [&info, data, move, type](const TensorSink& sink) {
      return Annotate(SendMoved(info, data, move, type, sink), absl::StrCat("tensor ", info.name));
    });
  }
  for (const TensorInfo* tensor : plan.lora) {
    writer.AddTensor(tensor->name, tensor->type, tensor->dims, overlay.Data(*tensor));
  }
  return writer.Write(out, options.progress);
}

bool IsOverlay(const GgufFile& file) { return file.Has(kOverlayHeads); }

}  // namespace withy::engine
