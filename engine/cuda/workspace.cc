#include "engine/cuda/workspace.h"

#include <algorithm>

#include "base/round_up.h"
#include "base/status.h"

namespace withy::engine::cuda {
namespace {

constexpr size_t kPartBytes = size_t{64} << 20;  // of attention's parts at a time

size_t FloatBytes(size_t rows, int32_t width) {
  return rows * static_cast<size_t>(width) * sizeof(float);
}

}  // namespace

absl::Status InputBuffer::Reserve(size_t rows, int width, unsigned forms) {
  forms_ = forms;
  inputs_ = {};
  inputs_.groups = (width + kGroupInputs - 1) / kGroupInputs;
  const size_t groups = rows * static_cast<size_t>(inputs_.groups);
  const size_t blocks = groups * kGroupBlocks;
  const size_t quants = RoundUp(quantise() ? groups * kGroupInputs : 0, size_t{256});
  const size_t by_block = RoundUp(blocks * sizeof(float), size_t{256});
  const size_t floats = keep_floats() ? groups * kGroupInputs * sizeof(float) : 0;
  WITHY_RETURN_IF_ERROR(memory_.Reserve(quants + 3 * by_block + floats));
  auto* at = memory_.as<uint8_t>();
  inputs_.quants = reinterpret_cast<int8_t*>(at);
  at += quants;
  inputs_.scales = reinterpret_cast<float*>(at);
  at += by_block;
  inputs_.sums = reinterpret_cast<int32_t*>(at);
  at += by_block;
  inputs_.squares = reinterpret_cast<float*>(at);
  at += by_block;
  inputs_.floats = reinterpret_cast<float*>(at);
  return absl::OkStatus();
}

Workspace::Workspace(Gpu& gpu)
    : input(gpu),
      attention_input(gpu),
      neurons(gpu),
      head_input(gpu),
      x(gpu),
      q(gpu),
      k(gpu),
      v(gpu),
      lora(gpu),
      query_bytes(gpu),
      parts(gpu),
      tail(gpu),
      density(gpu),
      tapped(gpu),
      logits(gpu),
      gpu_(gpu) {}

absl::Status Workspace::Reserve(const ModelFacts& facts, const ProductForms& forms,
                                const PassSizes& sizes) {
  const ModelShape& s = facts.shape;
  const size_t rows = sizes.rows;
  WITHY_RETURN_IF_ERROR(input.Reserve(rows, s.d_model, forms.input));
  WITHY_RETURN_IF_ERROR(attention_input.Reserve(rows, s.q_rows(), forms.attention));
  WITHY_RETURN_IF_ERROR(neurons.Reserve(rows, s.d_ff, forms.neurons));
  WITHY_RETURN_IF_ERROR(
      head_input.Reserve(std::max<size_t>(sizes.logit_rows, 1), s.d_model, forms.head));
  WITHY_RETURN_IF_ERROR(x.Reserve(FloatBytes(rows, s.d_model)));
  WITHY_RETURN_IF_ERROR(q.Reserve(FloatBytes(rows, s.q_rows())));
  WITHY_RETURN_IF_ERROR(k.Reserve(FloatBytes(rows, s.kv_rows())));
  WITHY_RETURN_IF_ERROR(v.Reserve(FloatBytes(rows, s.kv_rows())));
  if (sizes.low_rank) {
    WITHY_RETURN_IF_ERROR(lora.Reserve(FloatBytes(rows, 7 * facts.lora_rank)));
  }
  WITHY_RETURN_IF_ERROR(logits.Reserve(FloatBytes(sizes.logit_rows, s.vocab_size)));
  WITHY_RETURN_IF_ERROR(tail.Reserve(sizes.tail_bytes));
  return ReserveAttention(s, sizes);
}

absl::Status Workspace::ReserveAttention(const ModelShape& s, const PassSizes& sizes) {
  const size_t heads = sizes.rows * static_cast<size_t>(s.heads);
  part_row_bytes = FloatBytes(static_cast<size_t>(s.heads) * static_cast<size_t>(sizes.runs),
                              s.head_dim + kPartExtra);
  WITHY_RETURN_IF_ERROR(
      parts.Reserve(std::max(part_row_bytes, std::min(kPartBytes, sizes.rows * part_row_bytes))));
  const size_t q_bytes = RoundUp(heads * static_cast<size_t>(s.head_dim), size_t{256});
  const size_t bias_floats = sizes.key_bias ? heads * kMaxBiasPairs * 2 : 0;
  const size_t rotated_floats = sizes.half_blocks ? heads * static_cast<size_t>(s.head_dim) : 0;
  WITHY_RETURN_IF_ERROR(
      query_bytes.Reserve(q_bytes + (2 * heads + bias_floats + rotated_floats) * sizeof(float)));
  queries.q = query_bytes.as<int8_t>();
  queries.scale = reinterpret_cast<float*>(queries.q + q_bytes);
  queries.sum = reinterpret_cast<int32_t*>(queries.scale + heads);
  float* const after = queries.scale + 2 * heads;
  queries.bias = sizes.key_bias ? after : nullptr;
  queries.rotated = sizes.half_blocks ? after + bias_floats : nullptr;
  if (sizes.density_chunks == 0) return absl::OkStatus();
  const size_t bytes = FloatBytes(heads, sizes.density_chunks);
  WITHY_RETURN_IF_ERROR(density.Reserve(bytes));
  return gpu_.Zero(density.as<float>(), bytes);
}

}  // namespace withy::engine::cuda
