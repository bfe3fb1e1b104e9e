#include "engine/weights/architecture/layer_reader.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/status.h"

namespace withy::engine {
namespace {

constexpr int64_t kMaxStreams = 4;
constexpr int64_t kMaxLayerWidth = 1 << 12;
constexpr float kLargestCut = 10.0f;  // in deviations

class LayerReader {
 public:
  LayerReader(const ShapeKeys& keys, const Architecture& architecture, ModelShape* shape)
      : file_(keys.file()), keys_(keys), architecture_(architecture), shape_(*shape) {}

  absl::Status ReadWidths(int64_t most) {
    const std::string key = keys_.Key("feed_forward_length");
    std::vector<int64_t> widths;
    if (architecture_.layer_widths && file_.GetArrayCount(key).ok()) {
      WITHY_ASSIGN_OR_RETURN(widths, file_.GetIntArray(key));
      WITHY_RETURN_IF_ERROR(RequireEachLayer(key, widths.size()));
    } else {
      WITHY_ASSIGN_OR_RETURN(const int64_t width, file_.GetInt(key));
      widths = {width};
    }
    for (const int64_t width : widths) {
      if (width < 1 || width > most) {
        return keys_.Wrong(key, width, absl::StrCat("1 to ", most));
      }
      if (width % 32 != 0) return keys_.Wrong(key, width, "a multiple of 32");
    }
    const auto [least, widest] = std::minmax_element(widths.begin(), widths.end());
    shape_.d_ff = static_cast<int32_t>(*widest);
    if (*least < *widest) shape_.layer_neurons.assign(widths.begin(), widths.end());
    return absl::OkStatus();
  }

  absl::Status ReadKinds() {
    if (architecture_.shares_kv) WITHY_RETURN_IF_ERROR(ReadKvSources());
    if (architecture_.gate_cuts) WITHY_RETURN_IF_ERROR(ReadGateCuts());
    if (architecture_.alternating_updates) WITHY_RETURN_IF_ERROR(ReadStreams());
    shape_.laurel_rank = architecture_.laurel_rank;
    if (!architecture_.layer_inputs) return absl::OkStatus();
    const std::string key = keys_.Key("embedding_length_per_layer_input");
    WITHY_ASSIGN_OR_RETURN(const int64_t width, file_.GetInt(key));
    if (width < 32 || width > kMaxLayerWidth || width % 32 != 0) {
      return keys_.Wrong(key, width, absl::StrCat("a multiple of 32, from 32 to ", kMaxLayerWidth));
    }
    shape_.layer_width = static_cast<int32_t>(width);
    return absl::OkStatus();
  }

 private:
  absl::Status RequireEachLayer(const std::string& key, size_t values) const {
    if (values == static_cast<size_t>(shape_.layers)) return absl::OkStatus();
    return keys_.Wrong(absl::StrCat(key, "'s length"), static_cast<int64_t>(values),
                       absl::StrCat("the number of layers, ", shape_.layers));
  }

  // Some converters write the number as a float.
  absl::StatusOr<int64_t> WholeNumber(const std::string& key) const {
    const MetadataEntry* entry = file_.FindMetadata(key);
    if (entry == nullptr || entry->type != GgufValueType::kFloat32) return file_.GetInt(key);
    WITHY_ASSIGN_OR_RETURN(const double value, file_.GetFloat(key));
    if (value == std::floor(value) && std::abs(value) < 1e9) return static_cast<int64_t>(value);
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path(), ": ", key, " is ", value, "; it must be a whole number"));
  }

  // The last layers share K and V of the last layer before them all that sees as much.
  absl::Status ReadKvSources() {
    const std::string key = keys_.Key("attention.shared_kv_layers");
    WITHY_ASSIGN_OR_RETURN(const int64_t shared, WholeNumber(key));
    if (shared < 0 || shared >= shape_.layers) {
      return keys_.Wrong(key, shared, absl::StrCat("0 to ", shape_.layers - 1));
    }
    if (shared == 0) return absl::OkStatus();
    const int32_t first = shape_.layers - static_cast<int32_t>(shared);
    for (int32_t layer = 0; layer < shape_.layers; ++layer) {
      int32_t source = layer < first ? layer : first - 1;
      while (source >= 0 && shape_.WindowOf(source) != shape_.WindowOf(layer)) --source;
      if (source < 0) {
        return keys_.Wrong(
            key, shared,
            absl::StrCat("less: layer ", layer, " would share K and V, and no layer before ", first,
                         " has the same attention.sliding_window_pattern"));
      }
      shape_.kv_sources.push_back(source);
    }
    return absl::OkStatus();
  }

  absl::Status ReadGateCuts() {
    const std::string key = keys_.Key("activation_sparsity_scale");
    WITHY_ASSIGN_OR_RETURN(std::vector<float> cuts, file_.GetFloatArray(key));
    WITHY_RETURN_IF_ERROR(RequireEachLayer(key, cuts.size()));
    for (const float cut : cuts) {
      if (cut == ModelShape::kNoCut || std::abs(cut) <= kLargestCut) continue;
      return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": ", key, " has ", cut,
                                                     "; it must be -infinity or from -",
                                                     kLargestCut, " to ", kLargestCut));
    }
    if (std::any_of(cuts.begin(), cuts.end(),
                    [](float cut) { return cut != ModelShape::kNoCut; })) {
      shape_.gate_cuts = std::move(cuts);
    }
    return absl::OkStatus();
  }

  absl::Status ReadStreams() {
    const std::string key = keys_.Key("altup.num_inputs");
    WITHY_ASSIGN_OR_RETURN(const int64_t streams, file_.GetInt(key));
    if (streams < 2 || streams > kMaxStreams) {
      return absl::UnimplementedError(absl::StrCat(file_.path(), ": ", key, " is ", streams,
                                                   "; only models of 2 to ", kMaxStreams,
                                                   " streams are supported"));
    }
    shape_.streams = static_cast<int32_t>(streams);
    const std::string active_key = keys_.Key("altup.active_idx");
    WITHY_ASSIGN_OR_RETURN(const int64_t active, file_.GetInt(active_key));
    if (active == 0) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat(file_.path(), ": ", active_key, " is ", active,
                     "; only models whose layers compute from the first stream (0) are "
                     "supported"));
  }

  const GgufFile& file_;
  const ShapeKeys& keys_;
  const Architecture& architecture_;
  ModelShape& shape_;
};

}  // namespace

absl::Status ReadNeurons(const ShapeKeys& keys, const Architecture& architecture, int64_t most,
                         ModelShape* shape) {
  return LayerReader(keys, architecture, shape).ReadWidths(most);
}

absl::Status ReadLayerKinds(const ShapeKeys& keys, const Architecture& architecture,
                            ModelShape* shape) {
  return LayerReader(keys, architecture, shape).ReadKinds();
}

}  // namespace withy::engine
