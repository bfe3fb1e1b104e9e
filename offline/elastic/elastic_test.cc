// From importance to a file that the engine runs: unchanged function, nested levels, useful LoRA.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/model/testing.h"
#include "offline/elastic/baselines.h"
#include "offline/elastic/export.h"
#include "offline/elastic/importance.h"
#include "offline/elastic/network.h"
#include "offline/elastic/plan.h"
#include "offline/elastic/recovery.h"
#include "offline/elastic/reorder.h"
#include "offline/elastic/text/batches.h"
#include "offline/elastic/text/teacher.h"
#include "offline/elastic/work.h"
#include "offline/train/workers.h"

namespace withy::elastic {
namespace {

using engine::GgmlType;
using torch::Tensor;

constexpr int64_t kLength = 24;

// 8 query heads; levels cut KV heads if there are at least 4.
struct Kind {
  std::string architecture;
  int32_t kv_heads = 2;
};

class ElasticTest : public testing::TestWithParam<Kind> {
 protected:
  ElasticTest() {
    torch::manual_seed(11);
    shape_ = engine::TinyShape();
    shape_.architecture = GetParam().architecture;
    shape_.kv_heads = GetParam().kv_heads;
    path_ = engine::WriteTiny(folder_, shape_, GgmlType::kF32);
    file_ = std::make_unique<engine::GgufFile>(engine::GgufFile::Open(path_).value());
    network_ = std::make_unique<Network>(Network::FromGguf(*file_, torch::kCPU).value());
    for (int i = 0; i < 3; ++i) batches_.push_back(RandomBatch());
  }

  Batch RandomBatch(int64_t lines = 4) const {
    const Tensor tokens = torch::randint(shape_.vocab_size, {lines, kLength}, torch::kInt64);
    return {tokens, torch::roll(tokens, -1, 1).flatten(), torch::ones({lines * kLength})};
  }

  Tensor Tokens() const {
    const std::vector<int32_t> tokens = engine::SomeTokens(kLength, shape_.vocab_size);
    return torch::tensor(std::vector<int64_t>(tokens.begin(), tokens.end())).unsqueeze(0);
  }

  engine::LevelSpec Whole() const {
    return {
        .percent = 100,
        .layers = std::vector<engine::LayerExtent>(
            static_cast<size_t>(shape_.layers), {network_->shape().heads, network_->shape().d_ff})};
  }
  std::vector<UnitImportance> Units() const {
    return MeasureUnits(*network_, batches_, Whole(), {});
  }
  void ExpectSorted(const std::vector<UnitImportance>& units) const {
    const auto expect_descending = [](const Tensor& importance) {  // along the last dimension
      if (importance.size(-1) < 2) return;
      const Tensor step = importance.slice(-1, 1) - importance.slice(-1, 0, -1);
      EXPECT_LT(step.max().item<double>(), 1e-4 * importance.max().item<double>());
    };
    for (const UnitImportance& layer : units) {
      expect_descending(layer.neurons);
      expect_descending(network_->shape().cuts_kv_heads() ? layer.heads.sum(1) : layer.heads);
    }
  }

  // Logits [kLength, vocab] of LibTorch and of the engine.
  Tensor Ours(const View& view = {}) const {
    torch::NoGradGuard no_grad;
    return network_->Logits(network_->Hidden(Tokens(), view));
  }
  Tensor Engines(const std::string& path, int32_t level) const {
    const auto model = engine::OpenTiny(folder_, path);
    std::vector<engine::Row> rows =
        engine::PlainRows(engine::SomeTokens(kLength, shape_.vocab_size));
    for (engine::Row& row : rows) row.level = level;
    const std::vector<float> logits =
        engine::RunRows(*model, engine::ScratchKv(model->info(), 32), rows);
    return torch::tensor(logits).view({kLength, -1});
  }

  engine::TestFolder folder_;
  engine::SynthShape shape_;
  std::string path_;
  std::unique_ptr<engine::GgufFile> file_;
  std::unique_ptr<Network> network_;
  std::vector<Batch> batches_;
};

// Chooses a level by `loss_of` only.
LevelChoice ChooseLevel(const engine::ModelShape& shape, int32_t percent,
                        std::span<const int32_t> anchors, const engine::LevelSpec* above,
                        const engine::LevelSpec* least,
                        const std::function<double(const engine::LevelSpec&)>& loss_of) {
  std::vector<LevelChoice> tried = LevelCandidates(shape, percent, anchors, above, least);
  for (LevelChoice& choice : tried) choice.loss = loss_of(choice.spec);
  return BestChoice(tried);
}

double Cosine(const Tensor& a, const Tensor& b) {
  return (a * b).sum().item<double>() / (a.norm() * b.norm()).item<double>();
}

double MaxDifference(const Tensor& a, const Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST_P(ElasticTest, TheNetworkComputesWhatTheEngineComputes) {
  EXPECT_GT(Cosine(Ours(), Engines(path_, -1)), 0.9998);  // the engine's K and V have 8 bits
}

TEST_P(ElasticTest, ReorderingKeepsTheFunctionAndSortsTheUnits) {
  const Tensor before = Ours();
  Reorder(*network_, Units());
  EXPECT_LT(MaxDifference(before, Ours()), 1e-3 * before.abs().max().item<double>());
  ExpectSorted(Units());
}

TEST_P(ElasticTest, LearnsWhatTheWholeModelSays) {
  const auto teacher = Teacher::Open(path_, folder_ / "cache", 1);
  ASSERT_TRUE(teacher.ok()) << teacher.status();
  const BatchOptions options{.batch_tokens = 96, .window_tokens = 24, .seed = 3};
  const auto written = (*teacher)->Write(0, options);
  ASSERT_TRUE(written.ok()) << written.status();
  ASSERT_EQ(std::ssize(*written), (*teacher)->BatchesAtOnce(options));
  const auto again = (*teacher)->Write(1, options);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE((*again)[0].tokens.equal((*written)[1].tokens)) << "a batch depends on its number";
  Batch batch = written->front();
  EXPECT_FALSE(batch.tokens.equal((*written)[1].tokens));
  EXPECT_GT(batch.weight.sum().item<double>(), 4 * 10);
  // What was labelled while it was written is what reading it says.
  const Tensor logs = batch.taught_logs.clone();
  ASSERT_TRUE((*teacher)->Label(&batch).ok());
  EXPECT_LT(MaxDifference(logs.to(torch::kFloat32), batch.taught_logs.to(torch::kFloat32)), 0.02);
  // The file is quantised to 8 bits for neither, so the whole network agrees with its teacher.
  const double whole = Divergence(*network_, batch).item<double>();
  EXPECT_LT(std::abs(whole), 0.01);
  const engine::LevelSpec level = engine::PlanLevel(network_->shape(), 45, {}, 1.0, nullptr);
  const View cut{.extents = &level.layers};
  const double before = Divergence(*network_, batch, cut).item<double>();
  EXPECT_GT(before, 3 * std::abs(whole));
  RecoveryOptions recovery;
  recovery.steps = 40;
  const std::vector<Lora> lora = TrainLora(*network_, level, {batch}, recovery);
  const View recovered{.extents = &level.layers, .lora = &lora};
  EXPECT_LT(Divergence(*network_, batch, recovered).item<double>(), 0.7 * before);
}

// Reordering a level's units again changes neither its function nor the full model's.
TEST_P(ElasticTest, ReorderingALevelKeepsItsFunctionAndSortsItsUnits) {
  Reorder(*network_, Units());
  std::vector<ElasticLevel> levels;
  for (const int32_t percent : {45, 70}) {
    const engine::LevelSpec spec = engine::PlanLevel(network_->shape(), percent, {}, 1.0, nullptr);
    RecoveryOptions options;
    options.steps = 5;
    levels.push_back({spec, TrainLora(*network_, spec, batches_, options)});
  }
  const auto view = [&](size_t i) {
    return View{.extents = &levels[i].spec.layers, .lora = &levels[i].lora};
  };
  const std::vector<Tensor> before = {Ours(view(0)), Ours(view(1)), Ours()};
  const auto units = [&] {
    return MeasureUnits(*network_, batches_, levels[0].spec, levels[0].lora);
  };
  const Tensor weights = network_->layers()[0].down.clone();
  Reorder(*network_, units(), levels);
  EXPECT_GT(MaxDifference(weights, network_->layers()[0].down), 0) << "nothing has moved";
  const std::vector<Tensor> after = {Ours(view(0)), Ours(view(1)), Ours()};
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_LT(MaxDifference(before[i], after[i]), 1e-3 * before[i].abs().max().item<double>()) << i;
  }
  ExpectSorted(units());
}

// The loss is log(1 + 1 / odds).
TEST_P(ElasticTest, TheMarginIsTheLogOfTheRightTokensOdds) {
  Batch batch = batches_[0];
  batch.weight.zero_();
  batch.weight[7] = 1;
  const double margin = Margin(*network_, batch).item<double>();
  EXPECT_NEAR(Loss(*network_, batch).item<double>(), std::log1p(std::exp(-margin)), 1e-4);
}

TEST_P(ElasticTest, ImportanceIsWhatTheMarginHangsOnTokenByToken) {
  const engine::LevelSpec whole = Whole();
  const Batch line = RandomBatch(1);
  std::vector<Gates> gates;
  for (const engine::LayerExtent& extent : whole.layers) {
    gates.push_back({torch::ones({kLength, extent.heads}), torch::ones({kLength, extent.neurons})});
  }
  const View view{.extents = &whole.layers, .gates = &gates};
  // By finite differences per token: of a neuron, and of a head.
  const auto squared = [&](const Tensor& gate) {
    torch::NoGradGuard no_grad;
    double sum = 0;
    for (int64_t token = 0; token < gate.size(0); ++token) {
      gate[token] = 1.5;
      const double more = Margin(*network_, line, view).item<double>();
      gate[token] = 0.5;
      const double less = Margin(*network_, line, view).item<double>();
      gate[token] = 1;
      sum += (more - less) * (more - less);
    }
    return sum;
  };
  const UnitImportance units = MeasureUnits(*network_, {line}, whole, {})[1];
  const double neuron = squared(gates[1].neurons.select(1, 5));
  const double head = squared(gates[1].heads.select(1, 2));
  EXPECT_NEAR(units.neurons[5].item<double>(), neuron, 0.2 * neuron);
  EXPECT_NEAR(units.heads.flatten()[2].item<double>(), head, 0.2 * head);
}

TEST_P(ElasticTest, AUnitWithoutEffectIsWorthNothingAndGoesLast) {
  network_->layers()[1].down.select(1, 7).zero_();
  const int64_t unit =  // head 2, with the heads that share its KV head if those are cut
      network_->shape().cuts_kv_heads() ? network_->shape().query_heads_per_group() : 1;
  network_->layers()[1].o.narrow(1, 2 * shape_.head_dim, unit * shape_.head_dim).zero_();
  for (const std::vector<UnitImportance>& units :
       {Units(), MeasureGradients(*network_, batches_)}) {
    EXPECT_EQ(units[1].neurons[7].item<float>(), 0.0f);
    EXPECT_EQ(units[1].heads.flatten()[2].item<float>(), 0.0f);
    EXPECT_GT(units[0].neurons[7].item<float>(), 0.0f);
    EXPECT_GT(units[0].heads.flatten()[2].item<float>(), 0.0f);
  }
  Reorder(*network_, Units());
  EXPECT_EQ(network_->layers()[1].down.select(1, shape_.d_ff - 1).abs().sum().item<float>(), 0.0f);
}

TEST_P(ElasticTest, AnchorsAreTheLayersWhoseLossCostsMost) {
  const std::vector<double> importance = MeasureLayers(*network_, batches_);
  ASSERT_EQ(importance.size(), 3u);
  const std::vector<int32_t> order = AnchorOrder(importance);
  for (size_t i = 1; i < order.size(); ++i) {
    EXPECT_GE(importance[static_cast<size_t>(order[i - 1])],
              importance[static_cast<size_t>(order[i])]);
  }
  EXPECT_EQ(AnchorOrder({0.1, 0.5, 0.3}), (std::vector<int32_t>{1, 2, 0}));
}

TEST_P(ElasticTest, TheEngineRunsTheExportedLevelsAsTheNetworkDoes) {
  const Tensor whole = Ours();
  Reorder(*network_, Units());
  const std::vector<int32_t> anchors = AnchorOrder(MeasureLayers(*network_, batches_));
  std::vector<ElasticLevel> levels;
  std::vector<LevelChoice> choices;
  for (const int32_t percent : {70, 45, 10}) {  // 10: attention and MLPs are dropped
    choices.push_back(ChooseLevel(network_->shape(), percent, anchors,
                                  choices.empty() ? nullptr : &choices.back().spec, nullptr,
                                  [&](const engine::LevelSpec& spec) {
                                    return MeanLoss(*network_, batches_, {.extents = &spec.layers});
                                  }));
  }
  for (size_t i = 0; i < choices[0].spec.layers.size(); ++i) {
    for (const size_t low : {1, 2}) {
      EXPECT_LE(choices[low].spec.layers[i].heads, choices[low - 1].spec.layers[i].heads);
      EXPECT_LE(choices[low].spec.layers[i].neurons, choices[low - 1].spec.layers[i].neurons);
    }
  }
  for (const LevelChoice& choice : {choices[2], choices[1], choices[0]}) {
    RecoveryOptions options;
    options.steps = 30;
    options.rate = 1e-2;
    levels.push_back({choice.spec, TrainLora(*network_, choice.spec, batches_, options)});
    const View recovered{.extents = &levels.back().spec.layers, .lora = &levels.back().lora};
    EXPECT_LT(MeanLoss(*network_, batches_, recovered), choice.loss) << choice.spec.percent;
  }
  const std::string path = folder_ / "elastic.gguf";
  Findings findings;
  findings.anchors = anchors;
  findings.losses = {4.0, 3.0, 2.0};
  ASSERT_EQ(ExportElastic(*file_, *network_, levels, 8, findings, GgmlType::kF32, path + ".overlay",
                          path),
            absl::OkStatus());
  EXPECT_GT(Cosine(Engines(path, -1), whole), 0.9998);
  for (size_t i = 0; i < levels.size(); ++i) {
    const View view{.extents = &levels[i].spec.layers, .lora = &levels[i].lora};
    EXPECT_GT(Cosine(Engines(path, static_cast<int32_t>(i)), Ours(view)), 0.9995) << i;
  }
}

TEST_P(ElasticTest, TheFileSaysWhatItsLevelsWereChosenBy) {
  const std::vector<UnitImportance> units = Units();
  Reorder(*network_, units);
  Findings findings;
  findings.layers = {0.1, 0.05, 0.4};
  findings.units = units;
  const std::string path = folder_ / "findings.gguf";
  const std::vector<ElasticLevel> levels = {
      {engine::PlanLevel(network_->shape(), 60, {}, 1.0, nullptr), {}}};
  ASSERT_EQ(ExportElastic(*file_, *network_, levels, 0, findings, GgmlType::kF32, path + ".overlay",
                          path),
            absl::OkStatus());
  const auto file = engine::GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->GetFloatArray("withy.importance.layers").value(),
            (std::vector<float>{0.1f, 0.05f, 0.4f}));
  const std::vector<float> neurons = file->GetFloatArray("withy.importance.neurons").value();
  ASSERT_EQ(neurons.size(), static_cast<size_t>(3 * shape_.d_ff));
  for (int layer = 0; layer < 3; ++layer) {
    const auto first = neurons.begin() + int64_t{layer} * shape_.d_ff;
    EXPECT_TRUE(std::is_sorted(first, first + shape_.d_ff, std::greater<>()));
    EXPECT_EQ(*first, units[static_cast<size_t>(layer)].neurons.max().item<float>());
  }
  EXPECT_FALSE(file->Has("withy.level.loss"));
}

// Chooses the split with the least loss among those that fit into the level above.
TEST(ChooseLevelTest, TakesTheSplitThatLosesLeast) {
  engine::ModelShape shape;
  shape.layers = 4;
  shape.heads = 16;
  shape.kv_heads = 2;
  shape.head_dim = 64;
  shape.d_ff = 1024;
  const auto choose = [&](double sign, const engine::LevelSpec* above) {
    return ChooseLevel(shape, 50, {}, above, nullptr,
                       [&](const engine::LevelSpec& spec) { return sign * spec.layers[0].heads; });
  };
  const LevelChoice many = choose(-1, nullptr);
  const LevelChoice few = choose(1, nullptr);
  EXPECT_GT(many.spec.layers[0].heads, few.spec.layers[0].heads);
  EXPECT_LT(many.spec.layers[0].neurons, few.spec.layers[0].neurons);
  EXPECT_EQ(many.loss, -many.spec.layers[0].heads);
  EXPECT_LE(choose(-1, &few.spec).spec.layers[0].heads, few.spec.layers[0].heads);
}

TEST(ChooseLevelTest, TakesMeasuredCutsThatLoseLess) {
  engine::ModelShape shape;
  shape.layers = 2;
  shape.heads = 8;
  shape.kv_heads = 2;
  shape.head_dim = 64;
  shape.d_ff = 512;
  const engine::LevelSpec least{.percent = 50, .layers = {{8, 512}, {0, 0}}};
  const auto choose = [&](double loss_of_least) {
    return ChooseLevel(shape, 50, {}, nullptr, &least, [&](const engine::LevelSpec& spec) {
      return spec.layers == least.layers ? loss_of_least : 1.0;
    });
  };
  EXPECT_EQ(choose(0.5).spec.layers, least.layers);
  EXPECT_EQ(choose(0.5).head_share, 0);
  EXPECT_NE(choose(2).spec.layers, least.layers);
}

// Whatever a baseline drops contributes zero, and the rest is unchanged.
TEST_P(ElasticTest, BaselinesLeaveOutAsMuchAsAsked) {
  const std::vector<Layer> whole = network_->layers();
  const auto off = [&](const Tensor& weight) { return weight.abs().sum().item<float>() == 0.0f; };
  DropLayers(*network_, std::vector<int32_t>{1, 2, 0}, KeptLayers(3, 60));
  EXPECT_TRUE(off(network_->layers()[0].o) && off(network_->layers()[0].down));
  EXPECT_EQ(MaxDifference(network_->layers()[2].o, whole[2].o), 0.0);

  network_->layers() = whole;
  EXPECT_TRUE(DropAttention(*network_, std::vector<int32_t>{1, 2, 0}, 95));
  EXPECT_TRUE(off(network_->layers()[0].o));
  EXPECT_FALSE(off(network_->layers()[0].down) || off(network_->layers()[1].o));
  network_->layers() = whole;
  EXPECT_FALSE(DropAttention(*network_, std::vector<int32_t>{1, 2, 0}, 5));

  network_->layers() = whole;
  MergeLayers(*network_, 1, batches_);  // one run of three: first + (second - first) + …
  EXPECT_TRUE(off(network_->layers()[1].o) && off(network_->layers()[2].down));
  const bool in_one = MaxDifference(network_->layers()[0].gate,
                                    whole[1].gate + whole[2].gate - whole[0].gate) < 1e-5;
  const bool in_two = MaxDifference(network_->layers()[0].gate, whole[2].gate) < 1e-5;
  EXPECT_TRUE(in_one || in_two);
}

TEST_P(ElasticTest, LevelsRecoverSideBySideAsTheyDoAlone) {
  RecoveryOptions options;
  options.steps = 3;
  const engine::LevelSpec level{.percent = 45,
                                .layers = std::vector<engine::LayerExtent>(3, {4, 256})};
  std::array<std::vector<Lora>, 3> lora;
  train::Workers(3).Run(3, [&](int64_t i) {
    lora[static_cast<size_t>(i)] = TrainLora(*network_, level, batches_, options);
  });
  const std::vector<Lora> alone = TrainLora(*network_, level, batches_, options);
  for (const std::vector<Lora>& other : lora) {
    EXPECT_GT(other[1].down.b.abs().sum().item<float>(), 0.0f);
    EXPECT_LT(MaxDifference(other[1].down.a, alone[1].down.a), 1e-6);
    EXPECT_LT(MaxDifference(other[2].q.b, alone[2].q.b), 1e-6);
  }
}

// Threads process a batch in pieces whose weights are their counted positions.
TEST_P(ElasticTest, ABatchInPiecesIsTheBatch) {
  Batch batch = RandomBatch(1200 / kLength);
  batch.weight.narrow(0, 0, 500).zero_();
  const engine::LevelSpec level{.percent = 45,
                                .layers = std::vector<engine::LayerExtent>(3, {4, 256})};
  RecoveryOptions options;
  options.steps = 3;
  double first_loss = 0;
  const auto train = [&](int threads) {
    return TrainLora(*network_, level, {batch}, options, train::Workers(threads), nullptr,
                     [&](int64_t step, double loss) {
                       if (step == 1) first_loss = loss;
                     });
  };
  const std::vector<Lora> one = train(1);
  EXPECT_NEAR(first_loss, MeanLoss(*network_, {batch}, {.extents = &level.layers}), 1e-4);
  const std::vector<Lora> three = train(3);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_GT(one[i].down.b.abs().sum().item<float>(), 0.0f);
    EXPECT_EQ(MaxDifference(one[i].down.a, three[i].down.a), 0);
    EXPECT_EQ(MaxDifference(one[i].q.b, three[i].q.b), 0);
  }
  // Other pieces, the same sum.
  const int64_t lines = batch.tokens.size(0);
  batch = {batch.tokens.flip(0), batch.next.view({lines, -1}).flip(0).flatten(),
           batch.weight.view({lines, -1}).flip(0).flatten()};
  const std::vector<Lora> turned = train(2);
  for (size_t i = 0; i < one.size(); ++i)
    EXPECT_LT(MaxDifference(one[i].down.b, turned[i].down.b), 1e-3);
}

// Ensures that recoveries of a level use different text.
TEST_P(ElasticTest, RecoveryBeginsWithTheBatchItIsTold) {
  const engine::LevelSpec level{.percent = 45,
                                .layers = std::vector<engine::LayerExtent>(3, {4, 256})};
  const std::vector<Batch> batches = {RandomBatch(2), RandomBatch(2)};
  RecoveryOptions options;
  options.steps = 3;
  const std::vector<Lora> first = TrainLora(*network_, level, batches, options);
  options.first_batch = 1;
  const std::vector<Lora> second = TrainLora(*network_, level, batches, options);
  const std::vector<Lora> turned =
      TrainLora(*network_, level, {batches[1], batches[0]}, {.steps = 3});
  EXPECT_EQ(MaxDifference(second[1].down.b, turned[1].down.b), 0);
  EXPECT_GT(MaxDifference(second[1].down.b, first[1].down.b), 0);
}

TEST_P(ElasticTest, ALevelBeginsWithWhatTheOneAboveHasLearnt) {
  const engine::ModelShape& s = network_->shape();
  const engine::LayerExtent full{s.heads, s.d_ff};
  RecoveryOptions options;
  options.steps = 2;
  const engine::LevelSpec high{.percent = 60, .layers = {{s.heads, 256}, {s.heads, 256}, full}};
  const std::vector<Lora> above = TrainLora(*network_, high, batches_, options);
  options.steps = 0;
  const int32_t fewer = s.heads / 2;
  const engine::LevelSpec low{.percent = 30, .layers = {{fewer, 64}, {0, 256}, {fewer, 64}}};
  const std::vector<Lora> begun =
      TrainLora(*network_, low, batches_, options, train::Workers(1), &above);
  EXPECT_GT(above[0].q.b.abs().sum().item<float>(), 0.0f);
  EXPECT_EQ(MaxDifference(begun[0].q.b, HeadPrefix(above[0].q.b, 0, s, fewer)), 0);
  EXPECT_EQ(MaxDifference(begun[0].o.a, HeadPrefix(above[0].o.a, 1, s, fewer)), 0);
  EXPECT_EQ(MaxDifference(begun[0].o.b, above[0].o.b), 0);
  EXPECT_EQ(MaxDifference(begun[0].gate.b, above[0].gate.b.narrow(0, 0, 64)), 0);
  EXPECT_EQ(MaxDifference(begun[0].down.a, above[0].down.a.narrow(1, 0, 64)), 0);
  EXPECT_FALSE(begun[1].q.a.defined());
  EXPECT_EQ(MaxDifference(begun[1].down.b, above[1].down.b), 0);
  EXPECT_EQ(begun[2].down.b.abs().sum().item<float>(), 0.0f) << "the one above is whole there";
  EXPECT_GT(begun[2].down.a.abs().sum().item<float>(), 0.0f);
}

// In the tiny vocabulary tokens are nearly bytes.
absl::StatusOr<std::vector<Batch>> BatchesOf(const engine::GgufFile& file, const std::string& path,
                                             size_t bytes, const BatchOptions& options) {
  std::ofstream(path) << std::string(bytes, 'x');
  return TextBatches(file, path, options);
}

TEST_P(ElasticTest, AShortTextGivesAsManyWholeBatchesAsItHolds) {
  BatchOptions options{.batch_tokens = 64, .window_tokens = 32, .count = 1000};
  const std::string path = folder_ / "text.txt";
  const auto batches = BatchesOf(*file_, path, 2000, options);
  ASSERT_TRUE(batches.ok()) << batches.status();
  EXPECT_GT(batches->size(), 1u);
  EXPECT_LT(batches->size(), 1000u);
  for (const Batch& batch : *batches)
    EXPECT_EQ(batch.tokens.sizes(), (std::vector<int64_t>{2, 32}));
  options.count = 1;
  EXPECT_EQ(TextBatches(*file_, path, options)->size(), 1u);
  const absl::Status status = BatchesOf(*file_, path, 5, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("one batch of 64 needs 64"), std::string::npos) << status;
}

TEST_P(ElasticTest, NoWindowOfATextIsLongerThanTheModelsContext) {
  const auto batches = BatchesOf(*file_, folder_ / "text.txt", 40000,
                                 {.batch_tokens = 4096, .window_tokens = 2048, .count = 1});
  ASSERT_TRUE(batches.ok()) << batches.status();
  EXPECT_EQ((*batches)[0].tokens.size(1), network_->shape().context_length);
  EXPECT_GT(MeanLoss(*network_, *batches), 0);
}

// Holds for any number of workers and any place where an earlier run stopped.
TEST_P(ElasticTest, UnitsAreJudgedSideBySideToTheSameBits) {
  Batch batch = RandomBatch(1200 / kLength);  // pieces of 504 tokens
  batch.weight.narrow(0, 0, 500).zero_();
  const std::vector<Batch> batches = {batches_[0], batch, batches_[1], batches_[2]};
  const std::vector<UnitImportance> one =
      *MeasureUnits(*network_, batches, Whole(), {}, train::Workers(1), 0, {});
  const std::vector<UnitImportance> three =
      *MeasureUnits(*network_, batches, Whole(), {}, train::Workers(3), 0, {});
  const auto work = RunDirectory::Open(folder_ / "work", {{"run", "1"}}, 0);
  ASSERT_TRUE(work.ok()) << work.status();
  const StageState stage_state(work->get(), "units-100");
  const std::vector<Batch> first(batches.begin(), batches.begin() + 2);
  ASSERT_TRUE(
      MeasureUnits(*network_, first, Whole(), {}, train::Workers(1), 0, {stage_state}).ok());
  double found = 0;
  const Checkpointer checkpointer{stage_state, [&](double cost) { found = cost; }, nullptr};
  const std::vector<UnitImportance> resumed =
      *MeasureUnits(*network_, batches, Whole(), {}, train::Workers(2), 10, checkpointer);
  EXPECT_EQ(found, 20) << "two batches of 10 seconds each";
  for (size_t i = 0; i < one.size(); ++i) {
    for (const std::vector<UnitImportance>& other : {three, resumed}) {
      EXPECT_TRUE(one[i].heads.equal(other[i].heads)) << i;
      EXPECT_TRUE(one[i].neurons.equal(other[i].neurons)) << i;
    }
  }
}

TEST_P(ElasticTest, TrainingGoesOnToTheSameBits) {
  const engine::LevelSpec level{.percent = 45, .layers = {{4, 256}, {0, 256}, {4, 0}}};
  const RecoveryOptions options{.steps = 7};
  const std::vector<Lora> whole = TrainLora(*network_, level, batches_, options);
  LoraTraining first(*network_, level, batches_, options, nullptr);
  while (first.step() < 3) first.Step(train::Workers(1));
  const std::vector<Tensor> state = first.State();
  first.Step(train::Workers(1));  // later steps are lost
  LoraTraining second(*network_, level, batches_, options, nullptr);
  EXPECT_FALSE(second.Restore(std::span(state).subspan(1))) << "another training's";
  ASSERT_TRUE(second.Restore(state));
  EXPECT_EQ(second.step(), 3);
  while (!second.done()) second.Step(train::Workers(2));
  std::vector<Lora> resumed = second.Take();
  for (size_t i = 0; i < whole.size(); ++i) {
    Lora expected = whole[i];
    const std::vector<Tensor*> wanted = Tensors(expected);
    const std::vector<Tensor*> got = Tensors(resumed[i]);
    ASSERT_EQ(wanted.size(), got.size());
    for (size_t t = 0; t < wanted.size(); ++t) EXPECT_TRUE(wanted[t]->equal(*got[t])) << i;
  }
}

// An interrupted run's saved work is reused, and no other run's.
TEST_P(ElasticTest, WorkIsKeptForTheSameRunOnly) {
  const std::string directory = folder_ / "work";
  const RunInputs run = {{"--model", "abc"}, {"--recovery_steps", "400"}, {"--rank", "8"}};
  const std::vector<UnitImportance> units = Units();
  const engine::LevelSpec level{.percent = 45,
                                .layers = std::vector<engine::LayerExtent>(3, {4, 256})};
  RecoveryOptions options;
  options.steps = 2;
  const std::vector<Lora> lora = TrainLora(*network_, level, batches_, options);
  {
    EXPECT_EQ(*RunDirectory::Peek(directory, run), nullptr);
    const auto work = RunDirectory::Open(directory, run);
    ASSERT_TRUE(work.ok()) << work.status();
    std::vector<UnitImportance> none;
    EXPECT_FALSE((*work)->LoadUnits(*network_, Whole(), &none));
    ASSERT_TRUE((*work)->SaveUnits(Whole(), units).ok());
    ASSERT_TRUE((*work)->SaveLayers(2.5, {1, 2, 3}).ok());
    ASSERT_TRUE((*work)->SaveLora(level, lora).ok());
    ASSERT_TRUE((*work)->SaveLosses(45, 3.5, 3.25).ok());
    LevelChoice choice;
    EXPECT_FALSE((*work)->LoadChoice(*network_, 45, &choice));
    ASSERT_TRUE((*work)->SaveChoice({level, 1.4, 0.5}).ok());
    const absl::Status taken = RunDirectory::Open(directory, run).status();
    EXPECT_NE(taken.message().find("another withy-elasticize"), std::string::npos) << taken;
  }
  const auto work = RunDirectory::Open(directory, run);
  ASSERT_TRUE(work.ok()) << work.status();
  std::vector<UnitImportance> found;
  ASSERT_TRUE((*work)->LoadUnits(*network_, Whole(), &found));
  EXPECT_EQ(MaxDifference(found[2].neurons, units[2].neurons), 0.0);
  EXPECT_FALSE((*work)->LoadUnits(*network_, level, &found)) << "a level's own are not there";
  double whole_loss = 0;
  std::vector<double> layers;
  ASSERT_TRUE((*work)->LoadLayers(network_->shape().layers, &whole_loss, &layers));
  EXPECT_EQ(whole_loss, 2.5);
  EXPECT_EQ(layers, (std::vector<double>{1, 2, 3}));
  LevelChoice choice;
  ASSERT_TRUE((*work)->LoadChoice(*network_, 45, &choice));
  EXPECT_EQ(choice.spec.layers, level.layers);
  EXPECT_EQ(choice.head_share, 1.4);
  EXPECT_EQ(choice.loss, 0.5);
  std::vector<Lora> found_lora;
  ASSERT_TRUE((*work)->LoadLora(*network_, level, 8, &found_lora));
  EXPECT_EQ(MaxDifference(found_lora[1].down.a, lora[1].down.a), 0.0);
  EXPECT_FALSE((*work)->LoadLora(*network_, level, 4, &found_lora)) << "another rank";
  double cut = 0;
  double recovered = 0;
  ASSERT_TRUE((*work)->LoadLosses(45, &cut, &recovered));
  EXPECT_EQ(recovered, 3.25);
  std::ofstream(directory + "/layers.pt") << "damaged";
  EXPECT_FALSE((*work)->LoadLayers(network_->shape().layers, &whole_loss, &layers));
  RunInputs other = run;
  other[1].second = "50";
  const absl::Status refused = RunDirectory::Peek(directory, other).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("--recovery_steps is 50, there 400."), std::string::npos)
      << refused;
  EXPECT_EQ(refused.message().find("--rank"), std::string::npos) << refused;
}

TEST_P(ElasticTest, StateIsSavedWhenItIsTime) {
  FakeClock clock;
  const auto work = RunDirectory::Open(folder_ / "work", {{"run", "1"}}, 60, clock);
  ASSERT_TRUE(work.ok()) << work.status();
  StageState stage_state(work->get(), "units-100");
  const auto saved = [&] { return stage_state.Load().has_value(); };
  const auto state = [] { return std::vector<Tensor>{torch::ones({2})}; };
  clock.Advance(59 * kNanosPerSecond);
  ASSERT_TRUE(stage_state.SaveIfDue(state).ok());
  EXPECT_FALSE(saved());
  clock.Advance(kNanosPerSecond);
  ASSERT_TRUE(stage_state.SaveIfDue(state).ok());
  EXPECT_TRUE(saved());
  stage_state.Remove();
  ASSERT_TRUE(stage_state.SaveIfDue(state).ok());
  EXPECT_FALSE(saved()) << "not again before its time";
}

INSTANTIATE_TEST_SUITE_P(Kinds, ElasticTest,
                         testing::Values(Kind{"llama"}, Kind{"qwen2"}, Kind{"qwen3"},
                                         Kind{"qwen2", 8}, Kind{"qwen3", 4}),
                         [](const auto& test) {
                           return test.param.architecture + "With" +
                                  std::to_string(test.param.kv_heads) + "KvHeads";
                         });

}  // namespace
}  // namespace withy::elastic
