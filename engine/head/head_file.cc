#include "engine/head/head_file.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "engine/weights/file_kind.h"
#include "engine/weights/types/packed_type.h"

namespace withy::engine {
namespace {

constexpr Architecture kHeadArchitecture = {.name = kDraftHeadArchitecture,
                                            .rope_pairing = RopePairing::kAdjacent};
constexpr int64_t kMaxWidth = 1 << 17;    // as of a model
constexpr size_t kMaxFeatureLayers = 16;  // published heads read three
constexpr int64_t kMaxTargetLayers = 1024;
constexpr char kLayers[] = "eagle3.target_layers";
constexpr char kEarlierLayers[] = "eagle3.extract_layers";
constexpr char kMakeAgain[] = ": convert the head again, or download it again";

class HeadReader {
 public:
  explicit HeadReader(const GgufFile& file) : file_(file) {}

  absl::StatusOr<HeadShape> Read() {
    if (!IsDraftHead(file_)) {
      return Wrong("it is no draft head (EAGLE-3): its general.architecture is not \"eagle3\"");
    }
    WITHY_ASSIGN_OR_RETURN(head_.layer, ReadShapeAs(file_, kHeadArchitecture));
    if (head_.layer.layers != 1) {
      return Wrong(absl::StrCat("eagle3.block_count is ", head_.layer.layers,
                                "; only heads of one layer are supported"));
    }
    WITHY_RETURN_IF_ERROR(ReadInputs());
    WITHY_RETURN_IF_ERROR(ReadDraftVocabulary());
    WITHY_RETURN_IF_ERROR(CheckTensors());
    WITHY_RETURN_IF_ERROR(RefuseOthers());
    return std::move(head_);
  }

 private:
  absl::Status Wrong(std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": ", ToAbsl(what)));
  }

  absl::Status ReadInputs() {
    const std::string key =
        file_.Has(kLayers) || !file_.Has(kEarlierLayers) ? kLayers : kEarlierLayers;
    WITHY_ASSIGN_OR_RETURN(const std::vector<int64_t> layers, file_.GetIntArray(key));
    if (layers.empty() || layers.size() > kMaxFeatureLayers) {
      return Wrong(absl::StrCat(key, " has ", layers.size(), " entries; it must have 1 to ",
                                kMaxFeatureLayers));
    }
    for (const int64_t layer : layers) {
      if (layer < 1 || layer >= kMaxTargetLayers) {
        return Wrong(absl::StrCat(key, " has ", layer, "; it must be 1 to ", kMaxTargetLayers - 1,
                                  ": layers of the target whose input is "
                                  "read"));
      }
      head_.feature_layers.push_back(static_cast<int32_t>(layer));
    }
    WITHY_ASSIGN_OR_RETURN(const int64_t width, file_.GetInt("eagle3.target_hidden_size"));
    if (width < 32 || width > kMaxWidth || width % 32 != 0) {
      return Wrong(absl::StrCat("eagle3.target_hidden_size is ", width,
                                "; it must be a multiple of 32 up to ", kMaxWidth));
    }
    head_.target_width = static_cast<int32_t>(width);
    WITHY_ASSIGN_OR_RETURN(head_.norm_before_residual,
                           file_.GetBoolOr("eagle3.norm_before_residual", false));
    WITHY_ASSIGN_OR_RETURN(head_.norm_before_fc, file_.GetBoolOr("eagle3.norm_before_fc", false));
    return absl::OkStatus();
  }

  absl::Status ReadDraftVocabulary() {
    const int32_t vocab = head_.layer.vocab_size;
    head_.draft_vocab = vocab;
    const TensorInfo* d2t = file_.FindTensor("d2t");
    if (d2t == nullptr) return absl::OkStatus();
    if (d2t->type != GgmlType::kI64 || d2t->dims.size() != 1 || d2t->elements() > vocab) {
      return Wrong(absl::StrCat("tensor d2t has type ", TypeLabel(d2t->type), " and ",
                                d2t->elements(), " elements; it must be I64 with at most ", vocab,
                                ", the vocabulary", kMakeAgain));
    }
    head_.draft_vocab = static_cast<int32_t>(d2t->elements());
    std::vector<bool> seen(static_cast<size_t>(vocab));
    const std::span<const uint8_t> bytes = file_.Data(*d2t);
    for (int32_t i = 0; i < head_.draft_vocab; ++i) {
      int64_t token = 0;
      std::memcpy(&token, bytes.data() + static_cast<size_t>(i) * sizeof(token), sizeof(token));
      if (token < 0 || token >= vocab) {
        return Wrong(absl::StrCat("tensor d2t: element ", i, " is ", token,
                                  ", which is outside 0 to ", vocab - 1, kMakeAgain));
      }
      if (seen[static_cast<size_t>(token)]) {
        return Wrong(absl::StrCat("tensor d2t: element ", i, " is ", token,
                                  ", which an earlier one is, too", kMakeAgain));
      }
      seen[static_cast<size_t>(token)] = true;
      head_.target_tokens.push_back(static_cast<int32_t>(token));
    }
    return absl::OkStatus();
  }

  absl::Status CheckTensors() {
    const ModelShape& s = head_.layer;
    head_.own_embedding = file_.FindTensor("token_embd.weight") != nullptr;
    head_.own_output = file_.FindTensor("output.weight") != nullptr;
    if (head_.own_embedding) {
      WITHY_RETURN_IF_ERROR(Check("token_embd.weight", s.vocab_size, s.d_model));
    }
    if (head_.own_output) {
      WITHY_RETURN_IF_ERROR(Check("output.weight", head_.draft_vocab, s.d_model));
    } else if (!head_.target_tokens.empty()) {
      return absl::NotFoundError(absl::StrCat(file_.path(),
                                              ": tensor output.weight is missing, "
                                              "which a head with a d2t has",
                                              kMakeAgain));
    }
    WITHY_RETURN_IF_ERROR(Check("fc.weight", s.d_model, head_.feature_width()));
    if (head_.norm_before_fc) {
      WITHY_RETURN_IF_ERROR(Check("enc.output_norm.weight", 1, head_.feature_width()));
    }
    const bool earlier = file_.FindTensor("blk.0.hidden_norm.weight") != nullptr;
    head_.hidden_norm = earlier ? "blk.0.hidden_norm.weight" : "blk.0.attn_norm_2.weight";
    for (const std::string& norm :
         {std::string("blk.0.attn_norm.weight"), head_.hidden_norm,
          std::string("blk.0.ffn_norm.weight"), std::string("output_norm.weight")}) {
      WITHY_RETURN_IF_ERROR(Check(norm, 1, s.d_model));
    }
    WITHY_RETURN_IF_ERROR(Check("blk.0.attn_q.weight", s.q_rows(), 2 * s.d_model));
    WITHY_RETURN_IF_ERROR(Check("blk.0.attn_k.weight", s.kv_rows(), 2 * s.d_model));
    WITHY_RETURN_IF_ERROR(Check("blk.0.attn_v.weight", s.kv_rows(), 2 * s.d_model));
    WITHY_RETURN_IF_ERROR(Check("blk.0.attn_output.weight", s.d_model, s.q_rows()));
    WITHY_RETURN_IF_ERROR(Check("blk.0.ffn_gate.weight", s.d_ff, s.d_model));
    WITHY_RETURN_IF_ERROR(Check("blk.0.ffn_up.weight", s.d_ff, s.d_model));
    return Check("blk.0.ffn_down.weight", s.d_model, s.d_ff);
  }

  absl::Status Check(const std::string& name, int64_t rows, int64_t cols) {
    used_.insert(name);
    const TensorInfo* tensor = file_.FindTensor(name);
    if (tensor == nullptr) {
      return absl::NotFoundError(
          absl::StrCat(file_.path(), ": tensor ", name, " is missing", kMakeAgain));
    }
    if (tensor->rows() != rows || tensor->cols() != cols) {
      return Wrong(absl::StrCat("tensor ", name, " is [", tensor->rows(), ", ", tensor->cols(),
                                "]; by the metadata it must be [", rows, ", ", cols, "]",
                                kMakeAgain));
    }
    return Annotate(PackedTypeFor(tensor->type).status(),
                    absl::StrCat(file_.path(), ": tensor ", name));
  }

  // What is left out would make the head draft badly, and nobody would see why.
  absl::Status RefuseOthers() const {
    for (const TensorInfo& tensor : file_.tensors()) {
      const bool known =
          used_.contains(tensor.name) || tensor.name == "d2t" || tensor.name == "rope_freqs.weight";
      if (known) continue;
      return absl::UnimplementedError(absl::StrCat(
          file_.path(), ": tensor ", ValidUtf8(tensor.name, kMaxShownBytes),
          " is none of an EAGLE-3 head as it is computed here: take a head without it"));
    }
    return absl::OkStatus();
  }

  const GgufFile& file_;
  HeadShape head_;
  std::set<std::string> used_;
};

}  // namespace

absl::StatusOr<HeadShape> ReadHead(const GgufFile& file) { return HeadReader(file).Read(); }

absl::Status CheckHeadFits(std::string_view path, const HeadShape& head, const ModelInfo& target) {
  const auto misfit = [&](std::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(path), ": the draft head does not fit the model ", target.name, ": ",
                     ToAbsl(what), ": name the head of this model in model.head_path, or none"));
  };
  if (target.kv.layers != target.layers) {
    return misfit("its layers share K and V, and heads of such models are not supported");
  }
  if (head.target_width != target.d_model) {
    return misfit(absl::StrCat("it reads hidden states of width ", head.target_width,
                               ", the model's are ", target.d_model));
  }
  const int32_t last = *std::max_element(head.feature_layers.begin(), head.feature_layers.end());
  if (last >= target.layers) {
    return misfit(absl::StrCat("it reads the input of layer ", last, ", the model has layers 0 to ",
                               target.layers - 1));
  }
  if (head.layer.vocab_size != target.vocab_size) {
    return misfit(absl::StrCat("it is for a vocabulary of ", head.layer.vocab_size,
                               " tokens, the model has ", target.vocab_size));
  }
  const bool borrows = !head.own_embedding || !head.own_output;
  if (borrows && head.layer.d_model != target.d_model) {
    return misfit(absl::StrCat("it has no ", head.own_embedding ? "output" : "token_embd",
                               ".weight, and the model's has the width ", target.d_model, ", not ",
                               head.layer.d_model));
  }
  return absl::OkStatus();
}

std::string DescribeHead(const HeadShape& head) {
  const int32_t last = *std::max_element(head.feature_layers.begin(), head.feature_layers.end());
  return absl::StrCat(
      "for a model of width ", head.target_width, " with more than ", last, " layers and ",
      head.layer.vocab_size, " tokens; it reads the inputs of layers ",
      absl::StrJoin(head.feature_layers, ", "), " and drafts ", head.draft_vocab, " tokens");
}

}  // namespace withy::engine
