#include "bench/contexts/contexts_cost.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/model/model.h"
#include "engine/model/scratch_kv.h"

namespace withy::bench {
namespace {

constexpr int32_t kPieceRows = 128;  // as a worker computes a call that is alone
constexpr int kDepths = 4;
constexpr int kRepeats = 3;
constexpr int32_t kCheckTokens = 1024;

// Milliseconds of `count` rows from `first` on, in pieces.
absl::StatusOr<double> TimePrefill(engine::Model& model, const engine::ScratchKv& kv, int32_t first,
                                   int32_t count) {
  const int64_t begin = Clock::Real().SteadyNanos();
  for (int32_t at = first; at < first + count; at += kPieceRows) {
    std::vector<int32_t> tokens;
    for (int32_t i = at; i < std::min(at + kPieceRows, first + count); ++i) {
      tokens.push_back(100 + i * 37 % 1000);
    }
    WITHY_RETURN_IF_ERROR(engine::Prefill(model, kv, tokens, at, nullptr));
  }
  return static_cast<double>(Clock::Real().SteadyNanos() - begin) / kNanosPerMilli;
}

}  // namespace

absl::StatusOr<ContextShape> FindContextShape(std::string_view name) {
  WITHY_ASSIGN_OR_RETURN(engine::SynthShape model, engine::FindSynthShape("tinyllama-1.1b"));
  if (name == "mha") {
    model.name = "mha-1.1b";
    model.kv_heads = model.heads;
  } else if (name != "gqa") {
    return absl::InvalidArgumentError(
        absl::StrCat("no shape is called \"", ToAbsl(name), "\"; there are gqa, mha"));
  }
  return ContextShape{.name = std::string(name), .model = std::move(model)};
}

absl::StatusOr<std::string> ShapeFile(const ContextShape& shape, const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  std::string path = absl::StrCat(directory, "/contexts-", shape.name, "-q4_0.gguf");
  if (!std::filesystem::exists(path, error)) {
    WITHY_ASSIGN_OR_RETURN(const engine::GgmlType type, engine::FindSynthType("q4_0"));
    WITHY_RETURN_IF_ERROR(engine::WriteSynthModel(shape.model, type, 1, path));
  }
  return path;
}

absl::StatusOr<MeasuredCost> MeasureRecompute(const ContextShape& shape,
                                              const std::string& directory, uint32_t max_tokens,
                                              int threads) {
  WITHY_ASSIGN_OR_RETURN(const std::string path, ShapeFile(shape, directory));
  engine::ModelOptions options;
  options.threads = threads;
  options.cache_dir = directory;
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Model> model,
                         engine::Model::Open(path, options));
  const auto most = static_cast<int32_t>(max_tokens);
  const engine::ScratchKv kv(model->info(), most);
  // What lies in the KV does not change the time that reading it takes.
  std::vector<RecomputeSample> samples;
  for (int depth = 0; depth < kDepths; ++depth) {
    const int32_t first = (most - kPieceRows) / (kDepths - 1) * depth;
    double best = 0;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      WITHY_ASSIGN_OR_RETURN(const double ms, TimePrefill(*model, kv, first, kPieceRows));
      best = repeat == 0 ? ms : std::min(best, ms);
    }
    samples.push_back({static_cast<uint32_t>(first), kPieceRows, best});
  }
  MeasuredCost measured{.cost = FitRecomputeCost(samples)};
  const int32_t check = std::min(kCheckTokens, most);
  WITHY_ASSIGN_OR_RETURN(measured.executed_ms, TimePrefill(*model, kv, 0, check));
  measured.predicted_ms = measured.cost.Ms(0, static_cast<uint32_t>(check));
  return measured;
}

}  // namespace withy::bench
