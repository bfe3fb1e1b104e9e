// withy-baselines: writes a model shrunk by other methods than elastic levels, for comparison in
// `./withy bench quality`.
//   withy-baselines --model=plain-f32.gguf --out=DIR
// DIR receives METHOD-LEVEL.gguf: plain files of the model's own shape whose dropped parts
// contribute zero.
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "base/files.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "engine/gguf/reader.h"
#include "offline/elastic/baselines.h"
#include "offline/elastic/importance.h"
#include "offline/elastic/text/inputs.h"
#include "offline/train/runtime.h"

ABSL_FLAG(std::string, model, "", "plain GGUF; F32, F16 or BF16");
ABSL_FLAG(std::string, out, "", "directory of the GGUF files to write");
ABSL_FLAG(std::string, text, "", "plain text for evaluating layers; default: the project's corpus");
ABSL_FLAG(std::vector<std::string>, levels,
          std::vector<std::string>({"20", "30", "40", "50", "60", "70", "80", "90"}),
          "per cent of the layers' parameters");
ABSL_FLAG(int64_t, calibration_batches, 8, "batches for evaluating layers");
ABSL_FLAG(uint64_t, seed, 1, "seed of the calibration text");
ABSL_FLAG(int, threads, 2, "threads");

namespace withy::elastic {
namespace {

constexpr const char* kLayerDropping = "layer_dropping";
constexpr const char* kLayerMerging = "layer_merging";
constexpr const char* kAttentionDropping = "attention_dropping";
constexpr const char* k8Bits = "8_bits";
constexpr const char* k4Bits = "4_bits";

std::string PathOf(const std::string& method, int32_t percent) {
  return absl::StrCat(absl::GetFlag(FLAGS_out), "/", method, "-", percent, ".gguf");
}

absl::StatusOr<std::vector<int32_t>> LevelsFromFlags() {
  std::vector<int32_t> percents;
  for (const std::string& text : absl::GetFlag(FLAGS_levels)) {
    if (!absl::SimpleAtoi(text, &percents.emplace_back()) || percents.back() < 1 ||
        percents.back() > 99) {
      return absl::InvalidArgumentError(
          absl::StrCat("--levels: \"", text, "\" is not a number from 1 to 99"));
    }
  }
  return percents;
}

// Creates --out. Errors also if one of the files cannot be written there.
absl::Status PrepareOut(const std::vector<int32_t>& percents) {
  const std::string out = absl::GetFlag(FLAGS_out);
  std::error_code error;
  std::filesystem::create_directories(out, error);
  if (error) return absl::PermissionDeniedError(absl::StrCat(out, ": ", error.message()));
  const std::vector<std::string> inputs = {absl::GetFlag(FLAGS_model), absl::GetFlag(FLAGS_text)};
  for (const int32_t percent : percents) {
    for (const char* method : {kLayerDropping, kLayerMerging, kAttentionDropping}) {
      WITHY_RETURN_IF_ERROR(CheckOutput(PathOf(method, percent), inputs));
    }
  }
  for (const char* method : {k8Bits, k4Bits}) {
    WITHY_RETURN_IF_ERROR(CheckOutput(PathOf(method, 100), inputs));
  }
  return absl::OkStatus();
}

class Writer {
 public:
  Writer(const engine::GgufFile& file, const Network& network)
      : file_(file), network_(network), whole_(network.layers()) {}

  // Writes a copy of the network changed by `change`.
  template <typename Change>
  absl::Status Write(const std::string& method, int32_t percent, engine::GgmlType type,
                     Change change) {
    network_.layers() = whole_;
    if (!change(network_)) return absl::OkStatus();
    const std::string path = PathOf(method, percent);
    std::printf("%s\n", path.c_str());
    return WriteChanged(file_, network_, type, path);
  }

 private:
  const engine::GgufFile& file_;
  Network network_;
  const std::vector<Layer> whole_;
};

absl::Status WriteLevel(Writer& writer, int32_t percent, const std::vector<int32_t>& layers,
                        const std::vector<int32_t>& attention, const std::vector<Batch>& batches) {
  constexpr engine::GgmlType kType = engine::GgmlType::kQ8_0;
  WITHY_RETURN_IF_ERROR(writer.Write(kLayerDropping, percent, kType, [&](Network& network) {
    DropLayers(network, layers, KeptLayers(network.shape().layers, percent));
    return true;
  }));
  WITHY_RETURN_IF_ERROR(writer.Write(kLayerMerging, percent, kType, [&](Network& network) {
    MergeLayers(network, KeptLayers(network.shape().layers, percent), batches);
    return true;
  }));
  return writer.Write(kAttentionDropping, percent, kType,
                      [&](Network& network) { return DropAttention(network, attention, percent); });
}

absl::Status Run() {
  const std::string path = absl::GetFlag(FLAGS_model);
  if (path.empty() || absl::GetFlag(FLAGS_out).empty())
    return absl::InvalidArgumentError("needs --model=FILE.gguf and --out=DIR");
  WITHY_ASSIGN_OR_RETURN(const std::vector<int32_t> percents, LevelsFromFlags());
  WITHY_RETURN_IF_ERROR(
      CheckFlag("calibration_batches", absl::GetFlag(FLAGS_calibration_batches), 1, 1'000'000));
  WITHY_RETURN_IF_ERROR(CheckFlag("threads", absl::GetFlag(FLAGS_threads), 1, 1024));
  torch::NoGradGuard no_grad;
  train::TuneRuntime();
  at::set_num_threads(absl::GetFlag(FLAGS_threads));
  WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(path));
  WarnIfQuantised("withy-baselines", file);
  WITHY_ASSIGN_OR_RETURN(
      Network network,
      Network::FromGguf(file, torch::cuda::is_available() ? torch::kCUDA : torch::kCPU));
  BatchOptions options;
  options.count = absl::GetFlag(FLAGS_calibration_batches);
  options.seed = absl::GetFlag(FLAGS_seed);
  WITHY_ASSIGN_OR_RETURN(const std::vector<Batch> batches,
                         ReadBatches("withy-baselines", file, absl::GetFlag(FLAGS_text),
                                     "calibration_batches", options));
  WITHY_RETURN_IF_ERROR(PrepareOut(percents));
  const std::vector<int32_t> layers = AnchorOrder(MeasureLayers(network, batches));
  const std::vector<int32_t> attention = AttentionOrder(network, batches);
  Writer writer(file, network);
  for (const int32_t percent : percents) {
    WITHY_RETURN_IF_ERROR(WriteLevel(writer, percent, layers, attention, batches));
  }
  const auto same = [](Network&) { return true; };
  WITHY_RETURN_IF_ERROR(writer.Write(k8Bits, 100, engine::GgmlType::kQ8_0, same));
  return writer.Write(k4Bits, 100, engine::GgmlType::kQ4_0, same);
}

}  // namespace
}  // namespace withy::elastic

int main(int argc, char** argv) {
  withy::ParseProgramFlags(
      "Writes models shrunk by other methods than levels, for ./withy bench quality and "
      "slo.\n"
      "usage: withy-baselines --model plain.gguf --out DIR",
      argc, argv);
  absl::Status status;
  try {
    status = withy::elastic::Run();
  } catch (const std::exception& error) {
    status = withy::elastic::FromLibTorch(error);
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "withy-baselines: %s\n", std::string(status.message()).c_str());
  return 1;
}
