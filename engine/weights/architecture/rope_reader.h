// Reads RoPE from GGUF metadata: how much of a head it turns, by which frequencies, in which
// layers. Neighbours: shape.h reads everything else of a shape.
#pragma once

#include "absl/status/status.h"
#include "engine/weights/architecture/architecture.h"
#include "engine/weights/architecture/shape_keys.h"
#include "engine/weights/shape.h"

namespace withy::engine {

// Sets rope_dims, the frequencies, their scales and ropes of a shape that has everything else.
// Errors: UNIMPLEMENTED (a scaling; LongRoPE beside two bases), NOT_FOUND (a tensor of LongRoPE),
// INVALID_ARGUMENT naming file, key, value and limit.
absl::Status ReadRope(const ShapeKeys& keys, const Architecture& architecture, ModelShape* shape);

}  // namespace withy::engine
