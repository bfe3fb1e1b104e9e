#include "engine/cpu/workspace.h"

namespace withy::engine {

void Workspace::Resize(size_t rows, const ModelShape& s, const ProductForms& forms,
                       int32_t lora_rank, size_t tail_blocks, size_t block_bytes) {
  const auto count = static_cast<int>(rows);
  x.Resize(rows, s.d_model);
  q.Resize(rows, s.q_rows());
  k.Resize(rows, s.kv_rows());
  v.Resize(rows, s.kv_rows());
  attended.Resize(rows, s.q_rows());
  gate.Resize(rows, s.d_ff);
  up.Resize(rows, s.d_ff);
  out.Resize(rows, s.d_model);
  if (s.ChangesBranches()) branch.Resize(rows, s.d_model);
  angles.Resize(rows, 4 * static_cast<int32_t>(s.rope_frequencies.size()));
  if (lora_rank > 0) lora.Resize(rows, 7 * lora_rank);
  input.Reset(count, s.d_model, forms.input);
  attention_input.Reset(count, s.q_rows(), forms.attention);
  neurons.Reset(count, s.d_ff, forms.neurons);
  head_input.Reset(count, s.d_model, forms.head);
  tail_bytes.Resize(tail_blocks * block_bytes);
  tails.resize(tail_blocks);
  for (size_t i = 0; i < tails.size(); ++i) tails[i] = tail_bytes.data() + i * block_bytes;
}

}  // namespace withy::engine
