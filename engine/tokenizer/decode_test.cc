#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "engine/tokenizer/testing.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {
namespace {

class StreamDecoderTest : public testing::Test {
 protected:
  void SetUp() override {
    TestVocab vocab;
    vocab.AddByteAlphabet();
    control_ = vocab.Add("<|end|>", TokenKind::kControl);
    tokenizer_ = vocab.Make("gpt2", "gpt-2").value();
  }
  std::string Feed(StreamDecoder& decoder, std::string_view bytes) {
    std::string text;
    for (const char c : bytes) text += decoder.Push(static_cast<uint8_t>(c));
    return text;
  }
  int32_t control_ = 0;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(StreamDecoderTest, HoldsBackUnfinishedCharacters) {
  StreamDecoder decoder(*tokenizer_);
  EXPECT_EQ(decoder.Push('a'), "a");
  EXPECT_EQ(decoder.Push(0xF0), "");
  EXPECT_EQ(decoder.Push(0x9F), "");
  EXPECT_EQ(decoder.Push(0x98), "");
  EXPECT_EQ(decoder.Push(0x81), "\xF0\x9F\x98\x81");
  EXPECT_EQ(decoder.Push(control_), "");
  EXPECT_EQ(decoder.Flush(), "");
}

TEST_F(StreamDecoderTest, ReplacesWhatCannotBecomeACharacter) {
  StreamDecoder decoder(*tokenizer_);
  EXPECT_EQ(Feed(decoder,
                 "\xFF"
                 "a"),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(Feed(decoder,
                 "\xC3"
                 "b"),
            "\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(Feed(decoder, "\xED\xA0"), "\xEF\xBF\xBD\xEF\xBF\xBD");  // a surrogate
  EXPECT_EQ(Feed(decoder, "\xE4\xB8"), "");
  EXPECT_EQ(decoder.Flush(), "\xEF\xBF\xBD");
  EXPECT_EQ(decoder.Flush(), "");
}

TEST_F(StreamDecoderTest, OutputIsAlwaysValidAndComplete) {
  std::mt19937 random(3);
  const std::string alphabet = "a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x81\xFF\xED";
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 16, '\0');
    for (char& c : bytes) c = alphabet[random() % alphabet.size()];
    StreamDecoder decoder(*tokenizer_);
    const std::string text = Feed(decoder, bytes) + decoder.Flush();
    for (size_t at = 0; at < text.size();) {
      char32_t code = 0;
      const size_t length = Utf8CharAt(text, at, &code);
      ASSERT_GT(length, 0u) << testing::PrintToString(bytes);
      at += length;
    }
    if (DecodeChars(bytes).size() == DecodeChars(text).size()) continue;
    // Only an incomplete tail may count differently: several bytes, one replacement.
    EXPECT_LT(DecodeChars(text).size(), DecodeChars(bytes).size());
  }
}

}  // namespace
}  // namespace withy::engine
