#include "engine/encoder/tlm.h"

#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <utility>

#include "engine/encoder/testing.h"
#include "engine/gguf/quants.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/writer.h"
#include "gmock/gmock.h"

namespace withy::engine {
namespace {

using testing::HasSubstr;

class TlmTest : public testing::Test {
 protected:
  TlmTest() : temp_("tlm"), path_(temp_ / "tlm.gguf") {
    const absl::Status status = WriteTlm(SmallTlm(), GgmlType::kQ8_0, path_);
    EXPECT_TRUE(status.ok()) << status;
  }

  std::unique_ptr<Tlm> Open(const TlmOptions& options = {}) {
    auto tlm = Tlm::Open(path_, options);
    EXPECT_TRUE(tlm.ok()) << tlm.status();
    return *std::move(tlm);
  }

  // Opens a copy of the file with changed metadata and tensors; returns the error.
  std::string OpenChanged(const std::function<void(GgufWriter*)>& change,
                          const std::string& drop = "", const std::string& reshape = "",
                          GgmlType type = GgmlType::kF32) {
    auto base = GgufFile::Open(path_);
    EXPECT_TRUE(base.ok());
    GgufWriter writer;
    writer.CopyMetadata(*base);
    change(&writer);
    std::vector<std::vector<uint8_t>> bytes;
    bytes.reserve(base->tensors().size());
    for (const TensorInfo& tensor : base->tensors()) {
      if (tensor.name == drop) continue;
      if (tensor.name != reshape) {
        writer.AddTensor(tensor.name, tensor.type, tensor.dims, base->Data(tensor));
        continue;
      }
      bytes.emplace_back(*RowBytes(type, 64 * 64));
      writer.AddTensor(tensor.name, type, {64, 64}, bytes.back());
    }
    const std::string path = temp_ / "changed.gguf";
    EXPECT_TRUE(writer.Write(path).ok());
    return std::string(Tlm::Open(path, {}).status().message());
  }

  TempFolder temp_;
  std::string path_;
};

constexpr char kText[] = "the cat sat on a mat, unable. the cats \xE7\x8C\xAB";

TEST_F(TlmTest, ReadsWordsAndDecides) {
  auto reading = Open()->Read(kText, {.ttft_ratio = 0.4, .tpot_ratio = 0.7});
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_EQ(reading->windows, 1);
  EXPECT_EQ(reading->words.size(), 10u);
  for (const WordScore& word : reading->words) {
    EXPECT_GT(word.keep, 0);
    EXPECT_LT(word.keep, 1);
    EXPECT_GE(word.tokens, 1);
  }
  EXPECT_EQ(reading->words[5].span, (ByteSpan{17, 21}));  // "mat," is two tokens
  EXPECT_EQ(reading->words[5].tokens, 2);
  EXPECT_EQ(reading->prompt_level.logits.size(), SmallShape().prompt_levels.size());
  EXPECT_EQ(reading->model_level.logits.size(), SmallShape().model_levels.size());
  EXPECT_EQ(reading->prompt_level.percents, SmallShape().prompt_levels);
  EXPECT_EQ(reading->model_level.percents, SmallShape().model_levels);
}

TEST_F(TlmTest, ThePairsChanceIsTheLogisticOfTheSum) {
  EXPECT_DOUBLE_EQ(PairChance(1.5, -1.5), 0.5);
  EXPECT_NEAR(PairChance(1, 1), 0.880797, 1e-6);
  EXPECT_NEAR(PairChance(-300, -300), 0, 1e-12);
}

TEST_F(TlmTest, TheSloIsRead) {
  const auto tlm = Open();
  const auto model_level = [&](const TlmSlo& slo) {
    return tlm->Read(kText, slo)->model_level.logits;
  };
  const std::vector<float> base = model_level({.ttft_ratio = 0.4, .tpot_ratio = 0.7});
  EXPECT_NE(base, model_level({.ttft_ratio = 0.8, .tpot_ratio = 0.7}));
  EXPECT_NE(base, model_level({.ttft_ratio = 0.4, .tpot_ratio = 0.2}));
  EXPECT_EQ(base, model_level({.ttft_ratio = 0.45, .tpot_ratio = 0.79}));
}

TEST_F(TlmTest, ScoresAreMeansOverAWordsTokens) {
  const auto tlm = Open();
  const std::string text = "unable cat";  // un ##able | cat
  const std::vector<ByteSpan> pieces = {{0, 2}, {2, 6}, {7, 10}};
  const auto apart = *tlm->Read(text, {}, pieces);
  const auto whole = *tlm->Read(text, {});
  ASSERT_EQ(whole.words.size(), 2u);
  EXPECT_FLOAT_EQ(whole.words[0].keep, (apart.words[0].keep + apart.words[1].keep) / 2);
  EXPECT_FLOAT_EQ(whole.words[1].keep, apart.words[2].keep);
}

TEST_F(TlmTest, LongTextTakesManyWindowsAndMergesTheirLogits) {
  const auto tlm = Open();
  std::string text;
  for (int i = 0; i < 200; ++i) text += i % 3 == 0 ? "the unable cat sat. " : "on a mat, ";
  const TlmSlo slo = {.ttft_ratio = 0.3, .tpot_ratio = 0.6};
  auto reading = tlm->Read(text, slo);
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_GT(reading->windows, 8);  // more than one batch of windows
  auto cut = tlm->windows().Make(text, slo, {}, text.size());
  ASSERT_TRUE(cut.ok());
  // Compares with each window alone, run directly on the encoder.
  auto file = GgufFile::Open(path_);
  auto weights = LoadTlmWeights(*file);
  ThreadPool pool(1);
  Encoder encoder(**weights, &pool, DefaultKernels());
  std::vector<double> mean(3);
  double weight = 0;
  for (const std::vector<int32_t>& window : cut->windows) {
    EncoderOutput out;
    ASSERT_TRUE(encoder.Run({&window, 1}, &out).ok());
    const double tokens = static_cast<double>(window.size()) - 4;
    weight += tokens;
    for (size_t i = 0; i < 3; ++i) mean[i] += tokens * double{out.model[i]};
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(reading->model_level.logits[i], mean[i] / weight, 1e-5);
  }
}

TEST_F(TlmTest, ThreadsAndEarlierCallsDoNotMatter) {
  std::string text;
  for (int i = 0; i < 150; ++i) text += "the cats sat, unable ";
  const auto one = Open();
  const auto three = Open({.threads = 3});
  ASSERT_TRUE(three->Read("a mat", {}).ok());
  const auto a = *one->Read(text, {});
  const auto b = *three->Read(text, {});
  EXPECT_EQ(a.prompt_level.logits, b.prompt_level.logits);
  EXPECT_EQ(a.model_level.logits, b.model_level.logits);
  ASSERT_EQ(a.words.size(), b.words.size());
  for (size_t i = 0; i < a.words.size(); ++i) EXPECT_EQ(a.words[i].keep, b.words[i].keep);
}

TEST_F(TlmTest, TooLongTextIsRefused) {
  auto reading = Open({.max_text_bytes = 100})->Read(std::string(101, 'a'), {});
  EXPECT_EQ(reading.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(reading.status().message()), HasSubstr("limit of 100"));
}

TEST_F(TlmTest, FilesRoundTrip) {
  const TlmCheckpoint made = SmallTlm();
  const std::string path = temp_ / "again.gguf";
  ASSERT_TRUE(WriteTlm(made, GgmlType::kF32, path).ok());
  auto read = ReadTlm(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->shape, made.shape);
  EXPECT_EQ(read->vocab, made.vocab);
  ASSERT_EQ(read->tensors.size(), made.tensors.size());
  for (size_t i = 0; i < made.tensors.size(); ++i) {
    EXPECT_EQ(read->tensors[i].values, made.tensors[i].values) << made.tensors[i].spec.name;
  }
  // Writing Q8_0 weights again as Q8_0 does not change them.
  const std::string q8 = temp_ / "q8.gguf";
  auto once = ReadTlm(path_);
  ASSERT_TRUE(once.ok());
  ASSERT_TRUE(WriteTlm(*once, GgmlType::kF32, q8).ok());
  EXPECT_EQ((*ReadTlm(q8)).tensors[0].values, once->tensors[0].values);
}

TEST_F(TlmTest, WhatToExpectOfAPairIsInTheFile) {
  TlmShape shape = ReadTlm(path_)->shape;
  EXPECT_FLOAT_EQ(shape.PairAccuracy(false, 50, 60), 0.2f);
  EXPECT_FLOAT_EQ(shape.PairAccuracy(false, 100, 20), 0.4f);
  EXPECT_FLOAT_EQ(shape.PairAccuracy(true, 100, 20), 0.8f);
  EXPECT_EQ(shape.PairAccuracy(false, 70, 60), 0.0f);
  EXPECT_EQ(shape.PairAccuracy(true, 50, 70), 0.0f);
  shape.pair_accuracy_examples.clear();
  EXPECT_FLOAT_EQ(shape.PairAccuracy(true, 100, 20), 0.4f) << "what is known of the others";
  std::swap(shape.pair_accuracy, shape.pair_accuracy_examples);
  EXPECT_FLOAT_EQ(shape.PairAccuracy(false, 100, 20), 0.4f) << "likewise";
}

TEST_F(TlmTest, FilesThatDoNotFitAreNamed) {
  const auto nothing = [](GgufWriter*) {};
  EXPECT_THAT(
      OpenChanged(nothing, "shared.1.attn_q.weight"),
      ::testing::AllOf(HasSubstr("tensor shared.1.attn_q.weight,"), HasSubstr(" is missing")));
  EXPECT_THAT(OpenChanged(nothing, "", "shared.1.attn_q.weight"),
              HasSubstr("tensor shared.1.attn_q.weight has shape [64, 64], the file's keys say "
                        "[32, 32]"));
  EXPECT_THAT(OpenChanged([](GgufWriter* w) { w->SetString("general.architecture", "bert"); }),
              HasSubstr("general.architecture is \"bert\""));
  EXPECT_THAT(
      OpenChanged([](GgufWriter* w) { w->Set<uint32_t>("mobilebert.attention.head_count", 5); }),
      HasSubstr("head_count is 5, which does not divide the width 32"));
  EXPECT_THAT(OpenChanged([](GgufWriter* w) { w->Set<uint32_t>("withy.tlm.window", 65); }),
              HasSubstr("withy.tlm.window is 65, more than the 64 positions"));
  EXPECT_THAT(OpenChanged([](GgufWriter* w) { w->Set<int64_t>("mobilebert.vocab_size", -4); }),
              HasSubstr("mobilebert.vocab_size is -4, limits 4 to"));
  EXPECT_THAT(OpenChanged([](GgufWriter* w) {
                w->SetArray<int32_t>("withy.tlm.model_levels", std::vector<int32_t>{20, 100, 60});
              }),
              HasSubstr("withy.tlm.model_levels has 60 as level 2"));
  EXPECT_THAT(OpenChanged([](GgufWriter* w) {
                w->SetArray<float>("withy.tlm.pair_accuracy", std::vector<float>{0.1f, 0.5f});
              }),
              HasSubstr("withy.tlm.pair_accuracy has 2 numbers for 6 pairs"));
  EXPECT_THAT(OpenChanged([](GgufWriter* w) {
                w->SetArray<float>("withy.tlm.pair_accuracy", std::vector<float>(6, 1.5f));
              }),
              HasSubstr("withy.tlm.pair_accuracy holds 1.5"));
  EXPECT_THAT(OpenChanged([](GgufWriter* w) {
                w->SetArray<float>("withy.tlm.pair_accuracy_examples", std::vector<float>(5));
              }),
              HasSubstr("withy.tlm.pair_accuracy_examples has 5 numbers for 6 pairs"));
  EXPECT_THAT(OpenChanged([](GgufWriter* w) { w->SetString("mobilebert.normalization", "rms"); }),
              HasSubstr("mobilebert.normalization is \"rms\""));
}

TEST_F(TlmTest, AVocabularyThatDoesNotFitIsNamed) {
  WordPieceVocab vocab = SmallVocab();
  vocab.tokens.pop_back();
  vocab.kinds.pop_back();
  EXPECT_THAT(OpenChanged([&](GgufWriter* w) { WriteVocab(vocab, w); }),
              HasSubstr("the tokenizer has 37 tokens, but mobilebert.vocab_size is 38"));
  vocab = SmallVocab();
  vocab.kinds[static_cast<size_t>(vocab.Find("<08>"))] = 1;
  EXPECT_THAT(OpenChanged([&](GgufWriter* w) { WriteVocab(vocab, w); }),
              HasSubstr("the SLO token <08> is an ordinary token"));
}

TEST_F(TlmTest, DamagedBytesNeverCrash) {
  std::ifstream in(path_, std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    std::string bad = good;
    for (int change = 0; change < 3; ++change) bad[random() % 4000] = static_cast<char>(random());
    if (round % 10 == 0) bad.resize(random() % bad.size());
    const std::string path = temp_ / "bad.gguf";
    std::ofstream(path, std::ios::binary) << bad;
    auto tlm = Tlm::Open(path, {});
    if (tlm.ok()) (void)(*tlm)->Read(kText, {});
  }
}

TEST_F(TlmTest, WritingRefusesWhatCannotBeRead) {
  TlmCheckpoint tlm = SmallTlm();
  (*tlm.Find("score.keep.weight"))[3] = NAN;
  EXPECT_THAT(std::string(WriteTlm(tlm, GgmlType::kF32, path_).message()),
              HasSubstr("tensor score.keep.weight holds nan at 3"));
  tlm = SmallTlm();
  tlm.Find("score.keep.weight")->pop_back();
  EXPECT_THAT(std::string(WriteTlm(tlm, GgmlType::kF32, path_).message()),
              HasSubstr("score.keep.weight has 63 values, its shape 64"));
  EXPECT_THAT(std::string(WriteTlm(SmallTlm(), GgmlType::kQ4_K, path_).message()),
              HasSubstr("not Q4_K"));
}

TEST_F(TlmTest, UnknownTargetIsNamed) {
  EXPECT_THAT(std::string(Tlm::Open(path_, {.target = "mmx"}).status().message()),
              HasSubstr("\"mmx\""));
  EXPECT_EQ(Tlm::Open(temp_ / "none.gguf", {}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace withy::engine
