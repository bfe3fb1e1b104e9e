// Files that are wrong in one known place are refused, with the name of the place and what to do:
// every tensor and key of a GPT-2 and a gpt-oss model, and every key of a Unigram vocabulary.
// Neighbours:
// gguf_fuzz.cc damages files at random and asks only that nothing breaks.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/test_seed.h"
#include "engine/gguf/quants.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/writer.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/layout.h"

namespace withy::engine {
namespace {

constexpr char kGpt2[] = "tests/golden/data/gpt2.gguf";
constexpr char kGptOss[] = "tests/golden/data/gpt-oss.gguf";
constexpr char kVocabulary[] = "tests/golden/data/tokenizers/unigram.gguf";
constexpr char kCharsmap[] = "tokenizer.ggml.precompiled_charsmap";

// A wrong file.
struct Fault {
  std::string place;  // the tensor or key that its refusal names
  std::function<void(GgufWriter&)> change = nullptr;
  bool without = false;            // the key or tensor is left out
  std::vector<int64_t> dims = {};  // of the tensor; empty: its own, and its own type
  GgmlType type = GgmlType::kF32;
};

class MalformedTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::path(testing::TempDir()) /
            ("malformed_" + std::to_string(getpid()) + ".gguf");
  }
  void TearDown() override { std::filesystem::remove(path_); }

  GgufFile Write(const GgufFile& base, const Fault& fault) {
    GgufWriter writer;
    writer.CopyMetadata(base,
                        [&](std::string_view key) { return fault.without && key == fault.place; });
    if (fault.change) fault.change(writer);
    std::vector<uint8_t> zeros;
    for (const TensorInfo& tensor : base.tensors()) {
      const bool here = tensor.name == fault.place;
      if (here && fault.without) continue;
      if (here && !fault.dims.empty()) {
        int64_t rows = 1;
        for (size_t i = 1; i < fault.dims.size(); ++i) rows *= fault.dims[i];
        zeros.resize(RowBytes(fault.type, fault.dims[0]).value() * static_cast<size_t>(rows));
        writer.AddTensor(tensor.name, fault.type, fault.dims, zeros);
      } else {
        writer.AddTensor(tensor.name, tensor.type, tensor.dims, base.Data(tensor));
      }
    }
    const absl::Status written = writer.Write(path_);
    EXPECT_TRUE(written.ok()) << written;
    return GgufFile::Open(path_).value();
  }

  void ExpectRefused(const absl::Status& status, const std::string& place) {
    const std::string message(status.message());
    EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
                absl::IsUnimplemented(status))
        << place << ": " << status;
    EXPECT_NE(message.find(path_), std::string::npos) << message;
    EXPECT_NE(message.find(place), std::string::npos) << place << ": " << message;
    const std::array<const char*, 5> remedies = {"must be", "expected", "again", "supported",
                                                 "choose"};
    EXPECT_TRUE(std::any_of(remedies.begin(), remedies.end(), [&](const char* word) {
      return absl::StrContains(message, word);
    })) << message;
  }

  // At least a hundred of them.
  void ExpectAllRefused(const GgufFile& model, std::vector<Fault> faults,
                        const std::vector<Fault>& more) {
    const absl::Status right = PlanLayout(model).status();
    ASSERT_TRUE(right.ok()) << right;
    faults.insert(faults.end(), more.begin(), more.end());
    EXPECT_GE(faults.size(), 100u);
    for (const Fault& fault : faults) {
      const GgufFile file = Write(model, fault);
      ExpectRefused(PlanLayout(file).status(), fault.place);
    }
  }

  std::string path_;
};

// `others`: names of tensors that the architecture lacks.
std::vector<Fault> FaultsOfTensors(const GgufFile& model, const std::vector<std::string>& others) {
  std::vector<Fault> faults;
  for (const TensorInfo& tensor : model.tensors()) {
    faults.push_back({.place = tensor.name, .without = true});
    std::vector<int64_t> longer = tensor.dims;
    longer.back() += 32;
    faults.push_back({.place = tensor.name, .dims = longer});
    std::vector<int64_t> wider = tensor.dims;
    wider.front() += 32;
    faults.push_back({.place = tensor.name, .dims = wider});
    if (tensor.dims.size() == 1 && tensor.dims[0] % 32 == 0) {
      faults.push_back({.place = tensor.name, .dims = tensor.dims, .type = GgmlType::kQ8_0});
    }
  }
  for (const std::string& other : others) {
    faults.push_back({.place = other, .change = [other](GgufWriter& w) {
                        static const std::vector<uint8_t> zeros(4 * 32);
                        w.AddTensor(other, GgmlType::kF32, {32}, zeros);
                      }});
  }
  return faults;
}

std::vector<Fault> FaultsOfKeys(const std::vector<std::string>& counts,
                                const std::string& epsilon) {
  std::vector<Fault> faults;
  for (const std::string& key : counts) {
    faults.push_back({.place = key, .without = true});
    for (const int32_t value : {0, -1, std::numeric_limits<int32_t>::min(), 1 << 30}) {
      faults.push_back(
          {.place = key, .change = [key, value](GgufWriter& w) { w.Set<int32_t>(key, value); }});
    }
    faults.push_back({.place = key, .change = [key](GgufWriter& w) { w.SetString(key, "2"); }});
    faults.push_back({.place = key, .change = [key](GgufWriter& w) { w.Set<float>(key, 2.5f); }});
  }
  faults.push_back({.place = epsilon, .without = true});
  for (const float value :
       {0.0f, -1.0f, 1.0f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    faults.push_back({.place = epsilon,
                      .change = [epsilon, value](GgufWriter& w) { w.Set<float>(epsilon, value); }});
  }
  return faults;
}

TEST_F(MalformedTest, EveryTensorAndKeyOfAGpt2ModelIsChecked) {
  const GgufFile model = GgufFile::Open(kGpt2).value();
  ExpectAllRefused(
      model,
      FaultsOfTensors(
          model, {"blk.0.ffn_gate.weight", "blk.9.attn_norm.weight", "blk.0.attn_q.bias",
                  "blk.0.attn_q.weight", "blk.1.attn_q_norm.weight", "blk.1.post_ffw_norm.weight"}),
      FaultsOfKeys({"gpt2.block_count", "gpt2.context_length", "gpt2.embedding_length",
                    "gpt2.feed_forward_length", "gpt2.attention.head_count"},
                   "gpt2.attention.layer_norm_epsilon"));
}

TEST_F(MalformedTest, EveryTensorAndKeyOfAGptOssModelIsChecked) {
  const GgufFile model = GgufFile::Open(kGptOss).value();
  std::vector<Fault> of_keys = FaultsOfKeys(
      {"gpt-oss.block_count", "gpt-oss.context_length", "gpt-oss.embedding_length",
       "gpt-oss.feed_forward_length", "gpt-oss.attention.head_count", "gpt-oss.expert_count",
       "gpt-oss.expert_used_count", "gpt-oss.attention.sliding_window"},
      "gpt-oss.attention.layer_norm_rms_epsilon");
  for (const int32_t gating : {-1, 2, 4}) {
    of_keys.push_back({.place = "gpt-oss.expert_gating_func", .change = [gating](GgufWriter& w) {
                         w.Set<int32_t>("gpt-oss.expert_gating_func", gating);
                       }});
  }
  of_keys.push_back({.place = "gpt-oss.rope.scaling.type", .change = [](GgufWriter& w) {
                       w.SetString("gpt-oss.rope.scaling.type", "spiral");
                     }});
  of_keys.push_back({.place = "gpt-oss.rope.scaling.factor", .change = [](GgufWriter& w) {
                       w.Set<float>("gpt-oss.rope.scaling.factor", std::nanf(""));
                     }});
  ExpectAllRefused(
      model,
      FaultsOfTensors(model, {"blk.0.ffn_norm.weight", "blk.0.ffn_up.bias", "blk.0.ffn_gate.weight",
                              "blk.9.attn_sinks.weight", "blk.1.attn_q_norm.weight",
                              "blk.1.post_ffw_norm.weight"}),
      of_keys);
}

std::vector<uint8_t> CharsmapOf(const GgufFile& vocabulary) {
  const std::vector<int64_t> values = vocabulary.GetIntArray(kCharsmap).value();
  return {values.begin(), values.end()};
}

Fault WithCharsmap(std::vector<uint8_t> bytes) {
  return {.place = kCharsmap, .change = [bytes = std::move(bytes)](GgufWriter& w) {
            w.SetArray<uint8_t>(kCharsmap, bytes);
          }};
}

// Rules that are cut off, or point outside.
std::vector<Fault> FaultsOfCharsmap(const GgufFile& vocabulary) {
  std::vector<Fault> faults;
  const std::vector<uint8_t> good = CharsmapOf(vocabulary);
  for (size_t i = 0; i < 60; ++i) {
    std::vector<uint8_t> cut(
        good.begin(), good.begin() + static_cast<ptrdiff_t>(i < 4 ? i : good.size() * i / 60));
    faults.push_back(WithCharsmap(std::move(cut)));
  }
  for (size_t cut = 1; cut <= 20; ++cut) {
    faults.push_back(WithCharsmap({good.begin(), good.end() - static_cast<ptrdiff_t>(cut)}));
  }
  for (const int bit : {0, 1, 8, 9, 20, 31}) {  // of the size of the double array
    std::vector<uint8_t> sized = good;
    sized[static_cast<size_t>(bit / 8)] ^= static_cast<uint8_t>(1 << bit % 8);
    faults.push_back(WithCharsmap(std::move(sized)));
  }
  std::vector<uint8_t> far = good;  // the children of the root are outside
  far[6] = far[7] = 0x7F;
  faults.push_back(WithCharsmap(std::move(far)));
  faults.push_back({.place = kCharsmap, .change = [](GgufWriter& w) {
                      w.SetArray<int32_t>(kCharsmap, std::vector<int32_t>{1, 2, 300});
                    }});
  faults.push_back(
      {.place = kCharsmap, .change = [](GgufWriter& w) { w.SetString(kCharsmap, "rules"); }});
  faults.push_back({.place = kCharsmap, .change = [](GgufWriter& w) {
                      w.SetArray<float>(kCharsmap, std::vector<float>{1, 2});
                    }});
  return faults;
}

std::vector<Fault> FaultsOfTokens(const GgufFile& vocabulary) {
  std::vector<Fault> faults;
  const std::string scores_key = "tokenizer.ggml.scores";
  const std::vector<float> scores = vocabulary.GetFloatArray(scores_key).value();
  const auto with_scores = [&](std::vector<float> wrong) {
    faults.push_back({.place = scores_key,
                      .change = [=](GgufWriter& w) { w.SetArray<float>(scores_key, wrong); }});
  };
  for (const float value : {std::nanf(""), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
    for (const size_t at : {size_t{0}, scores.size() / 2, scores.size() - 1}) {
      std::vector<float> wrong = scores;
      wrong[at] = value;
      with_scores(std::move(wrong));
    }
  }
  with_scores({scores.begin(), scores.end() - 1});
  std::vector<float> longer = scores;
  longer.push_back(0);
  with_scores(std::move(longer));
  for (const char* key : {"tokenizer.ggml.scores", "tokenizer.ggml.tokens"}) {
    faults.push_back({.place = key, .without = true});
    faults.push_back({.place = key, .change = [key](GgufWriter& w) { w.SetString(key, "a"); }});
    faults.push_back({.place = key, .change = [key](GgufWriter& w) {
                        w.SetArray<uint8_t>(key, std::vector<uint8_t>{});
                      }});
  }
  faults.push_back({.place = "tokenizer.ggml.token_type", .change = [](GgufWriter& w) {
                      w.SetArray<int32_t>("tokenizer.ggml.token_type", std::vector<int32_t>{1});
                    }});
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.unknown_token_id"}) {
    for (const int64_t id : {int64_t{1} << 20, int64_t{-2}, int64_t{1} << 40}) {
      faults.push_back(
          {.place = key, .change = [key, id](GgufWriter& w) { w.Set<int64_t>(key, id); }});
    }
    faults.push_back({.place = key, .change = [key](GgufWriter& w) { w.SetString(key, "</s>"); }});
  }
  for (const char* key :
       {"tokenizer.ggml.add_space_prefix", "tokenizer.ggml.remove_extra_whitespaces"}) {
    faults.push_back({.place = key, .change = [key](GgufWriter& w) { w.SetString(key, "yes"); }});
  }
  return faults;
}

TEST_F(MalformedTest, EveryKeyOfAUnigramVocabularyIsChecked) {
  const GgufFile vocabulary = GgufFile::Open(kVocabulary).value();
  ASSERT_TRUE(MakeTokenizer(vocabulary).ok());
  std::vector<Fault> faults = FaultsOfCharsmap(vocabulary);
  const std::vector<Fault> of_tokens = FaultsOfTokens(vocabulary);
  faults.insert(faults.end(), of_tokens.begin(), of_tokens.end());
  EXPECT_GE(faults.size(), 100u);
  for (const Fault& fault : faults) {
    const GgufFile file = Write(vocabulary, fault);
    ExpectRefused(MakeTokenizer(file).status(), fault.place);
  }
}

// Rules with other bits are refused by name, or are other rules.
TEST_F(MalformedTest, ACharsmapWithOtherBitsIsRefusedOrUsed) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const GgufFile vocabulary = GgufFile::Open(kVocabulary).value();
  const std::vector<uint8_t> good = CharsmapOf(vocabulary);
  for (int round = 0; round < 100; ++round) {
    std::vector<uint8_t> bytes = good;
    for (int flips = 0; flips < 1 + round % 8; ++flips) {
      bytes[random() % bytes.size()] ^= static_cast<uint8_t>(1u << random() % 8);
    }
    const GgufFile file = Write(vocabulary, WithCharsmap(bytes));
    const auto tokenizer = MakeTokenizer(file);
    if (!tokenizer.ok()) {
      ExpectRefused(tokenizer.status(), kCharsmap);
      continue;
    }
    std::string text;
    for (int i = 0; i < 200; ++i) text += static_cast<char>(random());
    const TextPiece piece{text, false};
    const Encoding encoding = (*tokenizer)->EncodePieces({&piece, 1}, {});
    uint32_t at = 0;
    for (const ByteSpan& span : encoding.spans) {
      ASSERT_EQ(span.begin, at);
      at = span.end;
    }
    ASSERT_TRUE(encoding.spans.empty() || at == text.size());
  }
}

}  // namespace
}  // namespace withy::engine
