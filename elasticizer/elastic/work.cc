#include "elasticizer/elastic/work.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/status.h"
#include "elasticizer/elastic/recovery.h"
#include "elasticizer/train/tensor_file.h"

namespace withy::elastic {
namespace {

using torch::Tensor;

std::string LoraFile(const engine::LevelSpec& level) {
  return absl::StrCat("lora-", level.percent, ".pt");
}

std::string UnitsFile(const engine::LevelSpec& level) {
  return absl::StrCat("units-", level.percent, ".pt");
}

std::string ChoiceFile(int32_t percent) { return absl::StrCat("level-", percent, ".pt"); }

}  // namespace

absl::StatusOr<std::unique_ptr<Work>> Work::Open(const std::string& directory,
                                                 const std::string& fingerprint) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return absl::PermissionDeniedError(absl::StrCat(directory, ": ", error.message()));
  const std::string path = directory + "/made-of.txt";
  std::ifstream in(path);
  const std::string known{std::istreambuf_iterator<char>(in), {}};
  if (!known.empty() && known != fingerprint) {
    return absl::FailedPreconditionError(absl::StrCat(directory, " holds what was done for \"",
                                                      known, "\", not for \"", fingerprint,
                                                      "\": remove it, or give another --work"));
  }
  if (known.empty()) {
    std::ofstream out(path);
    out << fingerprint;
    out.close();
    if (!out) return absl::PermissionDeniedError(absl::StrCat(path, ": cannot be written"));
  }
  return std::unique_ptr<Work>(new Work(directory));
}

bool Work::Load(const std::string& name, std::vector<Tensor>* tensors) const {
  const std::string path = directory_ + "/" + name;
  if (!std::filesystem::exists(path)) return false;
  try {
    torch::load(*tensors, path);
  } catch (const c10::Error&) {
    return false;  // damaged: done again
  }
  return true;
}

absl::Status Work::Save(const std::string& name, const std::vector<Tensor>& tensors) const {
  return train::SaveTensors(directory_ + "/" + name, tensors);
}

bool Work::LoadUnits(const Network& network, const engine::LevelSpec& level,
                     std::vector<UnitImportance>* units) const {
  std::vector<Tensor> tensors;
  const size_t layers = level.layers.size();
  if (!Load(UnitsFile(level), &tensors) || tensors.size() != 2 * layers) return false;
  std::vector<UnitImportance> loaded;
  for (size_t i = 0; i < layers; ++i) {
    const Tensor& heads = tensors[2 * i];
    const Tensor& neurons = tensors[2 * i + 1];
    if (heads.numel() != level.layers[i].heads || neurons.numel() != level.layers[i].neurons) {
      return false;
    }
    loaded.push_back({heads.to(network.device()), neurons.to(network.device())});
  }
  *units = std::move(loaded);
  return true;
}

absl::Status Work::SaveUnits(const engine::LevelSpec& level,
                             const std::vector<UnitImportance>& units) const {
  std::vector<Tensor> tensors;
  for (const UnitImportance& layer : units) {
    tensors.push_back(layer.heads.to(torch::kCPU));
    tensors.push_back(layer.neurons.to(torch::kCPU));
  }
  return Save(UnitsFile(level), tensors);
}

bool Work::LoadLayers(const Network& network, std::vector<double>* importance) const {
  std::vector<Tensor> tensors;
  if (!Load("layers.pt", &tensors) || tensors.size() != 1 ||
      tensors[0].numel() != network.shape().layers) {
    return false;
  }
  const Tensor values = tensors[0].contiguous();
  importance->assign(values.data_ptr<double>(), values.data_ptr<double>() + values.numel());
  return true;
}

absl::Status Work::SaveLayers(const std::vector<double>& importance) const {
  return Save("layers.pt", {torch::tensor(importance, torch::kFloat64)});
}

// One row of numbers: the head share, the loss, then heads and neurons layer by layer.
bool Work::LoadChoice(const Network& network, int32_t percent, LevelChoice* choice) const {
  std::vector<Tensor> tensors;
  const auto layers = static_cast<size_t>(network.shape().layers);
  if (!Load(ChoiceFile(percent), &tensors) || tensors.size() != 1 ||
      tensors[0].numel() != static_cast<int64_t>(2 + 2 * layers)) {
    return false;
  }
  const Tensor row = tensors[0].contiguous();
  const double* value = row.data_ptr<double>();
  *choice = {.spec = {.percent = percent}, .head_share = value[0], .loss = value[1]};
  for (size_t i = 0; i < layers; ++i) {
    choice->spec.layers.push_back(
        {static_cast<int32_t>(value[2 + 2 * i]), static_cast<int32_t>(value[3 + 2 * i])});
  }
  return true;
}

absl::Status Work::SaveChoice(const LevelChoice& choice) const {
  std::vector<double> row = {choice.head_share, choice.loss};
  for (const engine::LayerExtent& extent : choice.spec.layers) {
    row.push_back(extent.heads);
    row.push_back(extent.neurons);
  }
  return Save(ChoiceFile(choice.spec.percent), {torch::tensor(row, torch::kFloat64)});
}

bool Work::LoadLora(const Network& network, const engine::LevelSpec& level, int64_t rank,
                    std::vector<Lora>* lora) const {
  std::vector<Tensor> tensors;
  if (!Load(LoraFile(level), &tensors)) return false;
  const engine::ModelShape& s = network.shape();
  std::vector<Lora> loaded(level.layers.size());
  size_t next = 0;
  for (size_t i = 0; i < loaded.size(); ++i) {
    const engine::LayerExtent& extent = level.layers[i];
    if (extent == engine::LayerExtent{s.heads, s.d_ff}) continue;
    for (Lora::Pair* pair : PairsOf(loaded[i], extent)) {
      if (next + 2 > tensors.size()) return false;
      pair->a = tensors[next++].to(network.device());
      pair->b = tensors[next++].to(network.device());
      if (pair->a.size(0) != rank || pair->b.size(1) != rank) return false;
    }
    if (extent.heads > 0 && loaded[i].q.b.size(0) != extent.heads * s.head_dim) return false;
    if (extent.neurons > 0 && loaded[i].gate.b.size(0) != extent.neurons) return false;
  }
  if (next != tensors.size()) return false;
  *lora = std::move(loaded);
  return true;
}

absl::Status Work::SaveLora(const engine::LevelSpec& level, const std::vector<Lora>& lora) const {
  std::vector<Tensor> tensors;
  for (Lora layer : lora) {
    for (Tensor* tensor : Tensors(layer)) tensors.push_back(tensor->to(torch::kCPU));
  }
  return Save(LoraFile(level), tensors);
}

}  // namespace withy::elastic
