#include "draft_worker/draft_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model/testing.h"

namespace withy::draft_worker {
namespace {

using testing::HasSubstr;

TEST(DraftFitTest, TheVocabularyDecides) {
  engine::TestFolder target_folder, same_folder, other_folder;
  engine::SynthShape shape = engine::TinyShape();
  const std::string target = engine::WriteTiny(target_folder, shape, engine::GgmlType::kQ8_0);
  shape.layers += 1;
  const std::string same = engine::WriteTiny(same_folder, shape, engine::GgmlType::kQ8_0);
  shape.vocab_size += 64;
  const std::string other = engine::WriteTiny(other_folder, shape, engine::GgmlType::kQ8_0);
  const auto fits = WhyNoDraftFor(same, target);
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_EQ(*fits, "");
  const auto why = WhyNoDraftFor(other, target);
  ASSERT_TRUE(why.ok()) << why.status();
  EXPECT_THAT(*why, HasSubstr(other));
  EXPECT_THAT(*why, HasSubstr(target));
  EXPECT_TRUE(absl::IsNotFound(WhyNoDraftFor(target, "/nowhere/target.gguf").status()));
}

}  // namespace
}  // namespace withy::draft_worker
