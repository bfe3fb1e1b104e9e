// Published vocabularies against published ids. Skipped without the data, which does not ship:
// llama.cpp's models/ggml-vocab-*.gguf (gpt-2, llama-spm, bert-bge) with their texts (.inp) and
// token ids (.out), and two files made the same way from the published tokenizers of Llama 3.2
// (llama-bpe) and Qwen 2.5 (qwen2), in data/vocab under $WITHY_SHARED (default ../shared).
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {
namespace {

std::string VocabDirectory() {
  const char* shared = std::getenv("WITHY_SHARED");
  return std::string(shared != nullptr ? shared : "../shared") + "/data/vocab";
}

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

class VectorsTest : public testing::TestWithParam<const char*> {};

TEST_P(VectorsTest, EveryTextGivesThePublishedIds) {
  const std::string path = VocabDirectory() + "/ggml-vocab-" + GetParam() + ".gguf";
  if (!std::filesystem::exists(path))
    GTEST_SKIP() << "no vocabulary at " << path << " (set WITHY_SHARED)";
  auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  auto tokenizer = MakeTokenizer(*file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();

  const std::vector<std::string> texts =
      absl::StrSplit(ReadAll(path + ".inp"), "\n__ggml_vocab_test__\n");
  const std::vector<std::string> lines = absl::StrSplit(ReadAll(path + ".out"), '\n');
  ASSERT_GE(lines.size(), texts.size());
  size_t checked = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    std::vector<int32_t> expected;
    std::istringstream numbers(lines[i]);
    for (int32_t id = 0; numbers >> id;) expected.push_back(id);
    const std::vector<int32_t> ids = (*tokenizer)->Encode(texts[i]);
    EXPECT_EQ(ids, expected) << "text " << i << ": " << testing::PrintToString(texts[i]);
    if (std::string(GetParam()) != "bert-bge") {
      EXPECT_EQ((*tokenizer)->Decode(ids), texts[i]);
    }
    ++checked;
  }
  EXPECT_GE(checked, 40u);
}

INSTANTIATE_TEST_SUITE_P(Published, VectorsTest,
                         testing::Values("gpt-2", "llama-bpe", "qwen2", "llama-spm", "bert-bge"),
                         [](const auto& param) {
                           std::string name = param.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace withy::engine
