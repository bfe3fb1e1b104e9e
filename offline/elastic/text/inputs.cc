#include "offline/elastic/text/inputs.h"

#include <cstdio>
#include <string_view>

#include "base/status.h"
#include "engine/gguf/types.h"

namespace withy::elastic {

absl::StatusOr<std::vector<Batch>> ReadBatches(const std::string& program,
                                               const engine::GgufFile& model,
                                               const std::string& text, const std::string& flag,
                                               const BatchOptions& options) {
  if (text.empty()) return CorpusBatches(model, options);
  WITHY_ASSIGN_OR_RETURN(std::vector<Batch> batches, TextBatches(model, text, options));
  if (batches.size() < static_cast<size_t>(options.count)) {
    std::fprintf(stderr, "%s: --text %s holds %zu of the %lld batches of --%s\n", program.c_str(),
                 text.c_str(), batches.size(), static_cast<long long>(options.count), flag.c_str());
  }
  return batches;
}

void WarnIfQuantised(const std::string& program, const engine::GgufFile& file) {
  for (const engine::TensorInfo& tensor : file.tensors()) {
    const bool floats = tensor.type == engine::GgmlType::kF32 ||
                        tensor.type == engine::GgmlType::kF16 ||
                        tensor.type == engine::GgmlType::kBF16;
    if (floats) continue;
    std::fprintf(
        stderr,
        "%s: warning: %s is already quantised (%s is %s): its weights will be quantised a second "
        "time; start from F32, F16 or BF16 for the best result\n",
        program.c_str(), file.path().c_str(), tensor.name.c_str(),
        std::string(engine::TypeName(tensor.type)).c_str());
    return;
  }
}

absl::Status FromLibTorch(const std::exception& error) {
  const std::string_view what = error.what();
  return absl::InternalError(absl::StrCat("LibTorch: ", ToAbsl(what.substr(0, what.find('\n')))));
}

}  // namespace withy::elastic
