#include "wire/level_losses.h"

#include <functional>
#include <string>
#include <vector>

#include "engine/gguf/writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::IsEmpty;

// Of a file with levels 20 and 60 below the full one.
std::vector<float> LossesOf(const std::function<void(engine::GgufWriter&)>& fill) {
  const std::string path = testing::TempDir() + "/level_losses.gguf";
  engine::GgufWriter writer;
  writer.SetString("general.architecture", "llama");
  fill(writer);
  EXPECT_TRUE(writer.Write(path).ok());
  const auto file = engine::GgufFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  engine::ModelInfo info;
  info.levels.resize(3);
  return LossAboveFull(*file, info);
}

void SetLosses(const char* key, const std::vector<float>& losses, engine::GgufWriter& writer) {
  writer.SetArray<float>(key, losses);
}

TEST(LevelLossesTest, AreThoseWithLoraWhereThereIsOne) {
  const auto plain = [](engine::GgufWriter& writer) {
    writer.Set<float>("withy.level.whole_loss", 2);
    SetLosses("withy.level.loss", {4, 1.5}, writer);
  };
  EXPECT_THAT(LossesOf(plain), ElementsAre(2, 0, 0)) << "better than the full model counts as 0";
  EXPECT_THAT(LossesOf([&](engine::GgufWriter& writer) {
                plain(writer);
                SetLosses("withy.level.lora_loss", {2.5, 2.25}, writer);
              }),
              ElementsAre(FloatEq(0.5), FloatEq(0.25), 0));
}

TEST(LevelLossesTest, FilesThatDoNotSayHaveNone) {
  EXPECT_THAT(LossesOf([](engine::GgufWriter&) {}), IsEmpty());
  EXPECT_THAT(LossesOf([](engine::GgufWriter& writer) {
                SetLosses("withy.level.loss", {4, 3}, writer);
              }),
              IsEmpty());
  EXPECT_THAT(LossesOf([](engine::GgufWriter& writer) {
                writer.Set<float>("withy.level.whole_loss", 2);
                SetLosses("withy.level.loss", {4, 3, 2.5}, writer);
              }),
              IsEmpty())
      << "of other levels";
}

}  // namespace
}  // namespace withy::wire
