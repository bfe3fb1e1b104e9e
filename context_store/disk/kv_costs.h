// What it costs to read, to recompute and to round KV, for the decisions about it. Neighbours: a
// worker reports recomputing and rounding when it attaches, read_probe.h measures reading;
// kv_cost_book.h keeps them up to date.
#pragma once

#include <array>

#include "engine/kv/format.h"
#include "policy/kv/kv_load_plan.h"

namespace withy::context_store {

// What attention suffers when KV is read in a format, by KvFormat: the mean KL divergence of the
// model's predictions beyond that of 8 bits, or any multiple of it. Does not fall from kQ8 over kQ4
// and kQ4Q2 to kQ2.
using FormatErrors = std::array<double, engine::kKvFormats>;

// As `withyctl calibrate` finds them for SmolLM2-135M (0.0017, 0.0086, 0.0426), relative to 4 bits.
constexpr FormatErrors UncalibratedErrors() {
  FormatErrors errors = {};
  errors[static_cast<size_t>(engine::KvFormat::kQ4)] = 1;
  errors[static_cast<size_t>(engine::KvFormat::kQ4Q2)] = 5;
  errors[static_cast<size_t>(engine::KvFormat::kQ2)] = 25;
  return errors;
}

// Of a model of 1 B parameters on two cores, and of flash. A load that goes on measures the two
// sides itself and corrects them.
constexpr policy::LoadCosts UncalibratedLoadCosts() {
  return {.recompute_fixed_ms = 20,
          .recompute_chunk_ms = 50,
          .recompute_position_ms = 0.05,
          .read_fixed_ms = 1,
          .read_mib_ms = 1};
}

struct KvCosts {
  policy::LoadCosts load = UncalibratedLoadCosts();
  FormatErrors errors = UncalibratedErrors();
};

}  // namespace withy::context_store
