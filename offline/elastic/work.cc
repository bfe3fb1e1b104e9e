#include "offline/elastic/work.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/status.h"
#include "offline/elastic/recovery.h"
#include "offline/train/tensor_file.h"

namespace withy::elastic {
namespace {

namespace fs = std::filesystem;
using torch::Tensor;

constexpr char kResult[] = ".pt";
constexpr char kState[] = ".part";
constexpr char kInputsFile[] = "/made-of.txt";

std::string TextOf(const RunInputs& inputs) {
  std::string text;
  for (const auto& [name, value] : inputs) absl::StrAppend(&text, name, " ", value, "\n");
  return text;
}

// "--recovery_steps is 60, there 400; ...". Unparsable lines in `known` come from another version.
std::string Differences(const std::string& known, const RunInputs& inputs) {
  const std::vector<std::string> lines = absl::StrSplit(known, '\n', absl::SkipEmpty());
  std::vector<std::string> found;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto& [name, value] = inputs[i];
    const std::string prefix = name + " ";
    if (i >= lines.size() || lines[i].compare(0, prefix.size(), prefix) != 0) {
      return "it was made by another version";
    }
    const std::string there = lines[i].substr(prefix.size());
    if (there != value) found.push_back(absl::StrCat(name, " is ", value, ", there ", there));
  }
  return absl::StrJoin(found, "; ");
}

absl::StatusOr<std::string> KnownMadeOf(const std::string& directory) {
  std::ifstream in(directory + kInputsFile);
  if (!in) return std::string();
  return std::string{std::istreambuf_iterator<char>(in), {}};
}

absl::Status CheckInputs(const std::string& directory, const std::string& known,
                         const RunInputs& inputs) {
  if (known.empty() || known == TextOf(inputs)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      directory, " holds another run's work: ", Differences(known, inputs),
      ". Give that run's options to continue it, another --work, or remove the directory to "
      "start over"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunDirectory>> RunDirectory::Open(const std::string& directory,
                                                                 const RunInputs& inputs,
                                                                 double checkpoint_s,
                                                                 const Clock& clock) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return absl::PermissionDeniedError(absl::StrCat(directory, ": ", error.message()));
  auto work = std::unique_ptr<RunDirectory>(new RunDirectory(directory, checkpoint_s, clock));
  WITHY_RETURN_IF_ERROR(work->Lock());
  WITHY_ASSIGN_OR_RETURN(const std::string known, KnownMadeOf(directory));
  WITHY_RETURN_IF_ERROR(CheckInputs(directory, known, inputs));
  if (known.empty())
    WITHY_RETURN_IF_ERROR(WriteAtomically(directory + kInputsFile, TextOf(inputs)));
  return work;
}

absl::StatusOr<std::unique_ptr<RunDirectory>> RunDirectory::Peek(const std::string& directory,
                                                                 const RunInputs& inputs) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) return nullptr;
  WITHY_ASSIGN_OR_RETURN(const std::string known, KnownMadeOf(directory));
  WITHY_RETURN_IF_ERROR(CheckInputs(directory, known, inputs));
  return std::unique_ptr<RunDirectory>(new RunDirectory(directory, 0, Clock::Real()));
}

RunDirectory::~RunDirectory() {
  if (lock_fd_ >= 0) close(lock_fd_);
}

absl::Status RunDirectory::Lock() {
  lock_fd_ = open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_fd_ < 0) return ErrnoError("open " + directory_);
  if (flock(lock_fd_, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  if (errno != EWOULDBLOCK) return ErrnoError("lock " + directory_);
  return absl::FailedPreconditionError(absl::StrCat(
      directory_, " is in use by another withy-elasticize: wait for it, or give another --work"));
}

std::string RunDirectory::PathOf(const std::string& name, const char* ending) const {
  return absl::StrCat(directory_, "/", name, ending);
}

bool RunDirectory::Has(const std::string& name) const {
  std::error_code error;
  return fs::exists(PathOf(name, kResult), error);
}

std::string RunDirectory::UnitsName(int32_t percent) { return absl::StrCat("units-", percent); }
std::string RunDirectory::CutsName(int32_t percent) { return absl::StrCat("cuts-", percent); }
std::string RunDirectory::ChoiceName(int32_t percent) { return absl::StrCat("level-", percent); }
std::string RunDirectory::LoraName(int32_t percent) { return absl::StrCat("lora-", percent); }
std::string RunDirectory::LossesName(int32_t percent) { return absl::StrCat("losses-", percent); }
std::string RunDirectory::TrialName(int32_t percent, size_t trial) {
  return absl::StrCat("trial-", percent, "-", trial);
}
std::string RunDirectory::RecoveryName(int32_t percent, int64_t recovery) {
  return absl::StrCat("recovery-", percent, "-", recovery);
}

bool RunDirectory::Load(const std::string& path, std::vector<Tensor>* tensors) const {
  std::error_code error;
  if (!fs::exists(path, error)) return false;
  try {
    torch::load(*tensors, path);
  } catch (const std::exception&) {
    return false;  // damaged: computed again
  }
  return true;
}

absl::Status RunDirectory::Save(const std::string& name, const std::vector<Tensor>& tensors) const {
  return train::SaveTensors(PathOf(name, kResult), tensors);
}

StageState::StageState(const RunDirectory* work, std::string name)
    : work_(work), name_(std::move(name)) {
  if (work_ != nullptr) saved_ns_ = work_->clock_.SteadyNanos();
}

std::optional<std::vector<Tensor>> StageState::Load() const {
  std::vector<Tensor> state;
  if (work_ == nullptr || !work_->Load(work_->PathOf(name_, kState), &state)) return std::nullopt;
  return state;
}

absl::Status StageState::SaveIfDue(const std::function<std::vector<Tensor>()>& state) {
  if (work_ == nullptr) return absl::OkStatus();
  const double passed_s = static_cast<double>(work_->clock_.SteadyNanos() - saved_ns_) /
                          static_cast<double>(kNanosPerSecond);
  if (passed_s < work_->checkpoint_s_) return absl::OkStatus();
  return Save(state());
}

absl::Status StageState::Save(const std::vector<Tensor>& state) {
  if (work_ == nullptr) return absl::OkStatus();
  const absl::Status status = train::SaveTensors(work_->PathOf(name_, kState), state);
  saved_ns_ = work_->clock_.SteadyNanos();
  return status;
}

void StageState::Remove() const {
  if (work_ == nullptr) return;
  std::error_code error;
  fs::remove(work_->PathOf(name_, kState), error);
}

bool RunDirectory::LoadText(const std::string& name, std::vector<Batch>* batches,
                            double* batch_s) const {
  std::vector<Tensor> tensors;
  if (!Load(PathOf(name, kResult), &tensors) || tensors.empty()) return false;
  const Tensor seconds = tensors.back();
  tensors.pop_back();
  if (seconds.numel() != 1 || !BatchesFrom(tensors, batches)) return false;
  *batch_s = seconds.item<double>();
  return true;
}

absl::Status RunDirectory::SaveText(const std::string& name, const std::vector<Batch>& batches,
                                    double batch_s) const {
  std::vector<Tensor> tensors = TensorsOf(batches);
  tensors.push_back(torch::tensor({batch_s}, torch::kFloat64));
  return Save(name, tensors);
}

bool RunDirectory::LoadPlan(int64_t* text_batches, int64_t* recovery_steps) const {
  std::vector<Tensor> tensors;
  if (!Load(PathOf("plan", kResult), &tensors) || tensors.size() != 1 || tensors[0].numel() != 2) {
    return false;
  }
  *text_batches = tensors[0][0].item<int64_t>();
  *recovery_steps = tensors[0][1].item<int64_t>();
  return true;
}

absl::Status RunDirectory::SavePlan(int64_t text_batches, int64_t recovery_steps) const {
  return Save("plan", {torch::tensor({text_batches, recovery_steps}, torch::kInt64)});
}

bool RunDirectory::LoadUnits(const Network& network, const engine::LevelSpec& level,
                             std::vector<UnitImportance>* units) const {
  std::vector<Tensor> tensors;
  const size_t layers = level.layers.size();
  if (!Load(PathOf(UnitsName(level.percent), kResult), &tensors) || tensors.size() != 2 * layers)
    return false;
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

absl::Status RunDirectory::SaveUnits(const engine::LevelSpec& level,
                                     const std::vector<UnitImportance>& units) const {
  std::vector<Tensor> tensors;
  for (const UnitImportance& layer : units) {
    tensors.push_back(layer.heads.to(torch::kCPU));
    tensors.push_back(layer.neurons.to(torch::kCPU));
  }
  return Save(UnitsName(level.percent), tensors);
}

// One row of numbers: the full model's loss, then the layers' importances.
bool RunDirectory::LoadLayers(int64_t layers, double* whole_loss,
                              std::vector<double>* importance) const {
  std::vector<Tensor> tensors;
  if (!Load(PathOf(LayersName(), kResult), &tensors) || tensors.size() != 1 ||
      tensors[0].numel() != layers + 1) {
    return false;
  }
  const Tensor row = tensors[0].contiguous();
  const double* value = row.data_ptr<double>();
  *whole_loss = value[0];
  importance->assign(value + 1, value + row.numel());
  return true;
}

absl::Status RunDirectory::SaveLayers(double whole_loss,
                                      const std::vector<double>& importance) const {
  std::vector<double> row = {whole_loss};
  row.insert(row.end(), importance.begin(), importance.end());
  return Save(LayersName(), {torch::tensor(row, torch::kFloat64)});
}

bool RunDirectory::LoadLosses(int32_t percent, double* cut, double* recovered) const {
  std::vector<Tensor> tensors;
  if (!Load(PathOf(LossesName(percent), kResult), &tensors) || tensors.size() != 1 ||
      tensors[0].numel() != 2) {
    return false;
  }
  *cut = tensors[0][0].item<double>();
  *recovered = tensors[0][1].item<double>();
  return true;
}

absl::Status RunDirectory::SaveLosses(int32_t percent, double cut, double recovered) const {
  return Save(LossesName(percent), {torch::tensor({cut, recovered}, torch::kFloat64)});
}

// One row of numbers: the head share, the loss, then heads and neurons per layer.
bool RunDirectory::LoadChoice(const Network& network, int32_t percent, LevelChoice* choice) const {
  std::vector<Tensor> tensors;
  const auto layers = static_cast<size_t>(network.shape().layers);
  if (!Load(PathOf(ChoiceName(percent), kResult), &tensors) || tensors.size() != 1 ||
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

absl::Status RunDirectory::SaveChoice(const LevelChoice& choice) const {
  std::vector<double> row = {choice.head_share, choice.loss};
  for (const engine::LayerExtent& extent : choice.spec.layers) {
    row.push_back(extent.heads);
    row.push_back(extent.neurons);
  }
  return Save(ChoiceName(choice.spec.percent), {torch::tensor(row, torch::kFloat64)});
}

bool RunDirectory::LoadLora(const Network& network, const engine::LevelSpec& level, int64_t rank,
                            std::vector<Lora>* lora) const {
  std::vector<Tensor> tensors;
  if (!Load(PathOf(LoraName(level.percent), kResult), &tensors)) return false;
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

absl::Status RunDirectory::SaveLora(const engine::LevelSpec& level,
                                    const std::vector<Lora>& lora) const {
  std::vector<Tensor> tensors;
  for (Lora layer : lora) {
    for (Tensor* tensor : Tensors(layer)) tensors.push_back(tensor->to(torch::kCPU));
  }
  return Save(LoraName(level.percent), tensors);
}

}  // namespace withy::elastic
