#include "offline/elastic/baselines.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/gguf/matrix_types.h"
#include "engine/gguf/quants.h"
#include "engine/gguf/writer.h"
#include "offline/elastic/importance.h"

namespace withy::elastic {
namespace {

using torch::Tensor;

constexpr int32_t kLongestRun = 4;

std::vector<Tensor*> Weights(Layer& layer) {
  std::vector<Tensor*> all = {
      &layer.attention_norm, &layer.ffn_norm, &layer.q,   &layer.k, &layer.v, &layer.o,
      &layer.gate,           &layer.up,       &layer.down};
  for (Tensor* optional :
       {&layer.q_bias, &layer.k_bias, &layer.v_bias, &layer.q_norm, &layer.k_norm}) {
    if (optional->defined()) all.push_back(optional);
  }
  return all;
}

void LeaveOut(Layer& layer) {
  layer.o = torch::zeros_like(layer.o);
  layer.down = torch::zeros_like(layer.down);
}

// Merges the layers of `run` (indices of remaining layers) into the first one.
void Merge(std::vector<Layer>& layers, std::span<const int32_t> run) {
  Layer& first = layers[static_cast<size_t>(run.front())];
  const Layer kept = first;  // tensors are shared; they are replaced below
  for (const int32_t next : run.subspan(1)) {
    Layer& other = layers[static_cast<size_t>(next)];
    Layer base = kept;
    const std::vector<Tensor*> into = Weights(first), from = Weights(other), start = Weights(base);
    for (size_t i = 0; i < into.size(); ++i) *into[i] = *into[i] + *from[i] - *start[i];
  }
  for (const int32_t next : run.subspan(1)) LeaveOut(layers[static_cast<size_t>(next)]);
}

// The layers' tensors by name.
std::map<std::string, Tensor> LayerTensors(const Network& network) {
  std::map<std::string, Tensor> all;
  for (size_t i = 0; i < network.layers().size(); ++i) {
    const Layer& layer = network.layers()[i];
    const std::string blk = absl::StrCat("blk.", i, ".");
    for (const auto& [name, value] :
         {std::pair<const char*, const Tensor*>{"attn_q.weight", &layer.q},
          {"attn_k.weight", &layer.k},
          {"attn_v.weight", &layer.v},
          {"attn_q.bias", &layer.q_bias},
          {"attn_k.bias", &layer.k_bias},
          {"attn_v.bias", &layer.v_bias},
          {"attn_norm.weight", &layer.attention_norm},
          {"ffn_norm.weight", &layer.ffn_norm},
          {"attn_output.weight", &layer.o},
          {"ffn_gate.weight", &layer.gate},
          {"ffn_up.weight", &layer.up},
          {"ffn_down.weight", &layer.down}}) {
      if (value->defined()) all[blk + name] = *value;
    }
  }
  return all;
}

}  // namespace

int32_t KeptLayers(int32_t layers, int32_t percent) {
  return std::max(1, static_cast<int32_t>(std::lround(layers * percent / 100.0)));
}

void DropLayers(Network& network, std::span<const int32_t> order, int32_t kept) {
  for (const int32_t layer : order.subspan(static_cast<size_t>(kept)))
    LeaveOut(network.layers()[static_cast<size_t>(layer)]);
}

std::vector<int32_t> AttentionOrder(Network& network, const std::vector<Batch>& batches) {
  std::vector<double> losses;
  for (Layer& layer : network.layers()) {
    const Tensor o = std::exchange(layer.o, torch::zeros_like(layer.o));
    losses.push_back(MeanLoss(network, batches));
    layer.o = o;
  }
  return AnchorOrder(losses);
}

bool DropAttention(Network& network, std::span<const int32_t> order, int32_t percent) {
  int64_t left = 0;
  for (Layer& layer : network.layers()) {
    for (const Tensor* weight : Weights(layer)) left += weight->numel();
  }
  const double wanted = static_cast<double>(left) * percent / 100.0;
  for (auto layer = order.rbegin(); layer != order.rend(); ++layer) {
    if (static_cast<double>(left) <= wanted) return true;
    Layer& poorer = network.layers()[static_cast<size_t>(*layer)];
    for (const Tensor* weight : {&poorer.q, &poorer.k, &poorer.v, &poorer.o})
      left -= weight->numel();
    poorer.o = torch::zeros_like(poorer.o);
  }
  return static_cast<double>(left) <= wanted;
}

void MergeLayers(Network& network, int32_t kept, const std::vector<Batch>& batches) {
  std::vector<int32_t> there;
  for (int32_t i = 0; i < network.shape().layers; ++i) there.push_back(i);
  while (static_cast<int32_t>(there.size()) > kept) {
    const int32_t surplus = static_cast<int32_t>(there.size()) - kept;
    const double now = MeanLoss(network, batches);
    size_t best_first = 0;
    int32_t best_length = 2;
    double least = std::numeric_limits<double>::infinity();
    for (int32_t length = 2; length <= std::min(kLongestRun, surplus + 1); ++length) {
      for (size_t first = 0; first + static_cast<size_t>(length) <= there.size(); ++first) {
        const std::vector<Layer> before = network.layers();
        Merge(network.layers(), std::span(there).subspan(first, static_cast<size_t>(length)));
        const double cost = (MeanLoss(network, batches) - now) / (length - 1);
        network.layers() = before;
        if (cost < least) {
          least = cost;
          best_first = first;
          best_length = length;
        }
      }
    }
    Merge(network.layers(), std::span(there).subspan(best_first, static_cast<size_t>(best_length)));
    const auto gone = there.begin() + static_cast<int64_t>(best_first) + 1;
    there.erase(gone, gone + best_length - 1);
  }
}

absl::Status WriteChanged(const engine::GgufFile& source, const Network& network,
                          engine::GgmlType type, const std::string& path) {
  const std::map<std::string, Tensor> changed = LayerTensors(network);
  engine::GgufWriter writer;
  writer.CopyMetadata(source, [](std::string_view key) { return key == "general.file_type"; });
  std::deque<std::vector<uint8_t>> contents;  // borrowed by the writer
  for (const engine::TensorInfo& info : source.tensors()) {
    std::vector<float> values(static_cast<size_t>(info.elements()));
    if (const auto it = changed.find(info.name); it != changed.end()) {
      const Tensor data = it->second.to(torch::kCPU, torch::kFloat32).contiguous();
      std::copy_n(data.data_ptr<float>(), values.size(), values.begin());
    } else {
      WITHY_RETURN_IF_ERROR(engine::Dequantize(info.type, source.Data(info), values));
    }
    const engine::GgmlType written = engine::IsMatrix(info) ? type : info.type;
    WITHY_ASSIGN_OR_RETURN(const uint64_t bytes, engine::RowBytes(written, info.elements()));
    std::vector<uint8_t>& encoded = contents.emplace_back(bytes);
    const absl::Status status = engine::Quantize(written, values, encoded);
    if (!status.ok()) return Annotate(status, info.name);
    writer.AddTensor(info.name, written, info.dims, encoded);
  }
  return writer.Write(path);
}

}  // namespace withy::elastic
