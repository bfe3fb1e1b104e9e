// Draft heads against a reference (tests/golden/make_head_goldens.py), alone and behind a target's
// own passes; what is wrong with files; borrowed and streamed weights.
#include "engine/head/draft_head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/head/testing.h"
#include "engine/model/scratch_kv.h"
#include "engine/model/testing.h"
#include "engine/sampling/likeness.h"
#include "tests/golden/testing.h"

namespace withy::engine {
namespace {

using testing::HasSubstr;

constexpr char kData[] = "tests/golden/data/";
constexpr float kForbidden = -std::numeric_limits<float>::infinity();

std::vector<int32_t> Ints(const GgufFile& file, const std::string& tensor) {
  const TensorInfo* info = file.FindTensor(tensor);
  EXPECT_NE(info, nullptr) << tensor;
  std::vector<int32_t> values(static_cast<size_t>(info->elements()));
  std::memcpy(values.data(), file.Data(*info).data(), values.size() * sizeof(int32_t));
  return values;
}

ModelOptions OnCpu() {
  ModelOptions options;
  options.device = "cpu";
  return options;
}

// Tokens at positions [first, first + tokens.size()), which want logits.
std::vector<Row> HeadRows(std::span<const int32_t> tokens, int32_t first) {
  return PlainRows(tokens, first);
}

// Runs rows of one context; logits [rows that want them, vocab].
std::vector<float> HeadLogits(DraftHead& head, ScratchKv& kv, HeadStates& states,
                              std::span<const Row> rows) {
  size_t wanted = 0;
  for (const Row& row : rows) wanted += row.want_logits ? 1 : 0;
  std::vector<float> logits(wanted * static_cast<size_t>(head.info().vocab_size));
  ContextView view = kv.View();
  view.head = &states;
  const auto pass = head.Begin({.rows = rows, .contexts = {&view, 1}}, logits.data());
  EXPECT_TRUE(pass.ok()) << pass.status();
  EXPECT_TRUE(pass.ok() && (*pass)->Run());
  return logits;
}

// The target's features of `tokens`, by passes of `piece` rows: [tokens, feature_width].
std::vector<float> FeaturesOf(Model& target, const HeadShape& shape,
                              std::span<const int32_t> tokens, size_t piece,
                              std::vector<float>* logits = nullptr) {
  const auto width = static_cast<size_t>(shape.feature_width());
  std::vector<float> features(tokens.size() * width);
  const ScratchKv kv(target.info(), static_cast<int32_t>(tokens.size()));
  const ContextView view = kv.View();
  const auto vocab = static_cast<size_t>(target.info().vocab_size);
  if (logits != nullptr) logits->resize(tokens.size() * vocab);
  for (size_t from = 0; from < tokens.size(); from += piece) {
    const size_t count = std::min(piece, tokens.size() - from);
    std::vector<Row> rows = PlainRows(tokens.subspan(from, count), static_cast<int32_t>(from));
    for (size_t i = 0; i < count; ++i) {
      rows[i].features = std::span(features).subspan((from + i) * width, width);
      rows[i].want_logits = logits != nullptr;
    }
    float* const to = logits == nullptr ? nullptr : logits->data() + from * vocab;
    const absl::Status status = target.Forward(
        {.rows = rows, .contexts = {&view, 1}, .feature_layers = shape.feature_layers}, to);
    EXPECT_TRUE(status.ok()) << status;
  }
  return features;
}

HeadStates StatesOf(const DraftHead& head, std::span<const float> features, int32_t first = 0) {
  HeadStates states = head.NewStates();
  const auto width = static_cast<size_t>(head.shape().feature_width());
  for (size_t at = 0; (at + 1) * width <= features.size(); ++at) {
    states.Append(first + static_cast<int32_t>(at), features.subspan(at * width, width));
  }
  return states;
}

// Rows of the target's vocabulary as rows of the drafted tokens alone.
std::vector<float> Drafted(std::span<const float> logits, std::span<const int32_t> tokens,
                           size_t vocab) {
  std::vector<float> drafted;
  for (size_t row = 0; row + vocab <= logits.size(); row += vocab) {
    for (const int32_t token : tokens) {
      drafted.push_back(logits[row + static_cast<size_t>(token)]);
    }
  }
  return drafted;
}

class HeadGoldenTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    for (const Target target : SupportedTargets()) targets_.emplace_back(KernelsFor(target)->name);
  }
  std::unique_ptr<Model> OpenTarget(const std::string& kernels) {
    ModelOptions options;
    options.target = kernels;
    return OpenTiny(folder_, std::string(kData) + "smollm3.gguf", options);
  }
  std::unique_ptr<DraftHead> Head(const Model& target) {
    auto head = DraftHead::Open(std::string(kData) + GetParam() + ".gguf", target);
    EXPECT_TRUE(head.ok()) << head.status();
    return head.ok() ? *std::move(head) : nullptr;
  }

  TestFolder folder_;
  std::vector<std::string> targets_;
};

void ExpectLike(std::span<const float> want, std::span<const float> got, size_t width) {
  ASSERT_EQ(want.size(), got.size());
  for (size_t at = 0; at < want.size(); at += width) {
    EXPECT_GT(Cosine(want.subspan(at, width), got.subspan(at, width)), 0.9995) << at / width;
  }
}

TEST_P(HeadGoldenTest, LogitsBehindTheTargetsPassesAreThoseOfTheReference) {
  const auto golden = GgufFile::Open(std::string(kData) + GetParam() + ".golden.gguf");
  ASSERT_TRUE(golden.ok()) << golden.status();
  const auto of_target = GgufFile::Open(std::string(kData) + "smollm3.golden.gguf");
  ASSERT_TRUE(of_target.ok()) << of_target.status();
  const std::vector<int32_t> tokens = Ints(*of_target, "tokens");
  const std::vector<int32_t> drafted = Ints(*golden, "tokens");
  const std::vector<float> want = Floats(*golden, "logits");
  for (const std::string& kernels : targets_) {
    SCOPED_TRACE(kernels);
    const auto target = OpenTarget(kernels);
    const auto head = Head(*target);
    HeadStates states = StatesOf(*head, FeaturesOf(*target, head->shape(), tokens, 40));
    ScratchKv kv(head->info(), 64);
    const std::vector<float> logits =
        HeadLogits(*head, kv, states, HeadRows(std::span(tokens).subspan(1), 1));
    const size_t vocab = static_cast<size_t>(head->info().vocab_size);
    ExpectLike(want, Drafted(logits, drafted, vocab), drafted.size());
    EXPECT_EQ(std::count(logits.begin(), logits.end(), kForbidden),
              static_cast<ptrdiff_t>((vocab - drafted.size()) * (tokens.size() - 1)));
  }
}

TEST_P(HeadGoldenTest, AChainOfDraftedTokensIsThatOfTheReference) {
  constexpr int32_t kPrefix = 10;
  const auto golden = GgufFile::Open(std::string(kData) + GetParam() + ".golden.gguf");
  ASSERT_TRUE(golden.ok()) << golden.status();
  const auto of_target = GgufFile::Open(std::string(kData) + "smollm3.golden.gguf");
  ASSERT_TRUE(of_target.ok()) << of_target.status();
  std::vector<int32_t> tokens = Ints(*of_target, "tokens");
  tokens.resize(kPrefix);
  const std::vector<int32_t> drafted = Ints(*golden, "tokens");
  const std::vector<int32_t> chain = Ints(*golden, "chain");
  for (const std::string& kernels : targets_) {
    SCOPED_TRACE(kernels);
    const auto target = OpenTarget(kernels);
    const auto head = Head(*target);
    const std::vector<float> features = FeaturesOf(*target, head->shape(), tokens, 3);
    const auto used = static_cast<size_t>(head->shape().feature_width()) * (kPrefix - 1);
    HeadStates states = StatesOf(*head, std::span(features).first(used));
    states.BeginDrafts(kPrefix - 1);
    ScratchKv kv(head->info(), 64);
    std::vector<Row> rows = HeadRows(std::span(tokens).subspan(1), 1);
    for (size_t i = 0; i + 1 < rows.size(); ++i) rows[i].want_logits = false;
    HeadLogits(*head, kv, states, rows);
    std::vector<float> got;
    for (size_t i = 0; i < chain.size(); ++i) {
      const auto at = kPrefix + static_cast<int32_t>(i);
      const std::vector<float> logits = HeadLogits(*head, kv, states, HeadRows({&chain[i], 1}, at));
      const std::vector<float> of_drafted = Drafted(logits, drafted, logits.size());
      got.insert(got.end(), of_drafted.begin(), of_drafted.end());
    }
    ExpectLike(Floats(*golden, "chain.logits"), got, drafted.size());
  }
}

INSTANTIATE_TEST_SUITE_P(All, HeadGoldenTest, testing::Values("eagle3", "eagle3_normed"),
                         [](const auto& one) { return std::string(one.param); });

class DraftHeadTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0);
    target_ = OpenTiny(folder_, path_, OnCpu());
    head_ = TestHead::Random(target_->info());
    tokens_ = SomeTokens(40, target_->info().vocab_size);
  }
  std::unique_ptr<DraftHead> Open(const Model& target) {
    auto head = DraftHead::Open(head_.Write(folder_ / "head.gguf"), target);
    EXPECT_TRUE(head.ok()) << head.status();
    return head.ok() ? *std::move(head) : nullptr;
  }
  // What Open says of the head as it is now.
  std::string Refusal() {
    const auto head = DraftHead::Open(head_.Write(folder_ / "bad.gguf"), *target_);
    EXPECT_FALSE(head.ok());
    const std::string message(head.status().message());
    EXPECT_THAT(message, HasSubstr("bad.gguf"));
    return message;
  }

  TestFolder folder_;
  std::string path_;
  std::unique_ptr<Model> target_;
  TestHead head_;
  std::vector<int32_t> tokens_;
};

TEST_F(DraftHeadTest, TheTargetsLogitsAreTheSameBitsAndFeaturesDoNotDependOnPieces) {
  const auto head = Open(*target_);
  std::vector<float> with;
  const std::vector<float> features = FeaturesOf(*target_, head->shape(), tokens_, 40, &with);
  const ScratchKv kv(target_->info(), 40);
  EXPECT_EQ(RunRows(*target_, kv, PlainRows(tokens_)), with);
  EXPECT_EQ(FeaturesOf(*target_, head->shape(), tokens_, 7), features);
}

TEST_F(DraftHeadTest, FeaturesAreWhatEntersTheLayers) {
  std::vector<std::vector<float>> hidden(3);
  ModelOptions options = OnCpu();
  options.hooks.layer_tap = [&hidden](int32_t layer, std::span<const float> rows) {
    hidden[static_cast<size_t>(layer)].assign(rows.begin(), rows.end());
  };
  const auto tapped = OpenTiny(folder_, path_, options);
  const auto head = Open(*tapped);
  const std::vector<float> features = FeaturesOf(*tapped, head->shape(), tokens_, 40);
  const auto width = static_cast<size_t>(target_->info().d_model);
  for (size_t row = 0; row < tokens_.size(); ++row) {
    for (size_t at = 0; at < head_.layers.size(); ++at) {
      const auto& stream = hidden[static_cast<size_t>(head_.layers[at]) - 1];
      EXPECT_EQ(std::memcmp(&features[(row * head_.layers.size() + at) * width],
                            &stream[row * width], width * sizeof(float)),
                0)
          << "row " << row << ", input " << at;
    }
  }
}

TEST_F(DraftHeadTest, RowsThatAskForNothingGiveNoFeatures) {
  std::vector<float> room(static_cast<size_t>(target_->info().d_model), 7.0f);
  std::vector<Row> rows = PlainRows(std::span(tokens_).first(2));
  rows[1].features = room;
  const ScratchKv kv(target_->info(), 16);
  const ContextView view = kv.View();
  std::vector<float> logits(2 * static_cast<size_t>(target_->info().vocab_size));
  const auto forward = [&](std::vector<int32_t> layers) {
    return target_->Forward({.rows = rows, .contexts = {&view, 1}, .feature_layers = layers},
                            logits.data());
  };
  EXPECT_TRUE(forward({1}).ok());
  EXPECT_NE(room.front(), 7.0f);
  EXPECT_THAT(std::string(forward({3}).message()), HasSubstr("input of layer 3"));
  EXPECT_THAT(std::string(forward({0}).message()), HasSubstr("input of layer 0"));
  EXPECT_THAT(std::string(forward({1, 2}).message()), HasSubstr("row 1 has room for"));
}

// Two branches in one pass, in scattered slots, against each of them alone.
TEST_F(DraftHeadTest, BranchesDoNotDependOnEachOther) {
  const auto head = Open(*target_);
  const std::vector<float> features = FeaturesOf(*target_, head->shape(), tokens_, 40);
  const int32_t root = 40;
  const auto begin = [&](ScratchKv* kv) {
    HeadStates states = StatesOf(*head, features);
    states.BeginDrafts(root);
    kv->Extend(80);
    std::vector<Row> rows = HeadRows(std::span(tokens_).subspan(1), 1);
    for (Row& row : rows) row.want_logits = false;
    HeadLogits(*head, *kv, states, rows);
    const int32_t last = 3;
    HeadLogits(*head, *kv, states, HeadRows({&last, 1}, root));
    return states;
  };
  const std::vector<int32_t> branches = {5, 9};
  ScratchKv together(head->info(), 16);
  HeadStates states = begin(&together);
  std::vector<Row> first, second;
  const std::vector<int32_t> before[] = {{}, {41}, {47}};
  for (size_t i = 0; i < 2; ++i) {
    const int32_t slot = i == 0 ? 41 : 47;
    first.push_back({.token = branches[i], .position = 41, .slot = slot, .want_logits = true});
    second.push_back({.token = 11,
                      .position = 42,
                      .slot = slot + 1,
                      .want_logits = true,
                      .ancestor_slots = before[i + 1]});
  }
  const std::vector<float> level1 = HeadLogits(*head, together, states, first);
  const std::vector<float> level2 = HeadLogits(*head, together, states, second);
  const auto vocab = static_cast<size_t>(head->info().vocab_size);
  for (size_t i = 0; i < 2; ++i) {
    ScratchKv alone(head->info(), 16);
    HeadStates own = begin(&alone);
    const std::vector<float> one = HeadLogits(*head, alone, own, HeadRows({&branches[i], 1}, 41));
    const int32_t next = 11;
    const std::vector<float> two = HeadLogits(*head, alone, own, HeadRows({&next, 1}, 42));
    EXPECT_EQ(one, std::vector<float>(level1.begin() + static_cast<ptrdiff_t>(i * vocab),
                                      level1.begin() + static_cast<ptrdiff_t>((i + 1) * vocab)));
    EXPECT_EQ(two, std::vector<float>(level2.begin() + static_cast<ptrdiff_t>(i * vocab),
                                      level2.begin() + static_cast<ptrdiff_t>((i + 1) * vocab)));
  }
}

// A context whose first tokens had KV before: the head sees what the target computed since.
TEST_F(DraftHeadTest, BeginsWhereTheTargetBegan) {
  const auto head = Open(*target_);
  const std::vector<float> features = FeaturesOf(*target_, head->shape(), tokens_, 40);
  const auto width = static_cast<size_t>(head->shape().feature_width());
  std::vector<float> logits[2];
  for (const int32_t shift : {0, 1}) {  // the same tokens at other positions
    HeadStates states = StatesOf(*head, std::span(features).subspan(20 * width), 20 + 16 * shift);
    EXPECT_EQ(states.first(), 21 + 16 * shift);
    ScratchKv kv(head->info(), 64);
    logits[shift] =
        HeadLogits(*head, kv, states, HeadRows(std::span(tokens_).subspan(21), 21 + 16 * shift));
  }
  const auto vocab = static_cast<size_t>(head->info().vocab_size);
  const std::vector<int32_t> drafted(head->shape().target_tokens);
  ExpectLike(Drafted(logits[0], drafted, vocab), Drafted(logits[1], drafted, vocab),
             drafted.size());
  // Nothing is known of the tokens before.
  HeadStates states = StatesOf(*head, std::span(features).subspan(20 * width), 20);
  ScratchKv kv(head->info(), 64);
  ContextView view = kv.View();
  view.head = &states;
  const std::vector<Row> rows = HeadRows({&tokens_[20], 1}, 20);
  EXPECT_EQ(head->Begin({.rows = rows, .contexts = {&view, 1}}, nullptr).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// A head without embedding and output uses the target's; where those are streamed, it has them in
// memory. Either way the same bits.
TEST_F(DraftHeadTest, TakesWhatItLacksFromATargetThatStreams) {
  head_.width = target_->info().d_model;
  head_.Shape(2, 96, head_.vocab_size);
  head_.tensors.d2t.clear();
  head_.tensors.Randomize(3);
  head_.tensors.f32.erase("token_embd.weight");
  head_.tensors.f32.erase("output.weight");
  const auto logits_of = [&](Model& target) {
    const auto head = Open(target);
    EXPECT_FALSE(head->shape().own_output);
    HeadStates states = StatesOf(*head, FeaturesOf(target, head->shape(), tokens_, 40));
    ScratchKv kv(head->info(), 64);
    return HeadLogits(*head, kv, states, HeadRows(std::span(tokens_).subspan(1), 1));
  };
  const std::vector<float> want = logits_of(*target_);
  EXPECT_EQ(std::count(want.begin(), want.end(), kForbidden), 0);
  ModelOptions options = OnCpu();
  options.hooks.stream_whole_layers = true;
  options.weight_budget_bytes = static_cast<uint64_t>(target_->info().weight_bytes) * 9 / 10;
  options.cache_dir = folder_.path();
  options.threads = 2;
  auto streamed = Model::Open(path_, options);
  ASSERT_TRUE(streamed.ok()) << streamed.status();
  ASSERT_TRUE((*streamed)->weight_stats().streams());
  EXPECT_EQ(logits_of(**streamed), want);
}

TEST_F(DraftHeadTest, AFileThatIsWrongIsNamedWithWhatIsWrong) {
  const TestHead good = head_;
  head_.tensors.f32.erase("blk.0.attn_norm_2.weight");
  EXPECT_THAT(Refusal(), HasSubstr("tensor blk.0.attn_norm_2.weight is missing"));
  head_ = good;
  head_.tensors.f32.erase("output.weight");
  EXPECT_THAT(Refusal(), HasSubstr("tensor output.weight is missing"));
  head_ = good;
  head_.tensors.Matrix("fc.weight", head_.width, 2 * head_.target_width);
  EXPECT_THAT(Refusal(), HasSubstr("tensor fc.weight is [64, "));
  head_ = good;
  head_.tensors.Matrix("blk.0.attn_q.weight", 64, head_.width);
  EXPECT_THAT(Refusal(),
              HasSubstr("tensor blk.0.attn_q.weight is [64, 64]; by the metadata it must "
                        "be [64, 128]"));
  head_ = good;
  head_.tensors.d2t[3] = head_.vocab_size;
  EXPECT_THAT(Refusal(), HasSubstr("tensor d2t: element 3 is " + std::to_string(head_.vocab_size) +
                                   ", which is outside 0 to"));
  head_.tensors.d2t[3] = head_.tensors.d2t[1];
  EXPECT_THAT(Refusal(), HasSubstr("which an earlier one is, too"));
  head_ = good;
  head_.tensors.d2t.pop_back();
  EXPECT_THAT(Refusal(), HasSubstr("tensor output.weight is ["));
  head_ = good;
  head_.tensors.Matrix("fc_norm.0.weight", 1, 64);
  EXPECT_THAT(Refusal(), HasSubstr("tensor fc_norm.0.weight is none of an EAGLE-3 head"));
  head_ = good;
  head_.layers = {0, 1, 2};
  EXPECT_THAT(Refusal(), HasSubstr("eagle3.target_layers has 0"));
  head_ = good;
  head_.blocks = 2;
  EXPECT_THAT(Refusal(), HasSubstr("only heads of one layer"));
}

TEST_F(DraftHeadTest, AHeadOfAnotherTargetIsRefused) {
  const TestHead good = head_;
  head_.target_width += 32;
  head_.tensors.Matrix("fc.weight", head_.width, 3 * head_.target_width);
  EXPECT_THAT(Refusal(), HasSubstr("it reads hidden states of width"));
  head_ = good;
  head_.layers = {1, 2, 3};
  EXPECT_THAT(Refusal(), HasSubstr("it reads the input of layer 3, the model has layers 0 to 2"));
  head_ = good;
  head_.vocab_size += 2;
  head_.tensors.Matrix("token_embd.weight", head_.vocab_size, head_.width);
  EXPECT_THAT(Refusal(), HasSubstr("it is for a vocabulary of"));
  head_ = good;
  head_.width = head_.target_width + 32;
  head_.Shape(2, 96, head_.vocab_size / 2);
  head_.tensors.f32.erase("token_embd.weight");
  EXPECT_THAT(Refusal(), HasSubstr("it has no token_embd.weight, and the model's has the width"));
}

TEST_F(DraftHeadTest, IsNoModelOfItsOwn) {
  const std::string path = head_.Write(folder_ / "head.gguf");
  ModelOptions options = OnCpu();
  options.cache_dir = folder_.path();
  const auto model = Model::Open(path, options);
  EXPECT_THAT(std::string(model.status().message()),
              testing::AllOf(HasSubstr("it is a draft head (EAGLE-3)"),
                             HasSubstr("name this file in model.head_path")));
  const auto head = DraftHead::Open(path_, *target_);
  EXPECT_THAT(std::string(head.status().message()), HasSubstr("it is no draft head"));
}

TEST_F(DraftHeadTest, TheKnowingHeadSaysWhatItsTargetWillSay) {
  const auto target =
      OpenTiny(folder_, KnowingPair::WriteTarget(folder_ / "letters.gguf"), OnCpu());
  head_ = KnowingPair::Head();
  const auto head = Open(*target);
  const std::vector<int32_t> text = {'x', 'a', 'c', 'e'};
  HeadStates states = StatesOf(*head, FeaturesOf(*target, head->shape(), text, 4));
  const auto features = static_cast<size_t>(head->shape().feature_width());
  EXPECT_EQ(states.FeaturesOf(3).size(), features);
  states.BeginDrafts(4);
  ScratchKv kv(head->info(), 64);
  std::vector<int32_t> drafted = {'g'};
  for (int32_t at = 4; at < 10; ++at) {
    const std::vector<float> logits =
        HeadLogits(*head, kv, states, HeadRows({&drafted.back(), 1}, at));
    drafted.push_back(
        static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
  }
  EXPECT_THAT(drafted, testing::ElementsAre('g', 'i', 'k', 'm', 'o', 'q', 's'));
}

}  // namespace
}  // namespace withy::engine
