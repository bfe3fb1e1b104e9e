// Tests that a bundle's three parts fit each other, for both kinds of synthetic vocabulary.
#include "engine/model/bundle.h"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/utf8.h"
#include "engine/gguf/testing.h"
#include "engine/gguf/writer.h"
#include "engine/model/testing.h"
#include "engine/weights/packer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

using testing::HasSubstr;

TEST(BundleTest, SynthesizedModelsHaveWorkingTokenizersAndTemplates) {
  for (const bool byte_level : {false, true}) {
    TestFolder folder;
    SynthShape shape = TinyShape();
    shape.byte_level_bpe = byte_level;
    shape.vocab_size = 2000;
    ModelOptions options;
    options.cache_dir = folder.path();
    options.threads = 1;
    const auto bundle = OpenBundle(WriteTiny(folder, shape, GgmlType::kQ8_0), options);
    ASSERT_TRUE(bundle.ok()) << bundle.status();
    EXPECT_EQ(bundle->tokenizer->vocab_size(), 2000);
    EXPECT_EQ(bundle->chat.format(), byte_level ? ChatFormat::kChatMl : ChatFormat::kZephyr);
    const std::string text = "turn on the lamp, 21\xC2\xB0 \xF0\x9F\x8C\xBF\n";
    const std::vector<int32_t> ids = bundle->tokenizer->Encode(text);
    EXPECT_LT(ids.size(), text.size());
    EXPECT_EQ(bundle->tokenizer->Decode(ids), text);
    EXPECT_TRUE(GreedyDecode(*bundle->model, ids, 3).ok());
  }
}

TEST(BundleTest, AnUnknownTemplateNameIsRefused) {
  TestFolder folder;
  ModelOptions options;
  options.cache_dir = folder.path();
  const auto bundle = OpenBundle(WriteTiny(folder, TinyShape(), GgmlType::kQ8_0), options,
                                 {.chat_template = "nonsense"});
  EXPECT_FALSE(bundle.ok());
}

TEST(BundleTest, APackedFileIsLookedAtBeforeItIsChosen) {
  TestFolder folder;
  ThreadPool pool(1);
  const std::string gguf = WriteTiny(folder, TinyShape(), GgmlType::kQ8_0);
  const auto pack = [&](const std::string& path) {
    return PackBundle(
        path, folder.path(), pool, [](double) {}, nullptr);
  };
  ASSERT_TRUE(pack(gguf).ok());
  const std::string packed = PackedPath(gguf, folder.path());
  ASSERT_TRUE(pack(packed).ok());
  std::filesystem::resize_file(packed, std::filesystem::file_size(packed) / 2);
  const absl::Status status = pack(packed);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(packed));
}

// JudgeServability and OpenBundle report the same status for every fault of a file.
class JudgementTest : public ::testing::Test {
 protected:
  // Writes the tiny model with changed metadata. A key that is set twice has the last value.
  std::string Changed(const std::function<void(GgufWriter&)>& change) {
    const auto base = GgufFile::Open(WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0, "base.gguf"));
    EXPECT_TRUE(base.ok()) << base.status();
    GgufWriter writer;
    writer.CopyMetadata(*base);
    change(writer);
    for (const TensorInfo& tensor : base->tensors()) {
      writer.AddTensor(tensor.name, tensor.type, tensor.dims, base->Data(tensor));
    }
    const std::string path = folder_ / "changed.gguf";
    EXPECT_TRUE(writer.Write(path).ok());
    return path;
  }

  // Judges the file, and checks that opening it gives the same status.
  absl::Status Judge(const std::function<void(GgufWriter&)>& change) {
    const std::string path = Changed(change);
    const auto file = GgufFile::Open(path);
    if (!file.ok()) return file.status();
    const Servability judged = JudgeServability(*file, {});
    const absl::Status status = JoinProblems(judged.problems);
    ModelOptions options;
    options.cache_dir = folder_ / "packed";
    options.threads = 1;
    const auto bundle = OpenBundle(path, options);
    EXPECT_EQ(bundle.status(), status);
    // A refused file is not packed.
    EXPECT_EQ(std::filesystem::exists(options.cache_dir), status.ok());
    std::filesystem::remove_all(options.cache_dir);
    if (bundle.ok()) {
      EXPECT_TRUE(GreedyDecode(*bundle->model, std::vector<int32_t>{1}, 1).ok());
    }
    return status;
  }

  TestFolder folder_;
};

TEST_F(JudgementTest, InspectionAndWorkersAgree) {
  EXPECT_TRUE(Judge([](GgufWriter&) {}).ok());
  EXPECT_TRUE(Judge([](GgufWriter& w) { w.SetString("general.name", "\xFF"); }).ok());
  EXPECT_TRUE(Judge([](GgufWriter& w) { w.Set<uint32_t>("llama.context_length", 2); }).ok());
  EXPECT_TRUE(Judge([](GgufWriter& w) { w.SetString("general.url", "\xFF\xFE"); }).ok());
  const std::vector<std::function<void(GgufWriter&)>> wrong = {
      [](GgufWriter& w) { w.Set<uint32_t>("llama.context_length", 1); },
      [](GgufWriter& w) { w.Set<uint32_t>("llama.context_length", 0); },
      [](GgufWriter& w) { w.Set<uint32_t>("llama.attention.sliding_window", 1); },
      [](GgufWriter& w) { w.Set<uint32_t>("llama.vocab_size", 10); },
      [](GgufWriter& w) { w.Set<uint32_t>("llama.vocab_size", 1 << 23); },
      [](GgufWriter& w) { w.SetStringArray("tokenizer.ggml.tokens", {}); },
      [](GgufWriter& w) { w.SetString("tokenizer.ggml.model", "klingon\xFF"); },
      [](GgufWriter& w) { w.Set<uint32_t>("tokenizer.ggml.eos_token_id", 1 << 30); },
      [](GgufWriter& w) { w.SetString("tokenizer.chat_template", "{{ \xFF }}"); },
      [](GgufWriter& w) { w.Set<uint32_t>("tokenizer.chat_template", 1); },
      [](GgufWriter& w) { w.SetString("llama.rope.scaling.type", "dynamic"); },
      [](GgufWriter& w) { w.Set<bool>("llama.attention.causal", false); },
      [](GgufWriter& w) { w.Set<uint32_t>("llama.block_count", 4); },
      [](GgufWriter& w) { w.SetString("general.architecture", "mamba"); },
      [](GgufWriter& w) { w.SetArray<int32_t>("withy.level.percent", std::vector<int32_t>{50}); },
  };
  for (size_t i = 0; i < wrong.size(); ++i) {
    const absl::Status status = Judge(wrong[i]);
    EXPECT_FALSE(status.ok()) << i;
    const std::string message(status.message());
    EXPECT_EQ(ValidUtf8(message), message) << i;
  }
}

TEST_F(JudgementTest, WhatIsNoModelIsNamedWithARemedy) {
  struct Kind {
    std::function<void(GgufWriter&)> change;
    std::string name;
    std::string remedy;
  };
  const std::vector<Kind> kinds = {
      {[](GgufWriter& w) { w.SetString("general.type", "adapter"); }, "is an adapter", "merge"},
      {[](GgufWriter& w) { w.SetString("adapter.type", "lora"); }, "adapter (lora)", "merge"},
      {[](GgufWriter& w) { w.SetString("general.type", "mmproj"); }, "projector", "model's own"},
      {[](GgufWriter& w) { w.SetString("general.architecture", "clip"); }, "projector", "own file"},
      {[](GgufWriter& w) { w.SetString("general.type", "imatrix"); }, "importance matrix", "own"},
      {[](GgufWriter& w) { w.SetString("general.architecture", "controlvector"); },
       "control vector", "without it"},
      {[](GgufWriter& w) { w.Set<uint32_t>("llama.pooling_type", 3); }, "an embedding model",
       "generate text"},
      {[](GgufWriter& w) { w.Set<uint32_t>("llama.pooling_type", 4); }, "a reranker",
       "generate text"},
  };
  for (const Kind& kind : kinds) {
    const absl::Status status = Judge(kind.change);
    EXPECT_THAT(std::string(status.message()),
                testing::AllOf(HasSubstr(kind.name), HasSubstr(kind.remedy)));
    EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("is missing")));
  }
  EXPECT_TRUE(Judge([](GgufWriter& w) { w.Set<uint32_t>("llama.pooling_type", 0); }).ok());
  EXPECT_TRUE(Judge([](GgufWriter& w) { w.Set<uint16_t>("split.count", 0); }).ok());
  for (const char* type : {"model", "finetune"}) {
    EXPECT_TRUE(Judge([&](GgufWriter& w) { w.SetString("general.type", type); }).ok()) << type;
  }
}

TEST_F(JudgementTest, ASplitModelIsServedByItsFirstPart) {
  const std::string whole = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0, "base.gguf");
  const std::vector<std::string> parts =
      WriteSplit(GgufFile::Open(whole).value(), folder_ / "split", 4);
  ModelOptions options;
  options.cache_dir = folder_ / "packed";
  options.threads = 1;
  const auto answer = [&](const std::string& path) {
    const auto bundle = OpenBundle(path, options);
    EXPECT_TRUE(bundle.ok()) << bundle.status();
    return bundle.ok() ? *GreedyDecode(*bundle->model, std::vector<int32_t>{1}, 8)
                       : std::vector<int32_t>();
  };
  EXPECT_EQ(answer(parts[0]), answer(whole));
  const absl::Status later = OpenBundle(parts[1], options).status();
  EXPECT_THAT(std::string(later.message()), HasSubstr("name its first part, " + parts[0]));
}

TEST_F(JudgementTest, AVocabularyAloneIsNamed) {
  const auto base = GgufFile::Open(WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0, "base.gguf"));
  ASSERT_TRUE(base.ok());
  GgufWriter writer;
  writer.CopyMetadata(*base);
  ASSERT_TRUE(writer.Write(folder_ / "vocabulary.gguf").ok());
  const auto file = GgufFile::Open(folder_ / "vocabulary.gguf");
  ASSERT_TRUE(file.ok());
  const Servability judged = JudgeServability(*file, {});
  ASSERT_EQ(judged.problems.size(), 1u);
  EXPECT_THAT(std::string(judged.problems[0].message()), HasSubstr("vocabulary without weights"));
}

// Whatever is against a file is told at once: its architecture, its types, its keys, its tokenizer.
TEST_F(JudgementTest, AllProblemsAreTold) {
  const std::vector<uint8_t> blocks(54);
  const std::span<const uint8_t> bytes(blocks);
  const std::string path = Changed([&](GgufWriter& w) {
    w.SetString("general.architecture", "llama");
    w.Set<uint32_t>("llama.expert_count", 8);
    w.SetString("llama.rope.scaling.type", "dynamic");
    w.Set<uint32_t>("llama.pooling_type", 1);
    w.SetString("tokenizer.ggml.model", "klingon");
    w.AddTensor("blk.9.a.weight", GgmlType::kQ1_0, {128, 2}, bytes.first(36));
    w.AddTensor("blk.9.b.weight", GgmlType::kQ1_0, {128, 2}, bytes.first(36));
    w.AddTensor("blk.9.c.weight", GgmlType::kIQ1_S, {256}, bytes.first(50));
  });
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string all(JoinProblems(JudgeServability(*file, {}).problems).message());
  for (const char* part :
       {"expert_count is 8", "dynamic", "embedding model", "klingon", "supported are",
        "blk.9.a.weight and 1 more have type Q1_0", "blk.9.c.weight has type IQ1_S"}) {
    EXPECT_THAT(all, HasSubstr(part));
  }
}

}  // namespace
}  // namespace withy::engine
