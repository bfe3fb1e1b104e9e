// Reads from GGUF metadata how layers differ and what they have beside attention and MLP: widths,
// shared K and V, gates that are cut off, copies of the stream, inputs of their own. Neighbours:
// shape.h reads everything else of a shape.
#pragma once

#include "absl/status/status.h"
#include "engine/weights/architecture/architecture.h"
#include "engine/weights/architecture/shape_keys.h"
#include "engine/weights/shape.h"

namespace withy::engine {

// Sets d_ff and layer_neurons of a shape that has its number of layers, which are at most
// `most` wide. Errors: NOT_FOUND (no feed_forward_length), INVALID_ARGUMENT naming file, key, value
// and limit.
absl::Status ReadNeurons(const ShapeKeys& keys, const Architecture& architecture, int64_t most,
                         ModelShape* shape);

// Sets kv_sources, gate_cuts, streams, laurel_rank and layer_width, as far as the architecture has
// them, of a shape that has its windows. Errors: NOT_FOUND (a key is missing), INVALID_ARGUMENT
// naming file, key, value and limit, UNIMPLEMENTED (other numbers of copies).
absl::Status ReadLayerKinds(const ShapeKeys& keys, const Architecture& architecture,
                            ModelShape* shape);

}  // namespace withy::engine
