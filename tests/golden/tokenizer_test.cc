// Small vocabularies that other packages trained, against the ids that these give texts in many
// scripts. make_tokenizer_vectors.py makes the files.
#include "engine/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "engine/gguf/reader.h"

namespace withy::engine {
namespace {

constexpr char kTokenizers[] = "tests/golden/data/tokenizers/";

struct Vector {
  std::string text;
  std::vector<int32_t> ids;
};

std::vector<Vector> ReadVectors(const std::string& path) {
  std::vector<Vector> vectors;
  std::ifstream in(path);
  for (std::string text, ids; std::getline(in, text) && std::getline(in, ids);) {
    Vector& vector = vectors.emplace_back();
    vector.text = absl::HexStringToBytes(text.substr(text.find(' ') + 1));
    std::istringstream numbers(ids);
    for (int32_t id = 0; numbers >> id;) vector.ids.push_back(id);
  }
  return vectors;
}

class TokenizerGoldenTest : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerGoldenTest, EveryTextHasTheIdsOfThePackage) {
  const std::string path = std::string(kTokenizers) + GetParam();
  const auto file = GgufFile::Open(path + ".gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto tokenizer = MakeTokenizer(*file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::vector<Vector> vectors = ReadVectors(path + ".txt");
  EXPECT_GE(vectors.size(), 140u) << "run from the repository root";
  for (const auto& [text, ids] : vectors) {
    const TextPiece piece{text, false};
    const Encoding encoding = (*tokenizer)->EncodePieces({&piece, 1}, {});
    EXPECT_EQ(encoding.ids, ids) << absl::CHexEscape(text);
    uint32_t at = 0;
    for (const ByteSpan& span : encoding.spans) {
      EXPECT_EQ(span.begin, at) << absl::CHexEscape(text);
      at = span.end;
    }
    if (!ids.empty()) {
      EXPECT_EQ(at, text.size()) << absl::CHexEscape(text);
    }
    // What was decoded is in the form to which text is brought.
    const std::string decoded = (*tokenizer)->Decode(encoding.ids, true);
    if (std::string(GetParam()) == "qwen2") {
      EXPECT_EQ((*tokenizer)->Encode(decoded), ids) << absl::CHexEscape(text);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Packages, TokenizerGoldenTest,
                         testing::Values("qwen2", "unigram", "unigram_bytes"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace withy::engine
