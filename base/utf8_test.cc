#include "base/utf8.h"

#include <random>
#include <string>

#include "base/test_seed.h"
#include "gtest/gtest.h"
#include "withy/v1/types.pb.h"

namespace withy {
namespace {

constexpr char kReplaced[] = "\xEF\xBF\xBD";

TEST(Utf8Test, ValidTextStaysAsItIs) {
  for (const std::string text : {"", "plain", "\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x81", "\x7F\x01",
                                 "\xED\x9F\xBF\xEE\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(ValidUtf8(text), text);
  }
  EXPECT_EQ(ValidUtf8(std::string(1, '\0')), std::string(1, '\0'));
}

TEST(Utf8Test, WhatIsNoCharacterIsReplacedByteByByte) {
  EXPECT_EQ(ValidUtf8("a\xFF"
                      "b"),
            std::string("a") + kReplaced + "b");
  EXPECT_EQ(ValidUtf8("\xC3"), kReplaced);
  EXPECT_EQ(ValidUtf8("\xC0\x80"), std::string(kReplaced) + kReplaced);         // overlong
  EXPECT_EQ(ValidUtf8("\xED\xA0\x80").size(), 9u);                              // surrogate
  EXPECT_EQ(ValidUtf8("\xF4\x90\x80\x80").size(), 12u);                         // above U+10FFFF
  EXPECT_EQ(ValidUtf8("\xE4\xB8x"), std::string(kReplaced) + kReplaced + "x");  // incomplete
}

TEST(Utf8Test, IsCutBetweenCharacters) {
  EXPECT_EQ(ValidUtf8("\xC3\xA9\xC3\xA9", 3), "\xC3\xA9");
  EXPECT_EQ(ValidUtf8("\xFF\xFF", 5), kReplaced);
  EXPECT_EQ(ValidUtf8("abc", 0), "");
}

TEST(Utf8Test, AnyBytesFitAMessage) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes(random() % 12, '\0');
    for (char& c : bytes)
      c = static_cast<char>(random() % 2 == 0 ? random() : 0xE0 + random() % 32);
    v1::Message message;
    message.set_content(ValidUtf8(bytes));
    v1::Message read;
    ASSERT_TRUE(read.ParseFromString(message.SerializeAsString()));  // proto3 refuses invalid UTF-8
    EXPECT_EQ(ValidUtf8(message.content()), message.content());
  }
}

}  // namespace
}  // namespace withy
