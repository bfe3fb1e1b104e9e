#include "serving/session/public_prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "engine/model/testing.h"
#include "engine/session/testing.h"
#include "serving/call/testing.h"

namespace withy::serving {
namespace {

using ::testing::HasSubstr;

struct PublicPrompts {
  PublicPrompts() {
    info.levels = {engine::LevelInfo{.percent = 50}, engine::LevelInfo{}};
    const std::vector<engine::Segment> segments = {{.role = "system", .text = prompt},
                                                   {.role = "user", .text = "what else"}};
    ids = chat.encoder->EncodePrompt(segments, kWindow)->ids;
  }
  absl::StatusOr<std::vector<Identity>> Name(const std::string& text, int32_t window = kWindow) {
    const SessionEnv env{.model = info, .encoder = *chat.encoder, .namer = namer, .window = window};
    return NamePublicChunks(env, std::vector<std::string>{text});
  }

  engine::ChatFixture chat;
  engine::ModelInfo info;
  ChunkNamer namer{ModelIdentity("m", {2, 1, 16}), "", engine::KvFormat::kQ8};
  const std::string prompt = "You help people with their boats, in few words and with a smile.";
  std::vector<int32_t> ids;  // of a conversation that begins with the prompt
};

TEST(PublicPromptsTest, TheChunksOfThePromptArePublicAndNoneBehindIt) {
  PublicPrompts all;
  const auto named = all.Name(all.prompt);
  ASSERT_TRUE(named.ok()) << named.status();
  for (const int32_t level : {50, 100}) {
    const std::vector<int32_t> levels(all.ids.size(), level);
    size_t common = 0;
    for (const ChunkName& name : all.namer.NameAll({}, all.ids, levels)) {
      if (std::find(named->begin(), named->end(), name.identity) == named->end()) break;
      ++common;
    }
    EXPECT_EQ(common, named->size() / 2) << "at each level";
    EXPECT_GE(common, 1u);
    EXPECT_LT(common * engine::kChunkTokens, all.ids.size());
  }
  EXPECT_TRUE(all.Name("Short.")->size() <= 2);
}

TEST(PublicPromptsTest, APromptThatCannotBeUsedIsNamed) {
  PublicPrompts all;
  const auto named = all.Name(all.prompt, /*window=*/20);
  EXPECT_EQ(named.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(named.status().message()),
              HasSubstr("public system prompt \"You help people with their boats, in few"));
}

TEST(PublicPromptsTest, FilesAreReadWithoutTheirLastNewline) {
  const engine::TestFolder folder;
  std::ofstream(folder / "a.txt") << "Be kind.\nAlways.\n";
  std::ofstream(folder / "empty.txt") << "\n";
  std::ofstream(folder / "binary.txt") << "\xff\xfe";
  const auto read = [&](const std::string& name) {
    return ReadPublicPrompts(std::vector<std::string>{folder / name});
  };
  ASSERT_TRUE(read("a.txt").ok());
  EXPECT_EQ(read("a.txt")->front(), "Be kind.\nAlways.");
  EXPECT_EQ(read("none.txt").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(read("none.txt").status().message()), HasSubstr("none.txt"));
  for (const char* name : {"empty.txt", "binary.txt"}) {
    EXPECT_EQ(read(name).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(read(name).status().message()), HasSubstr(name));
  }
}

}  // namespace
}  // namespace withy::serving
