#include "engine/model/weight_name.h"

#include <array>

#include "absl/strings/str_cat.h"

namespace withy::engine {
namespace {

constexpr std::array<const char*, kWeightRoles> kTensors = {"token_embd",
                                                            "output",
                                                            "position_embd",
                                                            "output_norm",
                                                            "output_norm.bias",
                                                            "altup_proj",
                                                            "altup_unembd_proj",
                                                            "per_layer_token_embd",
                                                            "per_layer_model_proj",
                                                            "per_layer_proj_norm",
                                                            "rope_frequencies",
                                                            "rope_frequencies_long",
                                                            "attn_norm",
                                                            "attn_norm.bias",
                                                            "ffn_norm",
                                                            "ffn_norm.bias",
                                                            "post_attention_norm",
                                                            "post_ffw_norm",
                                                            "attn_q_norm",
                                                            "attn_k_norm",
                                                            "attn_q.bias",
                                                            "attn_k.bias",
                                                            "attn_v.bias",
                                                            "attn_sinks",
                                                            "altup_router_norm",
                                                            "altup_router",
                                                            "altup_predict_coef",
                                                            "altup_correct_coef",
                                                            "altup_correct_scale",
                                                            "laurel_l",
                                                            "laurel_r",
                                                            "laurel_post_norm",
                                                            "inp_gate",
                                                            "proj",
                                                            "post_norm",
                                                            "ffn_gate_inp",
                                                            "ffn_gate_exps",
                                                            "ffn_up_exps",
                                                            "ffn_down_exps",
                                                            "attn_output.bias",
                                                            "ffn_up.bias",
                                                            "ffn_down.bias",
                                                            "ffn_gate_inp.bias",
                                                            "ffn_gate_exps.bias",
                                                            "ffn_up_exps.bias",
                                                            "ffn_down_exps.bias",
                                                            "attn_q",
                                                            "attn_k",
                                                            "attn_v",
                                                            "attn_output",
                                                            "ffn_gate",
                                                            "ffn_up",
                                                            "ffn_down"};

}  // namespace

std::string TensorName(const WeightName& name) {
  const char* const tensor = kTensors[static_cast<size_t>(name.role)];
  if (name.layer < 0) return tensor;
  return absl::StrCat("blk.", name.layer, ".", tensor);
}

}  // namespace withy::engine
