#include "engine/cpu/workspace.h"

#include <algorithm>

namespace withy::engine {

void Workspace::Resize(size_t rows, const ModelShape& s, const ProductForms& forms,
                       int32_t lora_rank, size_t tail_blocks, size_t block_bytes) {
  const auto count = static_cast<int>(rows);
  x.Resize(rows, s.d_model);
  q.Resize(rows, s.q_rows());
  k.Resize(rows, s.kv_rows());
  v.Resize(rows, s.kv_rows());
  attended.Resize(rows, s.q_rows());
  out.Resize(rows, s.d_model);
  if (s.ChangesBranches() || s.has_layer_inputs()) branch.Resize(rows, s.d_model);
  angles.Resize(rows, 4 * static_cast<int32_t>(s.rope_frequencies.size()));
  if (lora_rank > 0) lora.Resize(rows, 7 * lora_rank);
  input.Reset(count, s.d_model, forms.input);
  attention_input.Reset(count, s.q_rows(), forms.attention);
  head_input.Reset(count, s.d_model, forms.head);
  const size_t mlps = s.experts > 0 ? static_cast<size_t>(s.experts_used) : 1;
  const int32_t width = s.experts > 0 ? s.expert_neurons : s.d_ff;
  gate.Resize(rows * mlps, width);
  up.Resize(rows * mlps, width);
  neurons.Reset(static_cast<int>(rows * mlps), width, forms.neurons);
  if (s.experts > 0) {
    router.Resize(rows, s.experts);
    expert_input.Reset(static_cast<int>(rows * mlps), s.d_model, forms.experts);
    expert_output.Resize(rows * mlps, s.d_model);
  }
  if (s.streams > 1) {
    streams.Resize(rows, s.streams * s.d_model);
    merge_input.Reset(count * (s.streams - 1), s.d_model, forms.merge);
  }
  if (s.laurel_rank > 0) {
    laurel.Resize(rows, s.d_model);
    laurel_input.Reset(count, s.laurel_rank, forms.laurel);
  }
  if (s.has_layer_inputs()) {
    layer_inputs.Resize(rows, s.layer_inputs_width());
    layer_gated.Reset(count, s.layer_width, forms.layer_out);
  }
  const int32_t narrowest = std::max(s.laurel_rank, s.layer_width);
  if (narrowest > 0) narrow.Resize(rows, narrowest);
  tail_bytes.Resize(tail_blocks * block_bytes);
  tails.resize(tail_blocks);
  for (size_t i = 0; i < tails.size(); ++i) tails[i] = tail_bytes.data() + i * block_bytes;
}

}  // namespace withy::engine
