#include "offline/train/checkpoint.h"

#include <torch/serialize.h>

#include <filesystem>
#include <sstream>
#include <vector>

#include "base/files.h"
#include "base/status.h"

namespace withy::train {
namespace {

using torch::Tensor;

constexpr int64_t kCounters = 6;  // of Progress

std::vector<Parameter> AllTensors(const Model& model, const Optimizer* optimizer) {
  std::vector<Parameter> all = model.parameters();
  if (optimizer == nullptr) return all;
  for (Parameter& moment : optimizer->State()) all.push_back(std::move(moment));
  return all;
}

absl::Status ReadTensors(torch::serialize::InputArchive& archive, const std::string& path,
                         const Model& model, Optimizer* optimizer, Progress* progress) {
  torch::NoGradGuard no_grad;
  for (Parameter& parameter : AllTensors(model, optimizer)) {
    Tensor stored;
    if (!archive.try_read(parameter.name, stored) || stored.sizes() != parameter.value.sizes()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": tensor ", parameter.name,
          " is missing or of another shape; is this the checkpoint of another model?"));
    }
    parameter.value.copy_(stored);
  }
  Tensor counters;
  archive.read("progress", counters);
  if (counters.numel() != kCounters) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": checkpoint of another version: begin again in an empty directory"));
  }
  const int64_t* values = counters.data_ptr<int64_t>();
  if (optimizer != nullptr) optimizer->set_steps(values[0]);
  if (progress != nullptr) {
    *progress = {
        values[0],
        values[1],
        {.count = values[4], .window = values[2], .window_since = values[5], .batch = values[3]}};
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SaveCheckpoint(const std::string& path, const Model& model, const Optimizer& optimizer,
                            const Progress& progress) {
  // Serialises to memory first, because LibTorch's file writer does not report errors.
  std::ostringstream bytes;
  torch::serialize::OutputArchive archive;
  for (const Parameter& parameter : AllTensors(model, &optimizer))
    archive.write(parameter.name, parameter.value.detach().cpu());
  archive.write("progress", torch::tensor({progress.step, progress.tokens, progress.position.window,
                                           progress.position.batch, progress.position.count,
                                           progress.position.window_since},
                                          torch::kInt64));
  archive.save_to(bytes);
  return WriteAtomically(path, bytes.view());
}

absl::Status LoadCheckpoint(const std::string& path, Model& model, Optimizer* optimizer,
                            Progress* progress) {
  if (!std::filesystem::exists(path))
    return absl::NotFoundError(absl::StrCat(path, ": no such checkpoint"));
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(path);
    return ReadTensors(archive, path, model, optimizer, progress);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": damaged checkpoint: ", error.what()));
  }
}

}  // namespace withy::train
