#include "engine/cuda/workspace.h"

#include "base/round_up.h"
#include "base/status.h"

namespace withy::engine::cuda {

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

}  // namespace withy::engine::cuda
