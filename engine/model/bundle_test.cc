// A bundle's three parts fit each other, for both kinds of synthetic vocabulary.
#include "engine/model/bundle.h"

#include <string>

#include "engine/model/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

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
  const auto bundle =
      OpenBundle(WriteTiny(folder, TinyShape(), GgmlType::kQ8_0), options, "nonsense");
  EXPECT_FALSE(bundle.ok());
}

}  // namespace
}  // namespace withy::engine
