// A row's logits have the same bits for any batch, split of the prefill, thread count, level of
// other rows, and for a tree as for plain rows.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/model/testing.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

constexpr int32_t kTokens = 70;

// Target, type, architecture.
using InvarianceCase = std::tuple<std::string, std::string, std::string>;

class InvarianceTest : public testing::TestWithParam<InvarianceCase> {
 protected:
  InvarianceTest() {
    const auto type = FindSynthType(std::get<1>(GetParam()));
    SynthShape shape = TinyShape();
    shape.architecture = std::get<2>(GetParam());
    if (shape.architecture != "llama") shape.sliding_window = 9;
    path_ = WriteTiny(folder_, shape, *type);
  }

  std::unique_ptr<Model> Open(int32_t threads, int32_t piece_rows = 256,
                              std::vector<LevelSpec> levels = {}) {
    ModelOptions options;
    options.threads = threads;
    options.max_piece_rows = piece_rows;
    UseTarget(std::get<0>(GetParam()), &options);
    options.levels = std::move(levels);
    return OpenTiny(folder_, path_, options);
  }

  static bool OnGpu() { return std::get<0>(GetParam()) == "cuda-on-cpu"; }

  // Logits of every token of a plain prefill in one call on two threads. All other ways must equal
  // them.
  std::vector<float> Reference(std::span<const int32_t> tokens) {
    const auto model = Open(2);
    return RunRows(*model, ScratchKv(model->info(), kTokens), PlainRows(tokens));
  }

  TestFolder folder_;
  std::string path_;
};

// Row `row` of both [.., vocab] arrays has the same bits.
void ExpectSameRow(std::span<const float> a, size_t row_a, std::span<const float> b, size_t row_b,
                   size_t vocab, const std::string& what) {
  ASSERT_LE((row_a + 1) * vocab, a.size());
  ASSERT_LE((row_b + 1) * vocab, b.size());
  EXPECT_EQ(0, std::memcmp(&a[row_a * vocab], &b[row_b * vocab], vocab * sizeof(float)))
      << what << ", rows " << row_a << " and " << row_b;
}

TEST_P(InvarianceTest, ThreadsAndPiecesDoNotMatter) {
  const std::vector<int32_t> tokens = SomeTokens(kTokens, TinyShape().vocab_size);
  const std::vector<float> reference = Reference(tokens);
  for (const auto& [threads, piece_rows] :
       {std::pair(1, 1), std::pair(2, 7), std::pair(1, 64), std::pair(5, 64)}) {
    if (OnGpu() && piece_rows == 64) break;  // threads do nothing there
    const auto model = Open(threads, piece_rows);
    const std::vector<float> logits =
        RunRows(*model, ScratchKv(model->info(), kTokens), PlainRows(tokens));
    EXPECT_EQ(0, std::memcmp(reference.data(), logits.data(), logits.size() * sizeof(float)))
        << threads << " threads, pieces of " << piece_rows;
  }
}

// Deep in a context, threads share out the keys of a KV head.
TEST_P(InvarianceTest, ThreadsDoNotMatterAtDepth) {
  constexpr int32_t kDeep = 400;
  const std::vector<int32_t> tokens = SomeTokens(kDeep, TinyShape().vocab_size);
  const auto reader = Open(1);
  const ScratchKv reference_kv(reader->info(), kDeep);
  const std::vector<float> reference = RunRows(*reader, reference_kv, PlainRows(tokens));
  const auto vocab = static_cast<size_t>(reader->info().vocab_size);
  for (const int32_t threads : {2, 3, 5}) {
    if (OnGpu() && threads > 2) break;
    const auto model = Open(threads);
    const ScratchKv kv(model->info(), kDeep);
    const int32_t filled = kDeep - 3;
    RunRows(*model, kv, PlainRows(std::span(tokens).first(static_cast<size_t>(filled))));
    for (int32_t i = filled; i < kDeep; ++i) {
      const std::vector<Row> row =
          PlainRows(std::span(tokens).subspan(static_cast<size_t>(i), 1), i);
      ExpectSameRow(RunRows(*model, kv, row), 0, reference, static_cast<size_t>(i), vocab,
                    std::to_string(threads) + " threads");
    }
  }
}

TEST_P(InvarianceTest, CuttingThePrefillDoesNotMatter) {
  const std::vector<int32_t> tokens = SomeTokens(kTokens, TinyShape().vocab_size);
  const std::vector<float> reference = Reference(tokens);
  const auto model = Open(1);
  const auto vocab = static_cast<size_t>(model->info().vocab_size);
  for (const int32_t cut : {1, 3, 16, 33}) {
    const ScratchKv kv(model->info(), kTokens);
    for (int32_t first = 0; first < kTokens; first += cut) {
      const int32_t count = std::min(cut, kTokens - first);
      std::vector<Row> rows = PlainRows(
          std::span(tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(count)), first);
      for (size_t i = 0; i + 1 < rows.size(); ++i) rows[i].want_logits = false;
      ExpectSameRow(RunRows(*model, kv, rows), 0, reference, static_cast<size_t>(first + count - 1),
                    vocab, "cut in " + std::to_string(cut));
    }
  }
}

TEST_P(InvarianceTest, OtherContextsInTheBatchDoNotMatter) {
  const std::vector<int32_t> tokens = SomeTokens(kTokens, TinyShape().vocab_size);
  const std::vector<int32_t> others = SomeTokens(kTokens, TinyShape().vocab_size, 99);
  const std::vector<float> reference = Reference(tokens);
  const std::vector<float> other_reference = Reference(others);
  const auto model = Open(1);
  const auto vocab = static_cast<size_t>(model->info().vocab_size);
  const ScratchKv kv(model->info(), kTokens);
  const ScratchKv other_kv(model->info(), kTokens);
  const std::vector<ContextView> views = {kv.View(), other_kv.View()};
  // Both contexts advance by different steps, their rows interleaved.
  int32_t at = 0;
  int32_t other_at = 0;
  while (at < kTokens || other_at < kTokens) {
    const int32_t count = std::min(5, kTokens - at);
    const int32_t other_count = std::min(11, kTokens - other_at);
    std::vector<Row> rows;
    for (int32_t i = 0; i < std::max(count, other_count); ++i) {
      const auto add = [&](std::span<const int32_t> from, int32_t position, int32_t context) {
        rows.push_back({.token = from[static_cast<size_t>(position)],
                        .position = position,
                        .slot = position,
                        .context = context,
                        .want_logits = true});
      };
      if (i < other_count) add(others, other_at + i, 1);
      if (i < count) add(tokens, at + i, 0);
    }
    std::vector<float> logits(rows.size() * vocab);
    const absl::Status status = model->Forward({.rows = rows, .contexts = views}, logits.data());
    ASSERT_TRUE(status.ok()) << status;
    for (size_t i = 0; i < rows.size(); ++i) {
      ExpectSameRow(logits, i, rows[i].context == 0 ? reference : other_reference,
                    static_cast<size_t>(rows[i].position), vocab, "mixed batch");
    }
    at += count;
    other_at += other_count;
  }
}

// A pass is paused after every layer, and other passes run in between.
TEST_P(InvarianceTest, OtherPassesInBetweenDoNotMatter) {
  const std::vector<int32_t> tokens = SomeTokens(kTokens, TinyShape().vocab_size);
  const std::vector<int32_t> others = SomeTokens(kTokens, TinyShape().vocab_size, 99);
  const std::vector<float> reference = Reference(tokens);
  const std::vector<float> other_reference = Reference(others);
  for (const int threads : {1, 2}) {
    std::atomic<bool> stop = false;
    ModelOptions options;
    UseTarget(std::get<0>(GetParam()), &options);
    options.threads = threads;
    options.hooks.layer_tap = [&stop](int32_t, std::span<const float>) { stop = true; };
    const auto model = OpenTiny(folder_, path_, options);
    const ScratchKv kv(model->info(), kTokens);
    const ContextView view = kv.View();
    const std::vector<Row> rows = PlainRows(tokens);
    std::vector<float> logits(reference.size());
    auto pass = model->Begin({.rows = rows, .contexts = {&view, 1}}, logits.data());
    ASSERT_TRUE(pass.ok()) << pass.status();
    int left = 0;
    double done = 0;
    while (!(*pass)->Run(&stop)) {
      ++left;
      EXPECT_GT((*pass)->Done(), done);
      done = (*pass)->Done();
      EXPECT_NEAR(done, 1.0 * left / model->info().layers, 0.2);
      const std::vector<float> between =
          RunRows(*model, ScratchKv(model->info(), kTokens), PlainRows(others));
      EXPECT_EQ(between, other_reference);
      stop = false;
    }
    EXPECT_EQ(left, model->info().layers);
    EXPECT_EQ(logits, reference) << threads << " threads";
  }
}

// A context whose chunks 0 to 2 are encoded in lower formats. The rows after them do not depend on
// threads, cutting, or another context in the batch.
TEST_P(InvarianceTest, MixedKvFormatsAreInvariantToo) {
  using enum KvFormat;
  constexpr int32_t kPrefix = 52;  // three chunks and the start of the fourth
  const std::vector<int32_t> tokens = SomeTokens(kTokens, TinyShape().vocab_size);
  const auto vocab = static_cast<size_t>(TinyShape().vocab_size);
  const auto encoded = [&](Model& model, const std::vector<KvFormat>& formats) {
    ScratchKv kv(model.info(), kTokens);
    const auto status = Prefill(model, kv, std::span(tokens).first(kPrefix), 0, nullptr);
    EXPECT_TRUE(status.ok()) << status;
    for (size_t c = 0; c < formats.size(); ++c) kv.Encode(static_cast<int32_t>(c), formats[c]);
    return kv;
  };
  const std::vector<KvFormat> formats = {kQ4, kQ2, kQ4Q2};
  const std::vector<Row> rest = PlainRows(std::span(tokens).subspan(kPrefix), kPrefix);
  const auto model = Open(1);
  const std::vector<float> reference = RunRows(*model, encoded(*model, formats), rest);
  EXPECT_NE(reference, RunRows(*model, encoded(*model, {}), rest));

  const auto threaded = Open(5, 7);
  EXPECT_EQ(reference, RunRows(*threaded, encoded(*threaded, formats), rest));

  const ScratchKv cut = encoded(*model, formats);
  for (size_t i = 0; i < rest.size(); ++i) {
    ExpectSameRow(RunRows(*model, cut, std::span(rest).subspan(i, 1)), 0, reference, i, vocab,
                  "one by one");
  }

  const ScratchKv kv = encoded(*model, formats);
  const ScratchKv other = encoded(*model, {kQ2, kQ8, kQ4});
  const std::vector<ContextView> views = {other.View(), kv.View()};
  std::vector<Row> rows;
  for (const Row& row : rest) {
    rows.push_back(row);
    rows.push_back(row);
    rows.back().context = 1;
  }
  std::vector<float> logits(rows.size() * vocab);
  const absl::Status status = model->Forward({.rows = rows, .contexts = views}, logits.data());
  ASSERT_TRUE(status.ok()) << status;
  for (size_t i = 0; i < rest.size(); ++i) {
    ExpectSameRow(logits, 2 * i + 1, reference, i, vocab, "beside another context");
  }
}

// A tree whose rows lie in scattered slots gives the same logits as decoding each of its paths.
TEST_P(InvarianceTest, TreeRowsEqualPlainDecoding) {
  constexpr int32_t kPrefix = 21;
  const auto model = Open(1);
  const int32_t vocab = model->info().vocab_size;
  const std::vector<int32_t> prefix = SomeTokens(kPrefix, vocab);
  struct Node {
    int32_t parent;
    int32_t slot;
  };
  // Two roots, more rows than the last chunk has room for, and slots not in the order of positions.
  const std::vector<Node> nodes = {{-1, 40}, {-1, 23}, {0, 21}, {0, 39}, {1, 50},
                                   {2, 22},  {3, 33},  {5, 47}, {7, 24}, {8, 36}};
  const std::vector<int32_t> node_tokens = SomeTokens(static_cast<int32_t>(nodes.size()), vocab, 5);
  const ScratchKv kv(model->info(), 64);
  RunRows(*model, kv, PlainRows(prefix));
  std::vector<std::vector<int32_t>> ancestors(nodes.size());
  // Tokens from the root to the node, the node's included.
  std::vector<std::vector<int32_t>> paths(nodes.size());
  std::vector<Row> rows;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].parent >= 0) {
      const auto parent = static_cast<size_t>(nodes[i].parent);
      ancestors[i] = ancestors[parent];
      ancestors[i].push_back(nodes[parent].slot);
      paths[i] = paths[parent];
    }
    paths[i].push_back(node_tokens[i]);
    rows.push_back({.token = node_tokens[i],
                    .position = kPrefix + static_cast<int32_t>(ancestors[i].size()),
                    .slot = nodes[i].slot,
                    .want_logits = true,
                    .ancestor_slots = ancestors[i]});
  }
  const std::vector<float> tree = RunRows(*model, kv, rows);
  for (size_t i = 0; i < nodes.size(); ++i) {
    const ScratchKv plain_kv(model->info(), 64);
    RunRows(*model, plain_kv, PlainRows(prefix));
    std::vector<float> logits;
    for (size_t t = 0; t < paths[i].size(); ++t) {
      logits =
          RunRows(*model, plain_kv,
                  PlainRows(std::span(paths[i]).subspan(t, 1), kPrefix + static_cast<int32_t>(t)));
    }
    ExpectSameRow(logits, 0, tree, i, static_cast<size_t>(vocab), "node " + std::to_string(i));
  }
}

// Rows of several levels in one batch give the same logits as batches of one level; the levels'
// logits differ.
void ExpectLevelsDoNotMix(Model* model) {
  const SynthShape shape = TinyShape();
  ASSERT_EQ(model->info().levels.size(), 3u);
  EXPECT_LT(model->info().levels[0].weight_bytes, model->info().levels[1].weight_bytes);
  const auto vocab = static_cast<size_t>(shape.vocab_size);
  const std::vector<int32_t> tokens = SomeTokens(20, shape.vocab_size);
  std::vector<std::vector<float>> alone;
  for (const int32_t level : {0, 1, 2}) {
    std::vector<Row> rows = PlainRows(tokens);
    for (Row& row : rows) row.level = level;
    alone.push_back(RunRows(*model, ScratchKv(model->info(), 32), rows));
  }
  EXPECT_NE(alone[0], alone[1]);
  EXPECT_NE(alone[1], alone[2]);
  std::vector<ScratchKv> kv;
  std::vector<ContextView> views;
  kv.reserve(3);
  views.reserve(3);
  for (int i = 0; i < 3; ++i) kv.emplace_back(model->info(), 32);
  for (const ScratchKv& one : kv) views.push_back(one.View());
  std::vector<Row> rows;  // levels interleaved, lowest first
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (const int32_t level : {0, 2, 1}) {
      Row row = PlainRows(std::span(tokens).subspan(i, 1), static_cast<int32_t>(i), level)[0];
      row.level = level;
      row.want_logits = i % 3 != 1;
      rows.push_back(row);
    }
  }
  std::vector<float> logits(rows.size() * vocab);
  ASSERT_TRUE(model->Forward({.rows = rows, .contexts = views}, logits.data()).ok());
  size_t out = 0;
  for (const Row& row : rows) {
    if (!row.want_logits) continue;
    ExpectSameRow(logits, out++, alone[static_cast<size_t>(row.level)],
                  static_cast<size_t>(row.position), vocab, "level " + std::to_string(row.level));
  }
}

class LevelInvarianceTest : public InvarianceTest {};

TEST_P(LevelInvarianceTest, LevelsOfOtherRowsDoNotMatter) {
  const auto count = static_cast<size_t>(TinyShape().layers);
  LevelSpec low{.percent = 40, .layers = std::vector<LayerExtent>(count, {2, 256})};
  LevelSpec middle{.percent = 70, .layers = std::vector<LayerExtent>(count, {6, 256})};
  middle.layers[1] = {8, 512};
  ExpectLevelsDoNotMix(Open(1, 256, {low, middle}).get());
  low.layers[0].heads = 0;
  low.layers[1] = {0, 0};
  low.layers[2].neurons = 0;
  ExpectLevelsDoNotMix(Open(1, 256, {low, middle}).get());
}

TEST_P(LevelInvarianceTest, LoraOfOtherRowsDoesNotMatter) {
  for (const int32_t lowest : {40, 15}) {  // 15: less than a unit and a panel per layer
    SynthShape shape = TinyShape();
    shape.levels = {lowest, 70};
    ModelOptions options;
    UseTarget(std::get<0>(GetParam()), &options);
    const std::string path =
        WriteTiny(folder_, shape, *FindSynthType(std::get<1>(GetParam())), "elastic.gguf");
    std::vector<std::vector<float>> logits;
    for (const int32_t threads : {1, 3}) {
      options.threads = threads;
      const auto model = OpenTiny(folder_, path, options);
      ExpectLevelsDoNotMix(model.get());
      std::vector<Row> rows = PlainRows(SomeTokens(20, shape.vocab_size));
      for (Row& row : rows) row.level = 0;
      logits.push_back(RunRows(*model, ScratchKv(model->info(), 32), rows));
    }
    EXPECT_EQ(logits[0], logits[1]);
  }
}

// All types on CPUs; one where a CPU executes a GPU's kernels, which takes a hundred times as long:
// engine_cuda_executor_test has the products of the others.
std::vector<InvarianceCase> LevelCases() {
  std::vector<InvarianceCase> cases;
  for (const std::string& target : TestTargets()) {
    for (const char* type : {"q4_0", "q8_0", "f16"}) {
      if (target != "cuda-on-cpu" || type == std::string("q4_0")) {
        cases.emplace_back(target, type, "llama");
      }
    }
  }
  return cases;
}

// Also layers that share K and V, and copies of the stream, which GPUs do not compute.
std::vector<InvarianceCase> AllCases() {
  std::vector<InvarianceCase> cases = LevelCases();
  for (const Target target : SupportedTargets()) {
    cases.emplace_back(KernelsFor(target)->name, "q8_0", "gemma3n");
  }
  return cases;
}

std::string CaseName(const testing::TestParamInfo<InvarianceCase>& tested) {
  const auto& [target, type, architecture] = tested.param;
  std::string name = target + "_" + type + (architecture == "llama" ? "" : "_" + architecture);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Targets, InvarianceTest, testing::ValuesIn(AllCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(Targets, LevelInvarianceTest, testing::ValuesIn(LevelCases()), CaseName);

}  // namespace
}  // namespace withy::engine
