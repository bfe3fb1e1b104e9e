// Prompts multiplied as F16 matrices, in the runner: against the exact kernels over weight types,
// levels and shapes; which rows are computed so; and what happens where cuBLAS is missing or
// broken.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/cpu/types.h"
#include "engine/cuda/dense_rows.h"
#include "engine/cuda/gpu/cublas.h"
#include "engine/cuda/gpu/self_check.h"
#include "engine/cuda/on_cpu/gpu_on_cpu.h"
#include "engine/model/facts.h"
#include "engine/model/row_plan.h"
#include "engine/model/testing.h"
#include "engine/weights/packer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

using on_cpu::GpuOnCpu;
using testing::AllOf;
using testing::HasSubstr;

constexpr int32_t kLongPrompt = 12;  // rows that are multiplied as matrices in these tests

class DenseTest : public testing::Test {
 protected:
  struct OnRunner {
    std::unique_ptr<Model> model;
    GpuOnCpu* gpu = nullptr;
    std::string told;
    int checked = 0;  // products of the check at opening
    int Products() const { return gpu->dense().products() - checked; }
  };
  // A model on the test device; `rows`: of a prompt from which it is multiplied as matrices.
  OnRunner Open(const std::string& path, int32_t rows, ModelOptions options = {},
                const on_cpu::RunnerOptions& runner = {}) {
    OnRunner on;
    options.device = "cuda";
    options.dense_rows = rows;
    options.on_device = [&on](std::string_view line) { on.told = line; };
    options.open_gpu = [&](int32_t) {
      auto gpu = std::make_unique<GpuOnCpu>(runner);
      on.gpu = gpu.get();
      return gpu;
    };
    on.model = OpenTiny(folder_, path, options);
    on.checked = on.gpu->dense().products();
    return on;
  }
  // Least likeness of any row's logits between the exact kernels and matrices.
  void ExpectAgreement(const std::string& path, const std::vector<Row>& rows, const char* what) {
    const OnRunner exact = Open(path, 0);
    const OnRunner dense = Open(path, kLongPrompt);
    const auto slots = static_cast<int32_t>(rows.size());
    const std::vector<float> expected =
        RunRows(*exact.model, ScratchKv(exact.model->info(), slots), rows);
    const std::vector<float> got =
        RunRows(*dense.model, ScratchKv(dense.model->info(), slots), rows);
    EXPECT_GT(dense.Products(), 0) << what;
    EXPECT_NE(got, expected) << what << ": nothing was multiplied as matrices";
    const auto width = static_cast<size_t>(exact.model->info().vocab_size);
    for (size_t at = 0; at < got.size(); at += width) {
      EXPECT_GE(
          RowLikeness(std::span(expected).subspan(at, width), std::span(got).subspan(at, width)),
          0.999)
          << what << ", row " << at / width;
    }
  }

  TestFolder folder_;
};

TEST_F(DenseTest, AgreesWithTheExactKernelsForEveryWeightType) {
  const std::vector<Row> rows = PlainRows(SomeTokens(24, TinyShape().vocab_size));
  for (const char* name : {"f32", "f16", "bf16", "q8_0", "q4_0"}) {
    const auto type = FindSynthType(name);
    ASSERT_TRUE(type.ok()) << type.status();
    ExpectAgreement(WriteTiny(folder_, TinyShape(), *type, std::string(name)), rows, name);
  }
}

// Rows of all levels with their LoRA in one pass, and of each level alone.
TEST_F(DenseTest, AgreesAtEveryLevel) {
  SynthShape shape = TinyShape();
  shape.levels = {15, 40, 70};
  const std::string path = WriteTiny(folder_, shape, GgmlType::kQ8_0);
  std::vector<Row> rows = PlainRows(SomeTokens(32, shape.vocab_size));
  for (int32_t level = 0; level < 4; ++level) {
    for (Row& row : rows) row.level = level;
    ExpectAgreement(path, rows, "one level");
  }
  for (size_t i = 0; i < rows.size(); ++i) rows[i].level = 3 - static_cast<int32_t>(i) / 8;
  ExpectAgreement(path, rows, "all levels");
}

// Heads that are grouped or not, of other widths than a power of two, biased, normed.
TEST_F(DenseTest, AgreesForOtherShapes) {
  SynthShape biased = TinyShape();
  biased.architecture = "qwen2";
  SynthShape narrow = TinyShape();
  narrow.kv_heads = narrow.heads;
  SynthShape odd = TinyShape();
  odd.heads = odd.kv_heads = 3;
  odd.head_dim = 96;
  SynthShape normed = TinyShape();
  normed.architecture = "qwen3";
  const std::vector<Row> rows = PlainRows(SomeTokens(20, biased.vocab_size));
  int number = 0;
  for (const SynthShape& shape : {biased, narrow, odd, normed}) {
    const std::string name = "shape" + std::to_string(number++);
    ExpectAgreement(WriteTiny(folder_, shape, GgmlType::kQ4_0, name), rows, name.c_str());
  }
}

// A decoded row, a short prompt and a tree beside a long prompt have the bits that they have alone.
TEST_F(DenseTest, RowsBesideALongPromptAreExact) {
  SynthShape shape = TinyShape();
  shape.levels = {60};
  const std::string path = WriteTiny(folder_, shape, GgmlType::kQ8_0);
  const OnRunner exact = Open(path, 0);
  const OnRunner dense = Open(path, kLongPrompt);
  const std::vector<int32_t> tokens = SomeTokens(40, shape.vocab_size);
  const std::vector<int32_t> ancestors = {9};
  // Contexts: 0 decodes a tree, 1 has a short prompt, 2 a long one.
  std::vector<Row> few = {
      {.token = tokens[8], .position = 8, .slot = 8, .want_logits = true},
      {.token = tokens[9], .position = 9, .slot = 9, .want_logits = true, .ancestor_slots = {}},
      {.token = tokens[10],
       .position = 10,
       .slot = 12,
       .want_logits = true,
       .ancestor_slots = ancestors},
  };
  for (int32_t i = 0; i < kLongPrompt - 1; ++i) {
    few.push_back({.token = tokens[static_cast<size_t>(i)],
                   .position = i,
                   .slot = i,
                   .context = 1,
                   .level = 0,
                   .want_logits = true});
  }
  std::vector<Row> all = few;
  for (int32_t i = 0; i < 20; ++i) {
    all.push_back({.token = tokens[static_cast<size_t>(i + 20)],
                   .position = i,
                   .slot = i,
                   .context = 2,
                   .level = i < 10 ? -1 : 0});
  }
  std::vector<std::vector<float>> logits;
  for (const auto& [on, rows] : {std::pair(&exact, &few), {&dense, &few}, {&dense, &all}}) {
    Model& model = *on->model;
    const ScratchKv tree(model.info(), 32);
    const ScratchKv brief(model.info(), 32);
    const ScratchKv longer(model.info(), 32);
    ASSERT_TRUE(Prefill(model, tree, std::span(tokens).first(8), 0, nullptr).ok());
    const std::vector<ContextView> views = {tree.View(), brief.View(), longer.View()};
    const int before = on->gpu->dense().products();
    std::vector<float>& got =
        logits.emplace_back(few.size() * static_cast<size_t>(shape.vocab_size));
    ASSERT_TRUE(model.Forward({.rows = *rows, .contexts = views}, got.data()).ok());
    EXPECT_EQ(on->gpu->dense().products() > before, rows == &all);
  }
  EXPECT_EQ(logits[1], logits[0]);
  EXPECT_EQ(logits[2], logits[0]);
}

// Streamed weights give the bits of resident ones: a level's matrices are there as far as it needs.
TEST_F(DenseTest, StreamedWeightsGiveTheSameBits) {
  SynthShape shape = TinyShape();
  shape.layers = 6;
  shape.levels = {30};
  const std::string path = WriteTiny(folder_, shape, GgmlType::kQ8_0);
  const OnRunner resident = Open(path, kLongPrompt);
  ModelOptions options;
  options.weight_budget_bytes = static_cast<uint64_t>(resident.model->info().weight_bytes) * 9 / 10;
  const OnRunner streamed = Open(path, kLongPrompt, options);
  ASSERT_TRUE(streamed.model->weight_stats().streams());
  std::vector<Row> rows = PlainRows(SomeTokens(20, shape.vocab_size));
  for (const int32_t level : {0, 1}) {
    for (Row& row : rows) row.level = level;
    EXPECT_EQ(RunRows(*streamed.model, ScratchKv(streamed.model->info(), 32), rows),
              RunRows(*resident.model, ScratchKv(resident.model->info(), 32), rows));
    EXPECT_GT(streamed.Products(), 0);
  }
}

// Rows of random batches are cut as dense_rows.h says, and into no more runs than it expects.
TEST_F(DenseTest, RowsAreCutByTheirOwnContexts) {
  SynthShape shape = TinyShape();
  shape.levels = {40, 70};
  ThreadPool pool(1);
  const auto packed = EnsurePacked(WriteTiny(folder_, shape, GgmlType::kQ8_0), folder_.path(), pool,
                                   /*progress=*/{});
  ASSERT_TRUE(packed.ok()) << packed.status();
  const auto file = PackedFile::Open(*packed);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto facts = ReadFacts(**file, {});
  ASSERT_TRUE(facts.ok()) << facts.status();
  const std::vector<int32_t> ancestors = {3};
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto below = [&random](size_t n) { return static_cast<int32_t>(random() % n); };
    std::vector<Row> rows;
    const int32_t contexts = 1 + below(4);
    for (int32_t i = 1 + below(60); i > 0; --i) {
      const bool goes_on = !rows.empty() && below(4) > 0;
      rows.push_back({.position = 4 + i,
                      .slot = 4 + i,
                      .context = goes_on ? rows.back().context : below(4) % contexts,
                      .level = goes_on ? rows.back().level : below(3),
                      .want_logits = below(3) == 0});
      if (below(6) == 0) rows.back().ancestor_slots = ancestors;
    }
    RowPlan plan;
    plan.Plan({.rows = rows}, *facts, 0, static_cast<int32_t>(rows.size()), 0);
    std::vector<int32_t> all;
    for (int32_t i = 0; i < plan.count(); ++i) all.push_back(i);
    std::vector<int32_t> by_logits(plan.wanted().begin(), plan.wanted().end());
    std::sort(by_logits.begin(), by_logits.end(), [&plan](int32_t a, int32_t b) {
      return plan.row(a).logits_row < plan.row(b).logits_row;
    });
    const size_t most = cuda::MostRuns(plan);
    const int32_t least = 1 + below(20);
    for (const std::span<const int32_t> some :
         {std::span<const int32_t>(all), plan.wanted(), std::span<const int32_t>(by_logits)}) {
      const std::vector<cuda::RowRun> runs = cuda::SplitRows(plan, some, least);
      EXPECT_LE(runs.size(), most);
      size_t at = 0;
      for (const cuda::RowRun& run : runs) {
        EXPECT_EQ(run.first, static_cast<int>(at));
        for (int i = 0; i < run.rows; ++i) {
          const Row& row = *plan.row(some[at++]).row;
          const auto alike = std::count_if(some.begin(), some.end(), [&](int32_t other) {
            const Row& beside = *plan.row(other).row;
            return beside.context == row.context && beside.ancestor_slots.empty();
          });
          EXPECT_EQ(run.dense, row.ancestor_slots.empty() && alike >= least);
        }
      }
      EXPECT_EQ(at, some.size());
    }
  }
}

// The kernels neither race nor leave their memory, whatever runs first.
TEST_F(DenseTest, KernelsAreRightInEveryOrder) {
  SynthShape shape = TinyShape();
  shape.layers = 2;
  shape.d_model = shape.d_ff = 128;
  shape.heads = 4;
  shape.kv_heads = 1;
  shape.vocab_size = 320;
  shape.levels = {60};
  int number = 0;
  for (const GgmlType type : {GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kBF16}) {
    const std::string path = WriteTiny(folder_, shape, type, "order" + std::to_string(number++));
    std::vector<float> expected;
    for (const on_cpu::Order order :
         {on_cpu::Order::kForward, on_cpu::Order::kReverse, on_cpu::Order::kRandom}) {
      const OnRunner on = Open(path, kLongPrompt, {}, {.order = order, .seed = 4, .checks = true});
      std::vector<Row> rows = PlainRows(SomeTokens(20, shape.vocab_size));
      for (size_t i = 0; i < rows.size(); ++i) rows[i].level = i < 13 ? 1 : 0;
      const std::vector<float> logits = RunRows(*on.model, ScratchKv(on.model->info(), 32), rows);
      EXPECT_GT(on.Products(), 0);
      EXPECT_TRUE(on.gpu->runner().watch().findings().empty())
          << on_cpu::Describe(on.gpu->runner().watch().findings().front());
      if (expected.empty()) expected = logits;
      EXPECT_EQ(logits, expected) << "order " << static_cast<int>(order);
    }
  }
}

// The conversions move little more than they ask for, most of it in accesses of 16 bytes a lane.
TEST_F(DenseTest, ConversionsUseWholeSectors) {
  SynthShape shape = TinyShape();
  shape.layers = 1;
  shape.d_model = shape.d_ff = 512;
  for (const char* name : {"q8_0", "q4_0", "f16"}) {
    const std::string path = WriteTiny(folder_, shape, *FindSynthType(name), std::string(name));
    const OnRunner on = Open(path, kLongPrompt, {}, {.counts = true});
    on.gpu->runner().watch().ClearCounts();
    RunRows(*on.model, ScratchKv(on.model->info(), 32),
            PlainRows(SomeTokens(20, shape.vocab_size)));
    const auto& counts = on.gpu->runner().watch().counts();
    for (const char* kernel : {"dense_weights", "dense_inputs"}) {
      const on_cpu::KernelCounts& of = counts.at(kernel);
      EXPECT_GE(static_cast<double>(of.load_bytes + of.store_bytes),
                0.93 * 32 * static_cast<double>(of.sectors))
          << kernel << ", " << name;
      EXPECT_GE(static_cast<double>(of.wide_requests), 0.4 * static_cast<double>(of.requests))
          << kernel << ", " << name;
      EXPECT_LE(of.shared_passes, of.shared_requests) << kernel << ", " << name;
    }
  }
}

// KV of prompts that may have been multiplied as matrices has another target, and only that.
TEST_F(DenseTest, TheTargetSaysWhetherPromptsMayBeInexact) {
  const std::string path = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0);
  const std::vector<Row> rows = PlainRows(SomeTokens(20, TinyShape().vocab_size));
  const OnRunner exact = Open(path, 0);
  ModelOptions off;
  off.exact_prefill = true;
  const OnRunner turned_off = Open(path, kLongPrompt, off);
  const OnRunner dense = Open(path, kLongPrompt);
  EXPECT_EQ(exact.model->target(), "cuda-on-cpu");
  EXPECT_EQ(turned_off.model->target(), "cuda-on-cpu");
  EXPECT_EQ(dense.model->target(), "cuda-on-cpu-f16");
  EXPECT_THAT(dense.told, HasSubstr("prompts of 12 rows and more by loops on the CPU"));
  EXPECT_THAT(turned_off.told, HasSubstr("prompts are computed exactly"));
  EXPECT_EQ(RunRows(*turned_off.model, ScratchKv(turned_off.model->info(), 32), rows),
            RunRows(*exact.model, ScratchKv(exact.model->info(), 32), rows));
  EXPECT_EQ(turned_off.gpu->dense().products(), 0);
}

// The check has numbers beyond the range of F16 at both ends, in weights and in inputs.
TEST_F(DenseTest, TheCheckPassesAndFindsWrongProducts) {
  class Wrong final : public cuda::DenseMath {
   public:
    std::string_view description() const override { return "a library with a fault"; }
    absl::Status Multiply(const cuda::DenseProduct& product) override {
      const absl::Status status = right_.Multiply(product);
      product.c[static_cast<size_t>(product.rows) * static_cast<size_t>(product.outputs) / 2] *=
          1.1f;
      return status;
    }

   private:
    on_cpu::DenseOnCpu right_;
  };
  GpuOnCpu gpu;
  const absl::Status right = cuda::CheckDense(gpu, gpu.dense());
  EXPECT_TRUE(right.ok()) << right;
  Wrong wrong;
  EXPECT_EQ(cuda::CheckDense(gpu, wrong).code(), absl::StatusCode::kFailedPrecondition);
}

// ---- cuBLAS, as far as it can be tested without it ----

// A library that computes what the documentation of cublasGemmEx says, in columns.
struct FakeCublas {
  static inline std::string missing;  // a function that it lacks
  static inline std::string file;     // the name under which it is found
  static inline int gemm_status = 0;
  static inline void* stream = nullptr;
  static inline size_t workspace = 0;
  static inline int open = 0;  // handles and libraries

  static void Reset() {
    missing.clear();
    file = "libcublas.so.12";
    gemm_status = open = 0;
    stream = nullptr;
    workspace = 0;
  }
  static int Create(void** handle) {
    ++open;
    *handle = &open;
    return 0;
  }
  static int Destroy(void*) {
    --open;
    return 0;
  }
  static int GetVersion(void*, int* version) {
    *version = 120403;
    return 0;
  }
  static int SetStream(void*, void* given) {
    stream = given;
    workspace = 0;
    return 0;
  }
  static int SetWorkspace(void*, void*, size_t bytes) {
    workspace = bytes;
    return 0;
  }
  static int Gemm(void*, int transa, int transb, int m, int n, int k, const void* alpha,
                  const void* a, int a_type, int lda, const void* b, int b_type, int ldb,
                  const void* beta, void* c, int c_type, int ldc, int compute, int) {
    constexpr int kTransposed = 1;
    constexpr int kF32 = 0;
    constexpr int kF16 = 2;
    constexpr int kCompute32F = 68;
    if (transa != kTransposed || transb != 0 || a_type != kF16 || b_type != kF16 ||
        c_type != kF32 || compute != kCompute32F) {
      return 15;  // CUBLAS_STATUS_NOT_SUPPORTED
    }
    for (int column = 0; column < n; ++column) {
      for (int row = 0; row < m; ++row) {
        float sum = 0;
        for (int i = 0; i < k; ++i) {
          sum += F16ToF32(static_cast<const uint16_t*>(a)[row * lda + i]) *
                 F16ToF32(static_cast<const uint16_t*>(b)[column * ldb + i]);
        }
        float* to = static_cast<float*>(c) + column * ldc + row;
        *to = *static_cast<const float*>(alpha) * sum;
        if (*static_cast<const float*>(beta) != 0) return 7;  // CUBLAS_STATUS_INVALID_VALUE
      }
    }
    return gemm_status;
  }

  static cuda::LibraryLoader Loader() {
    return {.open = [](const char* name) -> void* {
              if (name != file) return nullptr;
              ++open;
              return &file;
            },
            .symbol = [](void*, const char* name) -> void* {
              if (name == missing) return nullptr;
              const std::string symbol = name;
              if (symbol == "cublasCreate_v2") return reinterpret_cast<void*>(&Create);
              if (symbol == "cublasDestroy_v2") return reinterpret_cast<void*>(&Destroy);
              if (symbol == "cublasGetVersion_v2") return reinterpret_cast<void*>(&GetVersion);
              if (symbol == "cublasSetStream_v2") return reinterpret_cast<void*>(&SetStream);
              if (symbol == "cublasSetWorkspace_v2") return reinterpret_cast<void*>(&SetWorkspace);
              if (symbol == "cublasGemmEx") return reinterpret_cast<void*>(&Gemm);
              return nullptr;
            },
            .close = [](void*) { --open; }};
  }
};

TEST(CublasTest, MultipliesByTheLibraryThatIsFound) {
  FakeCublas::Reset();
  for (const char* file : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"}) {
    FakeCublas::file = file;
    GpuOnCpu gpu;
    const auto cublas = cuda::OpenCublas(gpu, FakeCublas::Loader());
    ASSERT_TRUE(cublas.ok()) << cublas.status();
    EXPECT_EQ((*cublas)->description(), "cuBLAS 12.4");
    EXPECT_EQ(FakeCublas::stream, gpu.stream());
    EXPECT_GE(FakeCublas::workspace, size_t{32} << 20);
    const absl::Status checked = cuda::CheckDense(gpu, **cublas);
    EXPECT_TRUE(checked.ok()) << checked;
  }
  EXPECT_EQ(FakeCublas::open, 0) << "handles and libraries are left open";
}

TEST(CublasTest, SaysWhatIsMissing) {
  FakeCublas::Reset();
  GpuOnCpu gpu;
  FakeCublas::file = "nowhere";
  const auto none = cuda::OpenCublas(gpu, FakeCublas::Loader());
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(none.status().ToString(),
              AllOf(HasSubstr("libcublas.so.13"), HasSubstr("libcublas.so.12")));
  FakeCublas::file = "libcublas.so";
  for (const char* name : {"cublasCreate_v2", "cublasDestroy_v2", "cublasGetVersion_v2",
                           "cublasSetStream_v2", "cublasSetWorkspace_v2", "cublasGemmEx"}) {
    FakeCublas::missing = name;
    const auto lacking = cuda::OpenCublas(gpu, FakeCublas::Loader());
    EXPECT_EQ(lacking.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(lacking.status().ToString(), HasSubstr(name));
  }
  FakeCublas::missing.clear();
  FakeCublas::gemm_status = 13;
  const auto failing = cuda::OpenCublas(gpu, FakeCublas::Loader());
  ASSERT_TRUE(failing.ok());
  const absl::Status failed = cuda::CheckDense(gpu, **failing);
  EXPECT_EQ(failed.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(failed.ToString(), AllOf(HasSubstr("status 13"), HasSubstr("cuda_exact_prefill")));
}

// Without the library prompts are computed exactly, and one line says why.
TEST_F(DenseTest, GoesOnWithoutTheLibrary) {
  class WithoutLibrary final : public GpuOnCpu {
   public:
    absl::StatusOr<cuda::DenseMath*> OpenDense() override {
      cuda::LibraryLoader loader = cuda::DynamicLoader();
      loader.open = [](const char*) -> void* { return nullptr; };
      WITHY_ASSIGN_OR_RETURN(math_, cuda::OpenCublas(*this, loader));
      return math_.get();
    }

   private:
    std::unique_ptr<cuda::DenseMath> math_;
  };
  const std::string path = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0);
  std::string told;
  ModelOptions options;
  options.device = "cuda";
  options.dense_rows = kLongPrompt;
  options.on_device = [&told](std::string_view line) { told = line; };
  options.open_gpu = [](int32_t) { return std::make_unique<WithoutLibrary>(); };
  const auto model = OpenTiny(folder_, path, options);
  ASSERT_NE(model, nullptr);
  EXPECT_THAT(told, AllOf(HasSubstr("the runner"), HasSubstr("libcublas.so.13")));
  EXPECT_EQ(model->target(), "cuda-on-cpu");
  const std::vector<Row> rows = PlainRows(SomeTokens(20, TinyShape().vocab_size));
  const OnRunner exact = Open(path, 0);
  EXPECT_EQ(RunRows(*model, ScratchKv(model->info(), 32), rows),
            RunRows(*exact.model, ScratchKv(exact.model->info(), 32), rows));
}

}  // namespace
}  // namespace withy::engine
