#include "engine/model/gpu_check.h"

#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/cpu/executor.h"
#include "engine/cuda/executor.h"
#include "engine/model/emit.h"
#include "engine/model/facts.h"
#include "engine/model/row_plan.h"
#include "engine/model/scratch_kv.h"
#include "engine/model/synth.h"
#include "engine/sampling/likeness.h"
#include "engine/weights/packer.h"

namespace withy::engine {
namespace {

constexpr int32_t kPrefix = 272;  // tokens before the rows: more than one run of keys
constexpr int32_t kPiece = 68;
constexpr int32_t kSlots = 320;
// Rounding leaves 0.99999; a key bias that is left out, which changes least, gives 0.9998.
constexpr double kLeastCosine = 0.9999;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code none;
    for (const std::filesystem::path& in :
         {std::filesystem::path("/dev/shm"), std::filesystem::temp_directory_path(none)}) {
      std::string pattern = in / "withy-check-XXXXXX";
      if (mkdtemp(pattern.data()) == nullptr) continue;
      path_ = pattern;
      return;
    }
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  bool exists() const { return !path_.empty(); }
  std::string operator/(const char* name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

absl::StatusOr<std::unique_ptr<PackedFile>> SmallModel(ThreadPool& pool) {
  SynthShape shape;
  shape.name = "check";
  shape.architecture = "qwen2";
  shape.layers = 2;
  shape.d_model = shape.d_ff = 256;
  shape.heads = shape.kv_heads = 4;
  shape.head_dim = 64;
  shape.vocab_size = 320;
  shape.context_length = 512;
  shape.levels = {60};
  shape.key_bias = 60.0f;
  shape.key_bias_dims = 4;
  const TemporaryFolder folder;
  if (!folder.exists()) {
    return absl::FailedPreconditionError(
        "self-check failed: neither /dev/shm nor TMPDIR lets this process make a folder for the "
        "model of the check; let one of them be written, or set model.device to cpu");
  }
  const std::string packed = folder / "check.withy";
  WITHY_RETURN_IF_ERROR(WriteSynthModel(shape, GgmlType::kQ4_0, 3, folder / "check.gguf"));
  WITHY_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(folder / "check.gguf"));
  WITHY_RETURN_IF_ERROR(PackGguf(file, {}, packed, pool));
  return PackedFile::Open(packed, PackedFile::Verify::kHead);
}

// Computes rows of one context; logits [rows that want them, vocab].
absl::StatusOr<std::vector<float>> Compute(Executor& executor, const ModelFacts& facts,
                                           const ScratchKv& kv, std::span<const Row> rows) {
  const ContextView view = kv.View();
  const Batch batch = {.rows = rows, .contexts = {&view, 1}};
  RowPlan plan;
  Program program;
  plan.Plan(batch, facts, 0, static_cast<int32_t>(rows.size()), 0);
  Emit(plan, facts, /*tap=*/false, &program);
  std::vector<float> logits(plan.wanted().size() * static_cast<size_t>(facts.shape.vocab_size));
  const std::unique_ptr<ProgramRun> run = executor.NewRun();
  run->Start(program, plan, batch, logits.data());
  if (!run->Run(nullptr, ProgramRun::kToTheEnd)) return run->status();
  return logits;
}

Row RowAt(int32_t position, bool want_logits) {
  return {.token = (position * 37 + 11) % 311,
          .position = position,
          .slot = position,
          .want_logits = want_logits};
}

// KV of the tokens before, of several formats.
absl::Status FillKv(Executor& cpu, const ModelFacts& facts, ScratchKv* kv) {
  for (int32_t first = 0; first < kPrefix; first += kPiece) {
    std::vector<Row> rows;
    for (int32_t i = 0; i < kPiece; ++i) rows.push_back(RowAt(first + i, false));
    rows.back().want_logits = true;
    WITHY_RETURN_IF_ERROR(Compute(cpu, facts, *kv, rows).status());
  }
  kv->Encode(1, KvFormat::kQ4);
  kv->Encode(2, KvFormat::kQ4Q2);
  kv->Encode(3, KvFormat::kQ2);
  return absl::OkStatus();
}

// Passes over that KV: plain rows of which some want logits, one of them alone, and a tree with
// rows of the lower level.
std::vector<std::vector<Row>> Passes(const std::vector<int32_t>& ancestors) {
  std::vector<std::vector<Row>> passes(3);
  for (int32_t i = 0; i < 6; ++i) passes[0].push_back(RowAt(kPrefix + i, i != 1 && i != 2));
  passes[1].push_back(RowAt(kPrefix + 6, true));
  passes[2].push_back(RowAt(kPrefix + 7, true));
  passes[2][0].slot = ancestors[0];
  for (int32_t i = 0; i < 4; ++i) {
    Row& row = passes[2].emplace_back(RowAt(kPrefix + 8, true));
    row.token += i;
    row.slot = kPrefix + 12 + 5 * i;
    row.ancestor_slots = ancestors;
  }
  for (size_t i = 3; i < 5; ++i) passes[2][i].level = 0;
  return passes;
}

// KV of a context, as the CPU and as the GPU writes it.
struct BothKv {
  BothKv(const ModelInfo& info, int32_t slots, KvFormat format)
      : cpu(info, slots, format), gpu(info, slots, format) {}
  ScratchKv cpu;
  ScratchKv gpu;
};

// Computes rows on both and adds what they differ by.
absl::Status CompareRows(Executor& cpu, Executor& gpu, const ModelFacts& facts, const BothKv& kv,
                         std::span<const Row> rows, GpuCheck* check) {
  WITHY_ASSIGN_OR_RETURN(const std::vector<float> right, Compute(cpu, facts, kv.cpu, rows));
  WITHY_ASSIGN_OR_RETURN(const std::vector<float> got, Compute(gpu, facts, kv.gpu, rows));
  const auto width = static_cast<size_t>(facts.shape.vocab_size);
  for (size_t at = 0; at < right.size(); at += width) {
    const double cosine =
        Cosine(std::span(right).subspan(at, width), std::span(got).subspan(at, width));
    if (!(cosine >= kLeastCosine)) {  // also of numbers that are none
      return absl::FailedPreconditionError(
          absl::StrCat("self-check failed: row ", check->rows, " of a small model has cosine ",
                       cosine, " with the CPU's, at least ", kLeastCosine,
                       " is right; check the card and its driver, or set model.device to cpu"));
    }
    check->least_cosine = std::min(check->least_cosine, cosine);
    ++check->rows;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GpuCheck> CheckGpu(cuda::Gpu& gpu) {
  ThreadPool pool(1);
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<PackedFile> file, SmallModel(pool));
  WITHY_ASSIGN_OR_RETURN(const ModelFacts facts, ReadFacts(*file, {}));
  const ModelInfo info = DescribeModel(*file, facts);
  const std::function<void(int32_t, std::span<const float>)> no_tap;
  CpuExecutor cpu(*file, facts, DefaultKernels(), 1, no_tap);
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<Executor> on_gpu,
                         cuda::CudaExecutor::CreateOn(gpu, *file, facts, no_tap, nullptr, nullptr));
  GpuCheck check{.least_cosine = 1};
  BothKv kv(info, kSlots, KvFormat::kQ8);
  for (ScratchKv* one : {&kv.cpu, &kv.gpu}) WITHY_RETURN_IF_ERROR(FillKv(cpu, facts, one));
  const std::vector<int32_t> ancestors = {kPrefix + 30};
  for (const std::vector<Row>& rows : Passes(ancestors)) {
    WITHY_RETURN_IF_ERROR(CompareRows(cpu, *on_gpu, facts, kv, rows, &check));
  }
  // Exact KV has a kernel of its own.
  const BothKv exact(info, kChunkTokens, KvFormat::kF16);
  const std::vector<Row> rows = {RowAt(0, true), RowAt(1, true), RowAt(2, true)};
  WITHY_RETURN_IF_ERROR(CompareRows(cpu, *on_gpu, facts, exact, rows, &check));
  return check;
}

}  // namespace withy::engine
