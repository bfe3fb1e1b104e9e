// The shapes of model that the benchmark of contexts is for, and what recomputing KV of them takes
// on this machine. Neighbour: contexts_run.h adds these times to what it measures of the store.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/contexts/contexts_figures.h"
#include "engine/kv/block.h"
#include "engine/model/synth.h"

namespace withy::bench {

struct ContextShape {
  std::string name;
  engine::SynthShape model;

  engine::KvGeometry kv() const { return {model.layers, model.kv_heads, model.head_dim}; }
};

// "gqa": 1.1 B parameters with 4 KV heads, 12 KiB a token at 8 bits. "mha": the same with a KV head
// for each of its 32 heads, 94 KiB a token. Errors: INVALID_ARGUMENT listing the names.
absl::StatusOr<ContextShape> FindContextShape(std::string_view name);

// A model of the shape with random weights at 4 bits: a file in `directory`, which is made if it is
// not there. Errors: of writing it.
absl::StatusOr<std::string> ShapeFile(const ContextShape& shape, const std::string& directory);

struct MeasuredCost {
  RecomputeCost cost;
  // A prefill from position 0 that was executed, against what `cost` says of it: the ratio is 1 if
  // the curve is right.
  double executed_ms = 0;
  double predicted_ms = 0;
};

// Computes pieces of a prefill of ShapeFile at several depths. The engine is the worker's; a worker
// alone with one call computes the same pieces.
absl::StatusOr<MeasuredCost> MeasureRecompute(const ContextShape& shape,
                                              const std::string& directory, uint32_t max_tokens,
                                              int threads);

}  // namespace withy::bench
