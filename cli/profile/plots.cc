#include "cli/profile/plots.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/charts/line_chart.h"
#include "base/status.h"
#include "engine/gguf/reader.h"
#include "engine/weights/levels.h"
#include "engine/weights/shape.h"

namespace withy::cli {
namespace {

// Returns an empty array if the file lacks the key.
absl::StatusOr<std::vector<float>> Floats(const engine::GgufFile& file, const char* key,
                                          size_t expected) {
  if (!file.Has(key)) return std::vector<float>();
  WITHY_ASSIGN_OR_RETURN(std::vector<float> values, file.GetFloatArray(key));
  if (values.size() != expected) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", key, " has ", values.size(),
                                                   " values; its shape asks for ", expected));
  }
  return values;
}

LineChart::Line Points(std::string name, const std::vector<float>& values, size_t begin,
                       size_t end) {
  LineChart::Line line{std::move(name), {}};
  for (size_t i = begin; i < end; ++i)
    line.points.emplace_back(static_cast<double>(i - begin), values[i]);
  return line;
}

LineChart::Line ByLevel(std::string name, const engine::LevelTable& table,
                        const std::vector<float>& losses, double whole_loss) {
  LineChart::Line line{std::move(name), {}};
  for (size_t i = 0; i < losses.size(); ++i)
    line.points.emplace_back(table.levels[i].percent, losses[i]);
  line.points.emplace_back(100, whole_loss);
  return line;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> WritePlots(const std::string& gguf,
                                                    const std::string& directory) {
  WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(gguf));
  WITHY_ASSIGN_OR_RETURN(const engine::ModelShape shape, engine::ReadShape(file));
  WITHY_ASSIGN_OR_RETURN(const engine::LevelTable table, engine::ReadLevels(file, shape));
  const auto layers = static_cast<size_t>(shape.layers);
  const auto neurons = static_cast<size_t>(shape.d_ff);
  WITHY_ASSIGN_OR_RETURN(const std::vector<float> by_layer,
                         Floats(file, "withy.importance.layers", layers));
  WITHY_ASSIGN_OR_RETURN(const std::vector<float> by_neuron,
                         Floats(file, "withy.importance.neurons", layers * neurons));
  WITHY_ASSIGN_OR_RETURN(const std::vector<float> cut,
                         Floats(file, "withy.level.loss", table.levels.size()));
  WITHY_ASSIGN_OR_RETURN(const std::vector<float> recovered,
                         Floats(file, "withy.level.lora_loss", table.levels.size()));
  if (by_layer.empty() && by_neuron.empty() && cut.empty()) {
    return absl::NotFoundError(absl::StrCat(
        gguf, " has no data about the choice of its levels: ./withy elasticize writes it"));
  }
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return absl::PermissionDeniedError(absl::StrCat(directory, ": ", error.message()));
  std::vector<std::string> paths;
  const auto write = [&](const char* name, const LineChart& chart) {
    paths.push_back(absl::StrCat(directory, "/", name));
    return chart.Write(paths.back());
  };
  if (!by_neuron.empty()) {
    LineChart chart{"Importance of neurons, most important first", "neuron", "|dL/dW W|", {}};
    for (size_t layer = 0; layer < layers; ++layer) {
      chart.lines.push_back(
          Points(absl::StrCat("layer ", layer), by_neuron, layer * neurons, (layer + 1) * neurons));
    }
    WITHY_RETURN_IF_ERROR(write("unit-importance.svg", chart));
  }
  if (!by_layer.empty()) {
    const LineChart chart{"Importance of layers",
                          "layer",
                          "loss without it, minus the full model's",
                          {Points("layers", by_layer, 0, layers)}};
    WITHY_RETURN_IF_ERROR(write("layer-importance.svg", chart));
  }
  if (!cut.empty()) {
    WITHY_ASSIGN_OR_RETURN(const double whole, file.GetFloatOr("withy.level.whole_loss", 0));
    LineChart chart{
        "Loss on the calibration text", "level, % of the layers' parameters", "loss", {}};
    if (!recovered.empty()) chart.lines.push_back(ByLevel("with LoRA", table, recovered, whole));
    chart.lines.push_back(ByLevel("without LoRA", table, cut, whole));
    WITHY_RETURN_IF_ERROR(write("loss-per-level.svg", chart));
  }
  return paths;
}

}  // namespace withy::cli
