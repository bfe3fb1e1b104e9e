#include "engine/model/program.h"

namespace withy::engine {

std::string_view OpName(OpKind kind) {
  static constexpr std::array<std::string_view, kOpKinds> kNames = {
      "embed",           "layer_inputs",   "spread",
      "predict",         "norm",           "qkv",
      "laurel",          "store_kv",       "gather_tail",
      "keep_wanted",     "attend",         "clear_heads",
      "attention_out",   "gate_up",        "down",
      "route",           "expert_gate_up", "expert_down",
      "add_branch",      "correct",        "add_layer_input",
      "merge",           "keep_features",  "tap",
      "take_logit_rows", "head",           "finish_logits",
      "hidden"};
  return kNames[static_cast<size_t>(kind)];
}

int32_t Op::Stage() const {
  const int32_t first = layer * kStagesPerLayer;
  switch (kind) {
    case OpKind::kQkv:
      return first;
    case OpKind::kAttentionOut:
      return first + 1;
    case OpKind::kGateUp:
      return first + 2;
    case OpKind::kDown:
      return first + 3;
    default:
      return -1;
  }
}

}  // namespace withy::engine
