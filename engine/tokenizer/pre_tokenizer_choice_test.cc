#include "engine/tokenizer/pre_tokenizer_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/gguf/writer.h"
#include "engine/tokenizer/split.h"

namespace withy::engine {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// The choice for a byte-level BPE file with these tokens; `pre`: null if the file names none.
PreTokenizerChoice Choose(size_t size, const std::map<size_t, std::string>& tokens, const char* pre,
                          std::string_view configured = "") {
  std::vector<std::string> texts(size);
  for (size_t i = 0; i < size; ++i) texts[i] = absl::StrCat("t", i);
  for (const auto& [id, text] : tokens) texts[id] = text;
  GgufWriter writer;
  writer.SetString("tokenizer.ggml.model", "gpt2");
  writer.SetStringArray("tokenizer.ggml.tokens", texts);
  if (pre != nullptr) writer.SetString("tokenizer.ggml.pre", pre);
  const std::string path = absl::StrCat(testing::TempDir(), "/choice-", getpid(), ".gguf");
  EXPECT_TRUE(writer.Write(path).ok());
  const auto file = GgufFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  PreTokenizerChoice choice = ChoosePreTokenizer(*file, configured);
  std::filesystem::remove(path);
  return choice;
}

const std::map<size_t, std::string> kQwen = {
    {151643, "<|endoftext|>"}, {151644, "<|im_start|>"}, {151645, "<|im_end|>"}};
const std::map<size_t, std::string> kSmol = {
    {0, "<|endoftext|>"}, {1, "<|im_start|>"}, {2, "<|im_end|>"}, {3, "<repo_name>"}};

TEST(PreTokenizerChoiceTest, AVocabularyOfAKnownFamilyTellsItsRule) {
  const struct {
    size_t size;
    std::map<size_t, std::string> tokens;
    std::string pre;
  } families[] = {
      {128256, {{128000, "<|begin_of_text|>"}, {128001, "<|end_of_text|>"}}, "llama-bpe"},
      {151936, kQwen, "qwen2"},
      {49152, kSmol, "smollm"},
      {50257, {{0, "!"}, {262, "Ġthe"}, {50256, "<|endoftext|>"}}, "gpt-2"},
      {131072, {{1, "<s>"}, {2, "</s>"}, {3, "[INST]"}, {4, "[/INST]"}}, "tekken"},
  };
  for (const auto& family : families) {
    const PreTokenizerChoice choice = Choose(family.size, family.tokens, nullptr);
    EXPECT_EQ(choice.name, family.pre);
    EXPECT_FALSE(choice.doubtful);
    EXPECT_THAT(choice.note, HasSubstr("tokenizer.ggml.pre"));
    EXPECT_TRUE(FindPreTokenizer(choice.name).ok());
    // One token elsewhere, and it is another vocabulary.
    auto moved = family.tokens;
    moved.begin()->second = "x";
    EXPECT_TRUE(Choose(family.size, moved, nullptr).doubtful) << family.pre;
  }
}

TEST(PreTokenizerChoiceTest, AnUnknownVocabularyIsWarnedOf) {
  const PreTokenizerChoice choice = Choose(300, {}, nullptr);
  EXPECT_EQ(choice.name, "default");
  EXPECT_TRUE(choice.doubtful);
  EXPECT_THAT(choice.note, HasSubstr("model.pre_tokenizer"));
}

TEST(PreTokenizerChoiceTest, TheFileAndTheConfigurationDecideFirst) {
  EXPECT_EQ(Choose(300, {}, "gpt-2").name, "gpt-2");
  EXPECT_THAT(Choose(300, {}, "gpt-2").note, IsEmpty());
  EXPECT_THAT(Choose(300, {}, "default").note, IsEmpty());
  EXPECT_EQ(Choose(151936, kQwen, "gpt-2").name, "gpt-2");
  // A vocabulary that contradicts the default is told, and what the file says is done.
  const PreTokenizerChoice contradicted = Choose(49152, kSmol, "default");
  EXPECT_EQ(contradicted.name, "default");
  EXPECT_TRUE(contradicted.doubtful);
  EXPECT_THAT(contradicted.note, HasSubstr("model.pre_tokenizer: \"smollm\""));
  for (const char* pre : {static_cast<const char*>(nullptr), "gpt-2", "nonsense"}) {
    const PreTokenizerChoice configured = Choose(300, {}, pre, "qwen2");
    EXPECT_EQ(configured.name, "qwen2");
    EXPECT_FALSE(configured.doubtful);
    EXPECT_THAT(configured.note, HasSubstr("model.pre_tokenizer"));
  }
}

}  // namespace
}  // namespace withy::engine
