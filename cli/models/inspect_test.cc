#include "cli/models/inspect.h"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cli/profile/plots.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/testing.h"
#include "engine/gguf/writer.h"
#include "engine/model/synth.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::cli {
namespace {

using ::testing::HasSubstr;

TEST(InspectTest, TellsWhatAFileHoldsAndWhetherItCanBeServed) {
  const std::string path = ::testing::TempDir() + "/withy_cli_inspect.gguf";
  ASSERT_TRUE(engine::WriteSynthModel(*engine::FindSynthShape("tiny"),
                                      *engine::FindSynthType("q8_0"), 1, path)
                  .ok());
  const auto good = Inspect(path, {});
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_TRUE(good->problems.empty());
  EXPECT_GT(good->shape.layers, 0);
  EXPECT_THAT(InspectionText(*good), HasSubstr("Q8_0"));
  EXPECT_THAT(InspectionText(*good), HasSubstr(" a token"));
  EXPECT_THAT(InspectionJson(*good), HasSubstr("\"can_be_served\":true"));

  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  EXPECT_FALSE(Inspect(path, {}).ok());
  std::filesystem::remove(path);
  EXPECT_EQ(Inspect(path, {}).status().code(), absl::StatusCode::kNotFound);
}

TEST(InspectTest, TellsOfExperts) {
  const std::string path = ::testing::TempDir() + "/withy_cli_inspect_moe.gguf";
  ASSERT_TRUE(engine::WriteSynthModel(*engine::FindSynthShape("tiny-moe"),
                                      *engine::FindSynthType("q8_0"), 1, path)
                  .ok());
  const auto mixture = Inspect(path, {});
  std::filesystem::remove(path);
  ASSERT_TRUE(mixture.ok()) << mixture.status();
  EXPECT_TRUE(mixture->problems.empty());
  const std::string text = InspectionText(*mixture);
  EXPECT_THAT(text, HasSubstr("10 experts of 96 neurons, of which a token uses 3"));
  EXPECT_THAT(text, HasSubstr("on the CPU only: experts"));
  EXPECT_GT(mixture->least_budget_bytes, 0u);
  EXPECT_LT(mixture->least_budget_bytes, mixture->packed_bytes);
}

TEST(InspectTest, TellsWhichModelADraftHeadFits) {
  const std::string path = "tests/golden/data/eagle3.gguf";
  const auto head = Inspect(path, {});
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_TRUE(head->problems.empty());
  const std::string text = InspectionText(*head);
  EXPECT_THAT(text, HasSubstr("for a model of width 64 with more than 3 layers and 96 tokens"));
  EXPECT_THAT(text, HasSubstr("inputs of layers 1, 2, 3 and drafts 40 tokens"));
  EXPECT_THAT(text, HasSubstr("as the draft head (EAGLE-3) of a model: for model.head_path"));
  EXPECT_THAT(InspectionJson(*head), HasSubstr("\"role\":\"head\""));

  const auto file = engine::GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string broken = ::testing::TempDir() + "/withy_cli_inspect_head.gguf";
  engine::GgufWriter writer;
  writer.CopyMetadata(*file);
  ASSERT_TRUE(writer.Write(broken).ok());
  const auto empty = Inspect(broken, {});
  std::filesystem::remove(broken);
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_THAT(InspectionText(*empty), HasSubstr("tensor fc.weight is missing"));
}

// The figure in docs/operations.md, KV memory.
TEST(InspectTest, A11BLlamaTakes12KiBOfKvAToken) {
  Inspection inspection;
  inspection.shape.layers = 22;
  inspection.shape.kv_heads = 4;
  inspection.shape.head_dim = 64;
  EXPECT_THAT(InspectionJson(inspection), HasSubstr("\"kv_bytes_per_token\":12056"));
  EXPECT_THAT(InspectionText(inspection), HasSubstr("11.8 KiB a token"));
}

TEST(InspectTest, SaysOfAFileWhatTheWorkersSay) {
  const std::string plain = ::testing::TempDir() + "/withy_cli_plain.gguf";
  const std::string changed = ::testing::TempDir() + "/withy_cli_changed.gguf";
  ASSERT_TRUE(engine::WriteSynthModel(*engine::FindSynthShape("tiny"),
                                      *engine::FindSynthType("q8_0"), 1, plain)
                  .ok());
  const auto inspect = [&](const std::function<void(engine::GgufWriter&)>& change) {
    const auto file = engine::GgufFile::Open(plain);
    EXPECT_TRUE(file.ok()) << file.status();
    engine::GgufWriter writer;
    writer.CopyMetadata(*file);
    change(writer);
    for (const engine::TensorInfo& tensor : file->tensors()) {
      writer.AddTensor(tensor.name, tensor.type, tensor.dims, file->Data(tensor));
    }
    EXPECT_TRUE(writer.Write(changed).ok());
    return *Inspect(changed, {});
  };
  const Inspection named =
      inspect([](engine::GgufWriter& writer) { writer.SetString("general.name", "mod\xE8le"); });
  EXPECT_TRUE(named.problems.empty());
  EXPECT_EQ(named.name, "mod\xEF\xBF\xBDle");
  EXPECT_THAT(InspectionJson(named), HasSubstr("\"name\":\"mod\xEF\xBF\xBDle\""));
  for (const auto& [key, value] :
       {std::pair{"llama.context_length", 1u}, std::pair{"llama.vocab_size", 7u}}) {
    const Inspection refused = inspect([key = key, value = value](engine::GgufWriter& writer) {
      writer.Set<uint32_t>(key, value);
    });
    ASSERT_FALSE(refused.problems.empty()) << key;
    EXPECT_THAT(refused.problems[0], HasSubstr(key));
    EXPECT_THAT(InspectionText(refused), HasSubstr("served     no"));
    EXPECT_THAT(InspectionJson(refused), HasSubstr("\"can_be_served\":false"));
  }
  // Nothing names the template and the pre-tokenizer: what is done instead is told.
  const Inspection bare = inspect([](engine::GgufWriter& writer) {
    writer.SetString("tokenizer.chat_template", "");
    writer.SetString("tokenizer.ggml.pre", "");
  });
  EXPECT_TRUE(bare.problems.empty());
  ASSERT_FALSE(bare.text.warnings.empty());
  EXPECT_THAT(InspectionText(bare), HasSubstr("warning: the file has no chat template"));
  EXPECT_THAT(InspectionJson(bare), HasSubstr("\"warnings\":[\"the file has no chat template"));
  std::filesystem::remove(plain);
  std::filesystem::remove(changed);
}

TEST(InspectTest, ASplitModelIsOne) {
  const std::string plain = ::testing::TempDir() + "/withy_cli_whole.gguf";
  ASSERT_TRUE(engine::WriteSynthModel(*engine::FindSynthShape("tiny"),
                                      *engine::FindSynthType("q8_0"), 1, plain)
                  .ok());
  const std::vector<std::string> parts = engine::WriteSplit(
      engine::GgufFile::Open(plain).value(), ::testing::TempDir() + "/withy_cli_split", 3);
  const auto whole = Inspect(plain, {});
  const auto split = Inspect(parts[0], {});
  ASSERT_TRUE(whole.ok() && split.ok()) << split.status();
  EXPECT_TRUE(split->problems.empty());
  EXPECT_EQ(split->parts, 3u);
  EXPECT_EQ(split->parameters, whole->parameters);
  EXPECT_EQ(split->packed_bytes, whole->packed_bytes);
  EXPECT_GT(split->file_bytes, whole->file_bytes - 4096);
  EXPECT_THAT(InspectionText(*split), HasSubstr("-00001-of-00003.gguf, 3 parts, "));
  EXPECT_THAT(InspectionJson(*split), HasSubstr("\"parts\":3"));
  EXPECT_THAT(std::string(Inspect(parts[2], {}).status().message()), HasSubstr(parts[0]));
  std::filesystem::remove(plain);
  for (const std::string& part : parts) std::filesystem::remove(part);
}

TEST(InspectTest, ListsTheLevelsOfAnElasticFile) {
  const std::string path = ::testing::TempDir() + "/withy_cli_elastic.gguf";
  engine::SynthShape shape = *engine::FindSynthShape("tiny");
  shape.levels = {45, 70};
  ASSERT_TRUE(engine::WriteSynthModel(shape, *engine::FindSynthType("q8_0"), 1, path).ok());
  const auto elastic = Inspect(path, {});
  ASSERT_TRUE(elastic.ok()) << elastic.status();
  EXPECT_TRUE(elastic->problems.empty());
  EXPECT_THAT(InspectionText(*elastic), HasSubstr("45, 70, 100 %, LoRA of rank 8"));
  EXPECT_THAT(InspectionText(*elastic), HasSubstr("4 heads, 192 neurons a layer, 0 layers whole"));
  EXPECT_THAT(InspectionJson(*elastic), HasSubstr("\"levels_percent\":[45,70,100]"));
  ASSERT_EQ(elastic->level_bytes.size(), 2u);
  EXPECT_LT(elastic->level_bytes[0], elastic->level_bytes[1]);
  EXPECT_LT(elastic->level_bytes[1], elastic->file_bytes);
  // A model of random weights has no data to plot.
  EXPECT_EQ(WritePlots(path, ::testing::TempDir()).status().code(), absl::StatusCode::kNotFound);
  std::filesystem::remove(path);
}

TEST(InspectTest, ATlmIsNamedAsOne) {
  const auto tlm = Inspect("models/withy-pocket-tlm-q8_0.gguf", {});
  ASSERT_TRUE(tlm.ok()) << tlm.status();
  EXPECT_TRUE(tlm->problems.empty()) << tlm->problems[0];
  EXPECT_THAT(InspectionText(*tlm), HasSubstr("as the TLM: for orchestrator.tlm_path"));
  EXPECT_THAT(InspectionJson(*tlm), HasSubstr("\"role\":\"tlm\""));
}

}  // namespace
}  // namespace withy::cli
