// Other ways to shrink a model, for comparison with elastic levels: dropping layers (ShortGPT),
// merging layers (LaCo), dropping attention. Each changes a network's weights in place so that it
// computes the smaller model's function; dropped parts contribute zero. Neighbour:
// baselines_main.cc. Trains nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/types.h"
#include "offline/elastic/network.h"
#include "offline/elastic/text/batches.h"

namespace withy::elastic {

// Number of layers, at least one, of a model with `percent` of the layers' parameters.
int32_t KeptLayers(int32_t layers, int32_t percent);

// Drops all but `kept` layers, starting with the last in `order` (most important first).
void DropLayers(Network& network, std::span<const int32_t> order, int32_t kept);

// Drops attention from the layers that lose least by it (`order` as above) until `percent` of the
// layers' parameters remain. Returns false if dropping all attention is not enough.
bool DropAttention(Network& network, std::span<const int32_t> order, int32_t percent);
// Layers by the loss from dropping their attention, most important first.
std::vector<int32_t> AttentionOrder(Network& network, const std::vector<Batch>& batches);

// Merges runs of layers into their first, w = w_first + sum of (w_next - w_first), until `kept`
// remain. Each step merges the run of two to four layers that costs least loss per removed layer.
void MergeLayers(Network& network, int32_t kept, const std::vector<Batch>& batches);

// Writes `source` with the network's layers, all matrices as `type`. Errors: INVALID_ARGUMENT (an
// unsupported type); as GgufWriter::Write.
absl::Status WriteChanged(const engine::GgufFile& source, const Network& network,
                          engine::GgmlType type, const std::string& path);

}  // namespace withy::elastic
