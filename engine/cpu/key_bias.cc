#include "engine/cpu/key_bias.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace withy::engine {
namespace {

// Root mean squares over a head. Keys of trained models have about 1 to 3 without their bias, and
// what is rounded is all of it together, so a bias of a quarter of that costs 3 % of the precision.
constexpr float kNoAccount = 0.25f;  // of the rest that is stored
constexpr float kTooLarge = 1.0f;    // from which a bias is worth its time in attention

}  // namespace

std::vector<int32_t> ChooseKeyBiasPairs(const std::vector<float>& size) {
  const auto dims = 2.0f * static_cast<float>(size.size());
  std::vector<int32_t> order(size.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return size[static_cast<size_t>(a)] > size[static_cast<size_t>(b)];
  });
  float left = 0;
  for (const float pair : size) left += pair * pair;
  std::vector<int32_t> chosen;
  if (left <= kTooLarge * kTooLarge * dims) return chosen;
  for (size_t n = 0; n < order.size() && n < kMaxKeyBiasPairs; ++n) {
    // Summed anew, since a difference of large squares would be all rounding.
    left = 0;
    for (size_t i = n; i < order.size(); ++i) {
      left += size[static_cast<size_t>(order[i])] * size[static_cast<size_t>(order[i])];
    }
    if (left <= kNoAccount * kNoAccount * dims) break;
    chosen.push_back(order[n]);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

KeyBias::KeyBias(const ModelFacts& facts, const BoundWeights& weights) {
  const ModelShape& s = facts.shape;
  stored_.resize(static_cast<size_t>(s.layers));
  bool any = false;
  std::vector<std::unique_ptr<Layer>> layers(static_cast<size_t>(s.layers));
  for (int32_t layer = 0; layer < s.layers; ++layer) {
    const auto at = static_cast<size_t>(layer);
    if (!facts.layers[at].k_bias) continue;
    stored_[at] = weights.Vector({WeightRole::kKBias, layer});
    // Keys that are not turned all get the same bias, which adds the same to all scores of a query;
    // not to a sink.
    const bool adds_nothing = s.RopeOf(layer) == ModelShape::kNoRope &&
                              s.qk_norm == QkNorm::kNone && s.attention_cap == 0.0f &&
                              !s.attention_sinks;
    if (adds_nothing) {
      zeros_.resize(static_cast<size_t>(s.kv_rows()));
      stored_[at] = zeros_.data();
      continue;
    }
    // Where what is rotated is not a sum with the bias, or is rotated otherwise than all layers of
    // most models are, the bias is stored.
    const bool plain_rope = s.rope_dims == s.head_dim && s.RopeOf(layer) == 0;
    if (s.qk_norm != QkNorm::kNone || !plain_rope) continue;
    layers[at] = Split(s, stored_[at]);
    if (layers[at] == nullptr) continue;
    stored_[at] = layers[at]->rest.data();
    any = true;
  }
  if (!any) return;
  layers_ = std::move(layers);
  MakeTables(s);
}

std::unique_ptr<KeyBias::Layer> KeyBias::Split(const ModelShape& s, const float* bias) {
  const int32_t half = s.head_dim / 2;
  const bool adjacent = s.rope_pairing == RopePairing::kAdjacent;
  auto layer = std::make_unique<Layer>();
  layer->rest.assign(bias, bias + s.kv_rows());
  layer->all_pairs.resize(static_cast<size_t>(s.kv_heads) * kMaxKeyBiasPairs);
  layer->all_counts.resize(static_cast<size_t>(s.kv_heads));
  bool any = false;
  for (int32_t head = 0; head < s.kv_heads; ++head) {
    float* rest = layer->rest.data() + head * s.head_dim;
    const auto first = [&](int32_t pair) { return adjacent ? 2 * pair : pair; };
    const auto second = [&](int32_t pair) { return adjacent ? 2 * pair + 1 : pair + half; };
    std::vector<float> size;
    for (int32_t pair = 0; pair < half; ++pair) {
      size.push_back(std::hypot(rest[first(pair)], rest[second(pair)]));
    }
    Layer::Pair* to = layer->all_pairs.data() + head * kMaxKeyBiasPairs;
    for (const int32_t pair : ChooseKeyBiasPairs(size)) {
      const int32_t x = first(pair);
      const int32_t y = second(pair);
      // Attention adds the bias to keys that were scaled when they were turned.
      *to++ = {.first = x,
               .second = y,
               .angle = pair,
               .bias_first = s.rope_scales[0] * rest[x],
               .bias_second = s.rope_scales[0] * rest[y]};
      rest[x] = rest[y] = 0.0f;
      ++layer->all_counts[static_cast<size_t>(head)];
      any = true;
    }
  }
  if (!any) return nullptr;
  layer->pairs = layer->all_pairs.data();
  layer->counts = layer->all_counts.data();
  return layer;
}

void KeyBias::MakeTables(const ModelShape& s) {
  const auto angles = static_cast<size_t>(s.rope_dims / 2);
  const auto runs =
      static_cast<size_t>((s.context_length + kAttentionRunKeys - 1) / kAttentionRunKeys);
  in_run_.resize(angles * 2 * kAttentionRunKeys);
  of_run_.resize(runs * angles * 2);
  for (size_t a = 0; a < angles; ++a) {
    const auto frequency = static_cast<double>(s.rope_frequencies[a]);
    float* in_run = in_run_.data() + a * 2 * kAttentionRunKeys;
    for (int p = 0; p < kAttentionRunKeys; ++p) {
      in_run[p] = static_cast<float>(std::cos(frequency * p));
      in_run[kAttentionRunKeys + p] = static_cast<float>(std::sin(frequency * p));
    }
    for (size_t run = 0; run < runs; ++run) {
      const double angle = frequency * static_cast<double>(run * kAttentionRunKeys);
      of_run_[(run * angles + a) * 2] = static_cast<float>(std::cos(angle));
      of_run_[(run * angles + a) * 2 + 1] = static_cast<float>(std::sin(angle));
    }
  }
  for (const std::unique_ptr<Layer>& layer : layers_) {
    if (layer == nullptr) continue;
    layer->in_run = in_run_.data();
    layer->of_run = of_run_.data();
    layer->angles = static_cast<int32_t>(angles);
  }
}

}  // namespace withy::engine
