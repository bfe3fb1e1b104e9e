// An EAGLE-3 draft head as a GGUF, with the keys and tensor names of llama.cpp's converter: reads
// what it says of itself, checks its tensors, and whether it fits a target. Neighbours:
// draft_head.h computes with it; weights/file_kind.h recognises the file. Source: Li et al.,
// "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test",
// section 3.
//
//   eagle3.target_layers           layers of the target whose inputs the head reads; earlier files:
//                                  eagle3.extract_layers
//   eagle3.target_hidden_size      width of each of them
//   eagle3.norm_before_residual, norm_before_fc    bool, default false
//   and the sizes, norms and RoPE of one layer as of a llama
//   fc                             [width, layers read * target width]
//   enc.output_norm                [layers read * target width], with norm_before_fc: an RMS norm
//   of
//                                  all that fc reads together
//   blk.0.attn_norm, attn_norm_2   norms of the token's embedding and of the hidden state; the
//   latter
//                                  is hidden_norm in earlier files
//   blk.0.attn_q, attn_k, attn_v   [.., 2 * width]: both of them, the embedding first
//   blk.0.attn_output, ffn_norm, ffn_gate, ffn_up, ffn_down, output_norm
//   d2t                            I64 [draft vocabulary]: the target's id of each drafted token;
//                                  missing: the head drafts all tokens of the target
//   output                         [draft vocabulary, width]; missing: the target's
//   token_embd                     [vocabulary, width]; missing: the target's
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/model/model.h"
#include "engine/weights/shape.h"

namespace withy::engine {

struct HeadShape {
  ModelShape layer;  // its one layer; vocab_size is the target's
  int32_t target_width = 0;
  std::vector<int32_t> feature_layers;  // of the target, in the order of the inputs of fc
  bool norm_before_residual = false;    // the residual is the normed hidden state
  bool norm_before_fc = false;          // fc reads normed features
  std::string hidden_norm;              // the tensor's name
  int32_t draft_vocab = 0;
  // [draft_vocab]: the target's id of each drafted token; empty: the same id.
  std::vector<int32_t> target_tokens;
  bool own_embedding = false;
  bool own_output = false;

  int32_t feature_width() const {
    return static_cast<int32_t>(feature_layers.size()) * target_width;
  }
};

// Reads metadata and d2t, and checks the other tensors' names and shapes. Errors: as ReadShapeAs;
// NOT_FOUND (a key or tensor is missing), INVALID_ARGUMENT (no draft head; a wrong number of
// layers, a wrong shape, an id in d2t that is outside the vocabulary or there twice), UNIMPLEMENTED
// (a tensor that such a head does not have, a type that cannot be packed); all name file and item.
absl::StatusOr<HeadShape> ReadHead(const GgufFile& file);

// Whether the head of `path` can draft for a target. Errors: INVALID_ARGUMENT naming both, the
// value and the limit.
absl::Status CheckHeadFits(std::string_view path, const HeadShape& head, const ModelInfo& target);

// "for a model of width 4096 with at least 30 layers and 128256 tokens, ..."
std::string DescribeHead(const HeadShape& head);

}  // namespace withy::engine
