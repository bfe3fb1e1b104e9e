#include "offline/train/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/gguf/quants.h"
#include "engine/gguf/reader.h"
#include "offline/train/copying.h"
#include "offline/train/drills.h"
#include "offline/train/evaluate.h"
#include "offline/train/export.h"
#include "offline/train/ops.h"
#include "offline/vocab/vocabulary.h"

namespace withy::train {
namespace {

using torch::Tensor;

const vocab::BpeVocabulary& Vocabulary() {
  static const vocab::BpeVocabulary* vocabulary = new vocab::BpeVocabulary(LearnPocketVocabulary());
  return *vocabulary;
}

const ChatEncoder& Encoder() {
  static const ChatEncoder* encoder = new ChatEncoder(
      MakePocketEncoder(Vocabulary(), testing::TempDir() + "/trainer_test").value());
  return *encoder;
}

Model TinyModel() {
  const Shape shape{.vocab_size = Vocabulary().size(),
                    .d_model = 64,
                    .layers = 2,
                    .heads = 2,
                    .kv_heads = 1,
                    .head_dim = 32,
                    .ffn = 96};
  return Model(shape, 1, torch::kCPU);
}

TrainOptions TinyRun(const std::string& name, int64_t steps) {
  TrainOptions options;
  options.directory = testing::TempDir() + "/trainer_test_" + name;
  options.steps = steps;
  options.warmup_steps = 2;
  options.batches_a_step = 2;
  options.checkpoint_steps = 3;
  options.validate_records = 0;
  options.batches = {.spec = corpus::TrainSpec(), .tokens = 256, .max_sample_tokens = 256};
  return options;
}

std::string FreshDirectory(const TrainOptions& options) {
  std::filesystem::remove_all(options.directory);
  return options.directory;
}

double MaxDifference(const Tensor& a, const Tensor& b) {
  return (a - b).abs().max().item<double>();
}

// Compares the gradient of sum(f(x) * r) by LibTorch's own operations (in double, which is not
// fused) with that of the fused ones.
template <typename F>
void ExpectSameGradient(const Tensor& x, F f) {
  const Tensor fused = x.clone().set_requires_grad(true);
  const Tensor plain = x.to(torch::kFloat64).set_requires_grad(true);
  const Tensor fused_out = f(fused);
  const Tensor plain_out = f(plain);
  EXPECT_LT(MaxDifference(fused_out, plain_out), 1e-5);
  const Tensor r = torch::randn_like(fused_out);
  (fused_out * r).sum().backward();
  (plain_out * r).sum().backward();
  EXPECT_LT(MaxDifference(fused.grad(), plain.grad()), 1e-5);
}

TEST(Ops, FusedOperationsHaveTheRightValuesAndGradients) {
  torch::manual_seed(3);
  const Tensor weight = torch::rand({24}) + 0.5;
  ExpectSameGradient(torch::randn({70, 24}),
                     [&](const Tensor& x) { return RmsNorm(x, weight.to(x.scalar_type()), 1e-5); });
  ExpectSameGradient(torch::randn({70, 24}), [](const Tensor& x) { return SwiGlu(x); });
  const Tensor angle = torch::rand({9, 4}) * 6;
  ExpectSameGradient(torch::randn({2, 9, 3, 8}), [&](const Tensor& x) {
    return Rope(x, angle.cos().to(x.scalar_type()), angle.sin().to(x.scalar_type()));
  });
}

// Whole blocks of rows, a partial one, and less than a tile; as views of a common tensor.
TEST(Ops, AttentionHasTheRightValuesAndGradients) {
  torch::manual_seed(5);
  for (const int64_t length : {1, 7, 64, 65, 150}) {
    for (const auto& [heads, kv_heads] : {std::pair{4, 1}, std::pair{6, 3}, std::pair{2, 2}}) {
      for (const int64_t head_dim : {32, 64, 24}) {
        SCOPED_TRACE(testing::Message() << length << " " << heads << " " << head_dim);
        ExpectSameGradient(torch::randn({2, length, heads + 2 * kv_heads, head_dim}),
                           [&, q_heads = heads, kv = kv_heads](const Tensor& x) {
                             const auto parts = x.split_with_sizes({q_heads, kv, kv}, 2);
                             return CausalAttention(parts[0], parts[1], parts[2]);
                           });
      }
    }
  }
}

TEST(Ops, NormWeightGetsItsGradient) {
  torch::manual_seed(4);
  const Tensor x = torch::randn({130, 8});
  const Tensor weight = torch::ones({8}).set_requires_grad(true);
  RmsNorm(x, weight, 1e-5).sum().backward();
  const Tensor expected = (x * torch::rsqrt(x.square().mean(-1, true) + 1e-5)).sum(0);
  EXPECT_LT(MaxDifference(weight.grad(), expected), 1e-4);
}

// Share of an echo's tokens that the model predicts correctly.
double CopiedShare(const Model& model) {
  torch::NoGradGuard no_grad;
  corpus::Rng rng(2);
  const Sample sample = EchoSample(rng, static_cast<int32_t>(model.shape().vocab_size), 40);
  const Tensor said = model.Logits(model.Hidden(PadTokens({sample}, torch::kCPU))).argmax(-1);
  int64_t right = 0;
  int64_t all = 0;
  for (size_t i = 1; i < sample.tokens.size(); ++i) {
    if (!sample.answer[i]) continue;
    ++all;
    right += said[static_cast<int64_t>(i) - 1].item<int64_t>() == sample.tokens[i] ? 1 : 0;
  }
  return static_cast<double>(right) / static_cast<double>(all);
}

TEST(Copying, BothShapesCopyBeforeTheyAreTrained) {
  for (const Shape& shape : {TargetShape(Vocabulary().size()), DraftShape(Vocabulary().size())}) {
    Model model(shape, 1, torch::kCPU);
    EXPECT_LT(CopiedShare(model), 0.1);
    StartWithCopying(model, 1);
    EXPECT_GT(CopiedShare(model), 0.8);
  }
}

TEST(Model, ATokenSeesOnlyWhatStandsBeforeIt) {
  torch::NoGradGuard no_grad;
  const Model model = TinyModel();
  Tensor tokens = torch::arange(10, torch::kInt64).unsqueeze(0) + 300;
  const Tensor before = model.Hidden(tokens);
  tokens[0][7] = 5;
  const Tensor after = model.Hidden(tokens);
  EXPECT_EQ(MaxDifference(before.narrow(0, 0, 7), after.narrow(0, 0, 7)), 0.0);
  EXPECT_GT(MaxDifference(before.narrow(0, 7, 1), after.narrow(0, 7, 1)), 1e-3);
}

TEST(Optimizer, OrthogonalizeMakesSingularValuesAlike) {
  torch::manual_seed(5);
  for (const auto& [rows, cols] : {std::pair{24, 48}, std::pair{48, 24}}) {
    const Tensor values = std::get<1>(torch::svd(Orthogonalize(torch::randn({rows, cols}))));
    EXPECT_GT(values.min().item<double>(), 0.4);
    EXPECT_LT(values.max().item<double>(), 1.4);
  }
}

TEST(Schedule, WarmsUpStaysAndFalls) {
  TrainOptions options;
  options.steps = 100;
  options.warmup_steps = 10;
  options.decay_share = 0.5;
  EXPECT_DOUBLE_EQ(Schedule(options, 4), 0.5);
  EXPECT_DOUBLE_EQ(Schedule(options, 30), 1.0);
  EXPECT_DOUBLE_EQ(Schedule(options, 75), 0.5);
  EXPECT_LT(Schedule(options, 99), 0.05);
}

double LossOf(const Model& model) {
  torch::NoGradGuard no_grad;
  BatchStream stream(TinyRun("loss", 1).batches, Encoder());
  const std::vector<Sample> samples = stream.Next();
  const Tensor tokens = PadTokens(samples, torch::kCPU);
  const Tensor logits =
      model.Logits(model.Hidden(tokens)).view({tokens.size(0), tokens.size(1), -1});
  const Tensor picked = torch::log_softmax(logits.narrow(1, 0, tokens.size(1) - 1), -1)
                            .gather(2, tokens.narrow(1, 1, tokens.size(1) - 1).unsqueeze(-1));
  return -picked.mean().item<double>();
}

TEST(Train, TheLossFalls) {
  const TrainOptions options = TinyRun("falls", 24);
  FreshDirectory(options);
  Model model = TinyModel();
  const double before = LossOf(model);
  ASSERT_TRUE(Train(options, model, Encoder()).ok());
  EXPECT_LT(LossOf(model), before - 1.0);
}

TEST(Train, AResumedRunEndsWithTheSameWeights) {
  TrainOptions whole = TinyRun("whole", 8);
  FreshDirectory(whole);
  whole.threads = 2;
  Model uninterrupted = TinyModel();
  ASSERT_TRUE(Train(whole, uninterrupted, Encoder()).ok());

  // Stopped during a run with the full schedule, then continued as in another process.
  TrainOptions cut = TinyRun("cut", 8);
  FreshDirectory(cut);
  cut.threads = 1;
  cut.stop_after = 4;
  Model first_half = TinyModel();
  ASSERT_TRUE(Train(cut, first_half, Encoder()).ok());
  cut.stop_after = 0;
  Model second_half = TinyModel();
  ASSERT_TRUE(Train(cut, second_half, Encoder()).ok());
  for (size_t i = 0; i < uninterrupted.parameters().size(); ++i) {
    EXPECT_TRUE(
        torch::equal(uninterrupted.parameters()[i].value, second_half.parameters()[i].value))
        << uninterrupted.parameters()[i].name;
  }
}

TEST(Checkpoint, OfAnotherShapeIsRefusedByName) {
  const TrainOptions options = TinyRun("shape", 3);
  FreshDirectory(options);
  Model model = TinyModel();
  ASSERT_TRUE(Train(options, model, Encoder()).ok());
  Shape wider = model.shape();
  wider.ffn *= 2;
  Model other(wider, 1, torch::kCPU);
  const std::string path = options.directory + "/checkpoint.pt";
  const absl::Status status = LoadCheckpoint(path, other, nullptr, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("ffn_gate"), absl::string_view::npos) << status;
}

TEST(Checkpoint, DamagedOrMissingIsAnError) {
  const std::string path = testing::TempDir() + "/trainer_test_damaged.pt";
  std::ofstream(path) << "not a checkpoint";
  Model model = TinyModel();
  EXPECT_EQ(LoadCheckpoint(path, model, nullptr, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LoadCheckpoint(path + ".none", model, nullptr, nullptr).code(),
            absl::StatusCode::kNotFound);
}

TEST(Export, F32HoldsTheWeightsAndQ8IsNear) {
  const Model model = TinyModel();
  const Tensor gate = model.parameters()[7].value.detach();
  const std::string path = testing::TempDir() + "/trainer_test_export.gguf";
  for (const auto& [type, tolerance] :
       {std::pair{engine::GgmlType::kF32, 0.0}, std::pair{engine::GgmlType::kQ8_0, 0.005}}) {
    ASSERT_TRUE(ExportGguf(model, Vocabulary(), "test", type, path).ok());
    const auto file = engine::GgufFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->GetString("general.architecture").value(), "llama");
    EXPECT_EQ(file->GetUint("llama.attention.head_count_kv").value(), 1u);
    const auto info = file->GetTensor("blk.0.ffn_gate.weight");
    ASSERT_TRUE(info.ok());
    EXPECT_EQ((*info)->dims, (std::vector<int64_t>{64, 96}));
    Tensor stored = torch::empty({96, 64});
    ASSERT_TRUE(
        engine::Dequantize(type, file->Data(**info), {stored.data_ptr<float>(), 96 * 64}).ok());
    EXPECT_LE(MaxDifference(stored, gate), tolerance);
    EXPECT_TRUE(engine::MakeTokenizer(*file).ok());
  }
}

}  // namespace
}  // namespace withy::train
