// Tests the row planner, the emitter and the executor, each alone.
#include "engine/model/program.h"

#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/cpu/executor.h"
#include "engine/model/emit.h"
#include "engine/model/facts.h"
#include "engine/model/planned_pass.h"
#include "engine/model/testing.h"
#include "engine/weights/packer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

// A tiny model's packed file and its facts.
class ProgramTest : public ::testing::Test {
 protected:
  void Open(const std::vector<int32_t>& levels = {}, const std::string& architecture = "llama") {
    const bool experts = FindArchitecture(architecture)->experts;
    SynthShape shape = experts ? *FindSynthShape("tiny-moe") : TinyShape();
    shape.architecture = architecture;
    shape.sliding_window = experts ? 40 : 0;
    shape.levels = levels;
    ThreadPool pool(1);
    auto path = EnsurePacked(WriteTiny(folder_, shape, GgmlType::kQ8_0), folder_.path(), pool, {});
    ASSERT_TRUE(path.ok()) << path.status();
    auto file = PackedFile::Open(*path);
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
    auto facts = ReadFacts(*file_, {});
    ASSERT_TRUE(facts.ok()) << facts.status();
    facts_ = *std::move(facts);
    info_ = DescribeModel(*file_, facts_);
  }

  // A batch of rows over one context that holds `tokens` tokens.
  Batch BatchOf(const std::vector<Row>& rows, int32_t tokens = 64) {
    kv_ = std::make_unique<ScratchKv>(info_, tokens);
    view_ = kv_->View();
    return {.rows = rows, .contexts = {&view_, 1}};
  }

  const Program& Write(const Batch& batch, bool tap = false) {
    plan_.Plan(batch, facts_, 0, static_cast<int32_t>(batch.rows.size()), 0);
    Emit(plan_, facts_, tap, &program_);
    return program_;
  }

  // Of a program of one row.
  void ExpectEveryWeightIsNamedOnce(const Program& program) const {
    std::multiset<std::string> named;
    for (const Op& op : program.ops) {
      EXPECT_EQ(op.rows, 1);
      EXPECT_EQ(op.extents, nullptr);
      for (const WeightName& name : op.Weights()) {
        EXPECT_EQ(name.layer, op.layer);
        named.insert(TensorName(name));
      }
    }
    for (const PackedTensor& tensor : file_->tensors()) {
      if (tensor.name == "rope_frequencies") continue;
      EXPECT_EQ(named.count(tensor.name), 1u) << tensor.name;
      named.erase(tensor.name);
    }
    named.erase("output");  // the tied head has its own name but no tensor
    EXPECT_THAT(named, ::testing::IsEmpty());
  }

  TestFolder folder_;
  std::unique_ptr<PackedFile> file_;
  ModelFacts facts_;
  ModelInfo info_;
  std::unique_ptr<ScratchKv> kv_;
  ContextView view_;
  RowPlan plan_;
  Program program_;
};

std::vector<std::string> Names(const Program& program, int32_t layer) {
  std::vector<std::string> names;
  for (const Op& op : program.ops) {
    if (op.layer == layer) names.emplace_back(OpName(op.kind));
  }
  return names;
}

TEST_F(ProgramTest, DecodingOneTokenNamesEveryWeightOnce) {
  Open();
  const std::vector<Row> rows = {{.token = 3, .position = 5, .slot = 5, .want_logits = true}};
  const Program& program = Write(BatchOf(rows));
  EXPECT_THAT(Names(program, 0),
              ::testing::ElementsAre("norm", "qkv", "store_kv", "attend", "attention_out", "norm",
                                     "gate_up", "down"));
  EXPECT_THAT(Names(program, -1), ::testing::ElementsAre("embed", "take_logit_rows", "head"));
  ExpectEveryWeightIsNamedOnce(program);
  ASSERT_EQ(program.layer_end.size(), static_cast<size_t>(facts_.shape.layers));
  EXPECT_EQ(program.layer_end.back(), static_cast<int32_t>(program.ops.size()));
}

TEST_F(ProgramTest, BiasesAndPositionsAreOperandsOfTheSameOperations) {
  Open({}, "gpt2");
  const std::vector<Row> rows = {{.token = 3, .position = 5, .slot = 5, .want_logits = true}};
  const Program& program = Write(BatchOf(rows));
  EXPECT_THAT(Names(program, 0),
              ::testing::ElementsAre("norm", "qkv", "store_kv", "attend", "attention_out", "norm",
                                     "gate_up", "down"));
  ExpectEveryWeightIsNamedOnce(program);
  for (const Op& op : program.ops) {
    if (op.kind != OpKind::kStoreKv) continue;
    EXPECT_EQ(op.rope, ModelShape::kNoRope);
  }
}

TEST_F(ProgramTest, SinksAndBiasesOfExpertsAreOperandsOfTheSameOperations) {
  Open({}, "gpt-oss");
  const std::vector<Row> rows = {{.token = 3, .position = 5, .slot = 5, .want_logits = true}};
  const Program& program = Write(BatchOf(rows));
  EXPECT_THAT(Names(program, 0),
              ::testing::ElementsAre("norm", "qkv", "store_kv", "attend", "attention_out", "norm",
                                     "route", "expert_gate_up", "expert_down"));
  ExpectEveryWeightIsNamedOnce(program);
}

TEST_F(ProgramTest, HiddenStatesNeedNoHead) {
  Open();
  const std::vector<Row> rows = {{.token = 3, .position = 5, .slot = 5, .want_logits = true}};
  Batch batch = BatchOf(rows);
  batch.hidden = true;
  EXPECT_THAT(Names(Write(batch), -1), ::testing::ElementsAre("embed", "hidden"));
  EXPECT_FALSE(program_.ops.back().Reads(WeightRole::kHead));
}

TEST_F(ProgramTest, RowsWithoutLogitsEndWithTheLastLayersKv) {
  Open();
  std::vector<Row> rows = PlainRows(SomeTokens(5, info_.vocab_size));
  for (Row& row : rows) row.want_logits = false;
  const Program& program = Write(BatchOf(rows));
  const int32_t last = facts_.shape.layers - 1;
  EXPECT_THAT(Names(program, last), ::testing::ElementsAre("norm", "qkv", "store_kv"));
  EXPECT_THAT(Names(program, -1), ::testing::ElementsAre("embed"));
  EXPECT_EQ(program.ops[static_cast<size_t>(program.layer_end[static_cast<size_t>(last)]) - 2]
                .weight_count,
            2)
      << "no queries";
}

TEST_F(ProgramTest, BehindTheLastKvOnlyWantedRowsGoOn) {
  Open();
  std::vector<Row> rows = PlainRows(SomeTokens(6, info_.vocab_size));
  for (Row& row : rows) row.want_logits = row.position == 2 || row.position == 4;
  const Program& program = Write(BatchOf(rows));
  const int32_t last = facts_.shape.layers - 1;
  for (const Op& op : program.ops) {
    const bool behind = op.kind == OpKind::kTakeLogitRows || op.kind == OpKind::kHead ||
                        (op.layer == last && op.kind != OpKind::kNorm && op.kind != OpKind::kQkv &&
                         op.kind != OpKind::kStoreKv);
    if (behind) {
      EXPECT_EQ(op.rows, 2) << OpName(op.kind);
    }
    if (op.kind == OpKind::kQkv && op.layer == last) {
      EXPECT_EQ(op.rows, 6);
      EXPECT_EQ(op.first_query, 2);
      EXPECT_EQ(op.queries, 3);
    }
  }
  EXPECT_EQ(Names(program, last)[3], "keep_wanted");
}

// Layers that share K and V compute rows that want logits, and none where no row does.
TEST_F(ProgramTest, BehindTheLastKvOfItsOwnALayerHasOnlyQueriesOfWantedRows) {
  Open({}, "gemma3n");
  ASSERT_EQ(facts_.shape.kv_layers(), 2);
  EXPECT_EQ(info_.kv.layers, 2);
  std::vector<Row> rows = PlainRows(SomeTokens(6, info_.vocab_size));
  for (Row& row : rows) row.want_logits = row.position == 2 || row.position == 4;
  const Program& program = Write(BatchOf(rows));
  EXPECT_THAT(Names(program, 1),
              ::testing::ElementsAre("predict", "norm", "qkv", "laurel", "store_kv", "keep_wanted",
                                     "attend", "attention_out", "add_branch", "norm", "gate_up",
                                     "down", "add_branch", "correct", "add_layer_input"));
  EXPECT_THAT(Names(program, -1),
              ::testing::ElementsAre("embed", "layer_inputs", "spread", "merge", "take_logit_rows",
                                     "head", "finish_logits"));
  for (const Op& op : program.ops) {
    if (op.layer != 2) continue;
    EXPECT_EQ(op.rows, 2) << OpName(op.kind);
    if (op.kind == OpKind::kQkv) {
      EXPECT_EQ(op.queries, 2);
      EXPECT_EQ(op.first_query, 0);
      EXPECT_EQ(op.weight_count, 1);
    }
    if (op.kind == OpKind::kStoreKv || op.kind == OpKind::kAttend) {
      EXPECT_EQ(op.kv_layer, 1);
    }
  }
  for (Row& row : rows) row.want_logits = false;
  EXPECT_THAT(Names(Write(BatchOf(rows)), 2), ::testing::IsEmpty());
  EXPECT_EQ(program_.layer_end.size(), 3u);
}

TEST_F(ProgramTest, TreeRowsGatherTheirTails) {
  Open();
  const std::vector<int32_t> ancestors = {20};
  const std::vector<Row> rows = {
      {.token = 1, .position = 17, .slot = 20},
      {.token = 2, .position = 18, .slot = 21, .want_logits = true, .ancestor_slots = ancestors}};
  const Program& program = Write(BatchOf(rows));
  EXPECT_EQ(plan_.tail_blocks(), 2) << "a block a row: neither key lies where its position says";
  EXPECT_THAT(Names(program, 1), ::testing::Contains("gather_tail"));
}

// Random mixes of levels: extents never grow from row to row, low-rank runs cover exactly the rows
// whose level has LoRA on the layer, and shares of work grow from 0 to 1.
TEST_F(ProgramTest, AnyMixOfLevelsIsPlannedConsistently) {
  Open({20, 50, 80});
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<Row> rows =
        PlainRows(SomeTokens(1 + static_cast<int>(random() % 12), info_.vocab_size, random()));
    for (Row& row : rows) {
      row.level = static_cast<int32_t>(random() % 5) - 1;
      if (row.level == 4) row.level = 3;
      row.want_logits = random() % 2 == 0;
    }
    const Program& program = Write(BatchOf(rows), round % 2 == 0);
    for (int32_t i = 1; i < plan_.count(); ++i) {
      EXPECT_GE(plan_.LevelOf(i - 1), plan_.LevelOf(i));
    }
    for (const Op& op : program.ops) {
      if (op.extents != nullptr) {
        EXPECT_TRUE(std::is_sorted(op.extents->neurons.rbegin(), op.extents->neurons.rend()));
        EXPECT_TRUE(std::is_sorted(op.extents->q_rows.rbegin(), op.extents->q_rows.rend()));
      }
      std::set<int32_t> covered;
      for (const LowRankRun& run : program.Runs(op.lower)) {
        for (int32_t i = run.first; i < run.first + run.rows; ++i) {
          EXPECT_TRUE(covered.insert(i).second);
          EXPECT_LT(i, op.rows);
        }
      }
      if (op.kind != OpKind::kQkv) continue;
      for (int32_t i = 0; i < op.rows; ++i) {
        EXPECT_EQ(covered.count(i) == 1, facts_.HasLora(plan_.LevelOf(i), op.layer, true));
      }
    }
    double before = 0;
    for (int32_t layer = 0; layer <= facts_.shape.layers; ++layer) {
      EXPECT_GE(plan_.ShareDone(layer), before);
      before = plan_.ShareDone(layer);
    }
    EXPECT_DOUBLE_EQ(before, 1);
    if (HasFailure()) return;
  }
}

// The CPU executor, paused between operations and resumed, reports its progress and gives the same
// bits as an uninterrupted run.
TEST_F(ProgramTest, AnExecutorStopsBetweenOperations) {
  Open();
  std::vector<Row> rows = PlainRows(SomeTokens(9, info_.vocab_size));
  const Batch batch = BatchOf(rows);
  const Program& program = Write(batch);
  const LayerTap tap;
  CpuExecutor executor(*file_, facts_, DefaultKernels(), 2, tap);
  const auto run = executor.NewRun();
  const size_t values = rows.size() * static_cast<size_t>(info_.vocab_size);
  std::vector<float> whole(values);
  std::vector<float> parts(values);
  run->Start(program, plan_, batch, whole.data());
  EXPECT_TRUE(run->Run(nullptr, ProgramRun::kToTheEnd));
  EXPECT_EQ(run->ops_done(), static_cast<double>(program.ops.size()));

  run->Start(program, plan_, batch, parts.data());
  const std::atomic<bool> stop{true};
  EXPECT_FALSE(run->Run(&stop, ProgramRun::kToTheEnd));
  for (int32_t end = 1; end < static_cast<int32_t>(program.ops.size()); end += 3) {
    EXPECT_FALSE(run->Run(nullptr, end));
    EXPECT_EQ(run->ops_done(), end);
  }
  EXPECT_TRUE(run->Run(nullptr, ProgramRun::kToTheEnd));
  EXPECT_EQ(parts, whole);
}

// Records what it is given; runs nothing.
class ScriptedRun final : public ProgramRun {
 public:
  void Start(const Program& program, const RowPlan& plan, const Batch&, float*) override {
    pieces.push_back(plan.count());
    ops = static_cast<int32_t>(program.ops.size());
    done = 0;
  }
  bool Run(const std::atomic<bool>*, int32_t end) override {
    done = std::max(done, std::min(end, ops));
    return done == ops;
  }
  double ops_done() const override { return done; }
  void Abandon() override {}

  std::vector<int32_t> pieces;
  int32_t ops = 0;
  int32_t done = 0;
};

TEST_F(ProgramTest, APassCutsABatchIntoPiecesAndStopsAtLayers) {
  Open();
  auto scripted = std::make_unique<ScriptedRun>();
  ScriptedRun& run = *scripted;
  PlannedPass pass(facts_, info_, std::move(scripted), 4, false);
  std::vector<Row> rows = PlainRows(SomeTokens(10, info_.vocab_size));
  std::vector<float> logits(rows.size() * static_cast<size_t>(info_.vocab_size));
  ASSERT_TRUE(pass.Start(BatchOf(rows), logits.data()).ok());
  EXPECT_EQ(pass.Done(), 0);
  double before = 0;
  for (const double until : {0.05, 0.1, 0.3, 0.45, 0.8}) {
    EXPECT_FALSE(pass.Run(nullptr, until));
    EXPECT_GE(pass.Done(), until);
    EXPECT_GE(pass.Done(), before);
    EXPECT_LT(pass.Done(), 1);
    before = pass.Done();
  }
  EXPECT_TRUE(pass.Run(nullptr, 1));
  EXPECT_EQ(pass.Done(), 1);
  EXPECT_THAT(run.pieces, ::testing::ElementsAre(4, 4, 2));
}

TEST_F(ProgramTest, APassPausesBeforeBlocksThatAreNotInPlace) {
  Open();
  auto scripted = std::make_unique<ScriptedRun>();
  ScriptedRun& run = *scripted;
  PlannedPass pass(facts_, info_, std::move(scripted), 4, false);
  std::vector<Row> rows = PlainRows(SomeTokens(6, info_.vocab_size));
  std::vector<float> logits(rows.size() * static_cast<size_t>(info_.vocab_size));
  Batch batch = BatchOf(rows);
  std::vector<ContextView> views(batch.contexts.begin(), batch.contexts.end());
  std::atomic<int32_t> ready{0};
  views[0].layers_ready = &ready;
  batch.contexts = views;
  ASSERT_TRUE(pass.Start(batch, logits.data()).ok());
  int32_t before = -1;
  for (ready = 0; ready < info_.layers; ++ready) {
    EXPECT_FALSE(pass.Run(nullptr, 1));
    EXPECT_TRUE(pass.WaitsForKv());
    EXPECT_GT(run.done, before) << "it goes on as layers arrive";
    EXPECT_EQ(run.pieces.size(), 1u);
    before = run.done;
  }
  EXPECT_FALSE(pass.WaitsForKv());
  EXPECT_TRUE(pass.Run(nullptr, 1));
  EXPECT_THAT(run.pieces, ::testing::ElementsAre(4, 2));
}

}  // namespace
}  // namespace withy::engine
