#include "engine/model/program.h"

namespace withy::engine {

std::string_view OpName(OpKind kind) {
  static constexpr std::array<std::string_view, kOpKinds> kNames = {
      "embed",           "norm",        "qkv",           "store_kv", "gather_tail", "keep_wanted",
      "attend",          "clear_heads", "attention_out", "gate_up",  "down",        "tap",
      "take_logit_rows", "head"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace withy::engine
