// Other ways to make a model smaller, to compare elastic levels with: whole layers left out
// (ShortGPT), layers merged into one (LaCo), attention left out of layers. Each changes a network's
// weights in place, so that its function is the smaller model's: what is left out adds nothing.
// Neighbours: baselines_main.cc writes them as GGUF files. Trains nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offline/elastic/batches.h"
#include "offline/elastic/network.h"

namespace withy::elastic {

// Layers that a model of `percent` of the layers' parameters keeps, at least one.
int32_t KeptLayers(int32_t layers, int32_t percent);

// Leaves out all but `kept` layers, those first that are last in `order` (most important first).
void DropLayers(Network& network, std::span<const int32_t> order, int32_t kept);

// Leaves the attention out of the layers that lose least by it (`order` as above), until `percent`
// of the layers' parameters are left. False when that takes more than all attention.
bool DropAttention(Network& network, std::span<const int32_t> order, int32_t percent);
// Layers by what leaving their attention out does to the loss, most important first.
std::vector<int32_t> AttentionOrder(Network& network, const std::vector<Batch>& batches);

// Merges runs of layers into their first, w = w_first + sum of (w_next - w_first), until `kept` are
// left. Each time the run of two to four layers is taken whose merging costs least loss a layer.
void MergeLayers(Network& network, int32_t kept, const std::vector<Batch>& batches);

}  // namespace withy::elastic
