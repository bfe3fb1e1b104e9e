#include "engine/encoder/import_mobilebert.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "engine/encoder/safetensors.h"
#include "engine/encoder/testing.h"
#include "engine/encoder/tlm.h"
#include "gmock/gmock.h"

namespace withy::engine {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::HasSubstr;

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
}

void WriteAll(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// A copy of a golden model's directory that a test may modify.
class ImportTest : public testing::Test {
 protected:
  ImportTest() : temp_("import") {
    for (const char* name : {"config.json", "vocab.txt", "model.safetensors"}) {
      fs::copy_file(fs::path("tests/golden/data/mobilebert_shared_qk") / name, temp_ / name);
    }
  }

  void ChangeConfig(const std::string& key, const Json& value) {
    Json config = Json::parse(ReadAll(temp_ / "config.json"));
    config[key] = value;
    WriteAll(temp_ / "config.json", config.dump());
  }

  // Changes the header and appends `data` to the tensors' bytes.
  template <typename Change>
  void ChangeTensors(Change change, const std::string& data = "") {
    const std::string file = ReadAll(temp_ / "model.safetensors");
    uint64_t old_length = 0;
    std::memcpy(&old_length, file.data(), 8);
    Json header = Json::parse(file.substr(8, old_length));
    change(&header, file.size() - 8 - old_length);
    const std::string text = header.dump();
    const uint64_t length = text.size();
    std::string out(8, '\0');
    std::memcpy(out.data(), &length, 8);
    WriteAll(temp_ / "model.safetensors", out + text + file.substr(8 + old_length) + data);
  }

  absl::StatusOr<TlmCheckpoint> Import(const MobileBertImport& options = {}) {
    return ImportMobileBert(temp_ / "", options);
  }
  std::string Error(const MobileBertImport& options = {}) {
    return std::string(Import(options).status().message());
  }

  TempFolder temp_;
};

TEST_F(ImportTest, PlainModelGetsTowersHeadsAndOrthogonalSloRows) {
  auto tlm = Import({.shared_layers = 2});
  ASSERT_TRUE(tlm.ok()) << tlm.status();
  EXPECT_EQ(tlm->shape.shared_layers, 2);
  EXPECT_EQ(tlm->shape.score_layers, 1);
  EXPECT_TRUE(tlm->shape.pooler);
  EXPECT_EQ(tlm->shape.encoder.vocab, 48 + 20);
  EXPECT_EQ(*tlm->Find("score.0.ffn.1.up.weight"), *tlm->Find("decision.0.ffn.1.up.weight"));
  EXPECT_NE(*tlm->Find("score.0.ffn.1.up.weight"), *tlm->Find("shared.1.ffn.1.up.weight"));
  EXPECT_NE((*tlm->Find("score.keep.weight"))[0], 0);

  const std::vector<float>& tokens = *tlm->Find("token_embd.weight");
  const auto dot = [&](int32_t a, int32_t b) {
    double sum = 0;
    for (size_t i = 0; i < 32; ++i) {
      sum +=
          double{tokens[static_cast<size_t>(a) * 32 + i]} * tokens[static_cast<size_t>(b) * 32 + i];
    }
    return sum;
  };
  const std::vector<int32_t> slo = *SloTokenIds(tlm->vocab, 10, "tlm");
  ASSERT_EQ(slo.size(), 20u);
  for (const int32_t a : slo) {
    EXPECT_GT(dot(a, a), 0.01);
    EXPECT_NEAR(dot(a, a), dot(slo[0], slo[0]), 1e-5);
    for (const int32_t b : slo) {
      if (a != b) {
        EXPECT_NEAR(dot(a, b), 0, 1e-6);
      }
    }
  }
}

TEST_F(ImportTest, WhatIsImportedRuns) {
  auto tlm = Import();
  ASSERT_TRUE(tlm.ok()) << tlm.status();
  ASSERT_TRUE(WriteTlm(*tlm, GgmlType::kQ8_0, temp_ / "tlm.gguf").ok());
  auto opened = Tlm::Open(temp_ / "tlm.gguf", {});
  ASSERT_TRUE(opened.ok()) << opened.status();
  auto reading = (*opened)->Read("The cats sat on unable mats.", {.ttft_ratio = 0.5});
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_EQ(reading->words.size(), 6u);
  EXPECT_EQ(reading->prompt_level.percents, DefaultLevels());
}

TEST_F(ImportTest, TheSameSeedGivesTheSameHeads) {
  EXPECT_EQ(*Import()->Find("decision.model.weight"), *Import()->Find("decision.model.weight"));
  EXPECT_NE(*Import()->Find("decision.model.weight"),
            *Import({.seed = 2})->Find("decision.model.weight"));
}

TEST_F(ImportTest, TrainedTensorsAreKept) {
  std::string data(64 * 4, '\0');
  const float value = 0.75f;
  std::memcpy(data.data() + 8, &value, 4);
  ChangeTensors(
      [](Json* header, size_t bytes) {
        (*header)["tlm.score.keep.weight"] = {
            {"dtype", "F32"}, {"shape", {1, 64}}, {"data_offsets", {bytes, bytes + 256}}};
      },
      data);
  auto tlm = Import();
  ASSERT_TRUE(tlm.ok()) << tlm.status();
  EXPECT_EQ((*tlm->Find("score.keep.weight"))[2], 0.75f);
  EXPECT_EQ((*tlm->Find("score.keep.weight"))[3], 0);
}

TEST_F(ImportTest, NamesOfAPretrainingModelAreFound) {
  const auto plain = *Import();
  ChangeTensors([](Json* header, size_t) {
    Json renamed;
    for (const auto& [name, entry] : header->items()) renamed["mobilebert." + name] = entry;
    *header = renamed;
  });
  auto tlm = Import();
  ASSERT_TRUE(tlm.ok()) << tlm.status();
  EXPECT_EQ(*tlm->Find("decision.pooler.weight"), *plain.Find("decision.pooler.weight"));
}

TEST_F(ImportTest, ModelWithoutPoolerHasNone) {
  ChangeTensors([](Json* header, size_t) { header->erase("pooler.dense.weight"); });
  EXPECT_FALSE(Import()->shape.pooler);
}

TEST_F(ImportTest, ConfigsThatDoNotFitAreNamed) {
  ChangeConfig("hidden_act", "gelu");
  EXPECT_THAT(Error(), HasSubstr("hidden_act is \"gelu\"; known here: relu"));
  ChangeConfig("hidden_act", "relu");
  ChangeConfig("num_attention_heads", 5);
  EXPECT_THAT(Error(), HasSubstr("head_count is 5, which does not divide the width 32"));
  ChangeConfig("num_attention_heads", 2);
  ChangeConfig("key_query_shared_bottleneck", false);
  EXPECT_THAT(Error(), HasSubstr("queries and keys without a bottleneck"));
  ChangeConfig("key_query_shared_bottleneck", true);
  ChangeConfig("hidden_size", "wide");
  EXPECT_THAT(Error(), HasSubstr("hidden_size is \"wide\", wanted a count"));
  ChangeConfig("hidden_size", 96);
  EXPECT_THAT(Error(), HasSubstr("has shape [96, 64], config.json says [96, 96]"));
  ChangeConfig("hidden_size", 64);
  EXPECT_THAT(Error({.shared_layers = 4}), HasSubstr("shared_layers is 4, but"));
  EXPECT_THAT(Error({.slo_steps = 17}),
              HasSubstr("34 SLO tokens cannot have orthogonal rows of 32"));
  WriteAll(temp_ / "config.json", "{");
  EXPECT_THAT(Error(), HasSubstr("not a JSON object"));
  fs::remove(temp_ / "config.json");
  EXPECT_THAT(Error(), HasSubstr("a MobileBERT directory holds config.json"));
}

TEST_F(ImportTest, VocabulariesThatDoNotFitAreNamed) {
  const std::string good = ReadAll(temp_ / "vocab.txt");
  WriteAll(temp_ / "vocab.txt", good + "more\n");
  EXPECT_THAT(Error(), HasSubstr("has 49 tokens, but vocab_size in config.json is 48"));
  WriteAll(temp_ / "vocab.txt", good + "the\n");
  EXPECT_THAT(Error(), HasSubstr("line 49: token \"the\" occurs twice"));
  WriteAll(temp_ / "vocab.txt", "[UNK]\n[CLS]\nthe\n");
  EXPECT_THAT(Error(), HasSubstr("without a token [SEP]"));
  WriteAll(temp_ / "vocab.txt", good);
  WriteAll(temp_ / "tokenizer_config.json", R"({"do_lower_case": false})");
  EXPECT_THAT(Error(), HasSubstr("do_lower_case is false"));
}

TEST_F(ImportTest, TensorsThatDoNotFitAreNamed) {
  ChangeTensors([](Json* header, size_t) {
    (*header)["encoder.layer.1.ffn.0.output.dense.weight"]["shape"] = {64, 32};
  });
  EXPECT_THAT(Error(), HasSubstr("tensor encoder.layer.1.ffn.0.output.dense.weight has shape "
                                 "[64, 32], config.json says [32, 64]"));
  ChangeTensors(
      [](Json* header, size_t) { header->erase("encoder.layer.0.attention.self.query.bias"); });
  EXPECT_THAT(Error(), HasSubstr("tensor encoder.layer.0.attention.self.query.bias is missing"));
  fs::remove(temp_ / "model.safetensors");
  EXPECT_THAT(Error(), HasSubstr("model.safetensors"));
}

}  // namespace
}  // namespace withy::engine
