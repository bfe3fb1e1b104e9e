#include "engine/session/kv_errors.h"

#include <gtest/gtest.h>

#include "engine/model/testing.h"

namespace withy::engine {
namespace {

class KvErrorsTest : public testing::Test {
 protected:
  KvErrorsTest() : model_(OpenTiny(folder_, WriteTiny(folder_, TinyShape(), GgmlType::kF32))) {
    tokens_ = SomeTokens(kKvErrorTokens, model_->info().vocab_size);
  }

  const TestFolder folder_;
  const std::unique_ptr<Model> model_;
  std::vector<int32_t> tokens_;
};

TEST_F(KvErrorsTest, FewerBitsLoseMore) {
  double done = 0;
  const auto errors = MeasureKvErrors(*model_, tokens_, nullptr, [&](double share) {
    EXPECT_GT(share, done);
    done = share;
  });
  ASSERT_TRUE(errors.ok()) << errors.status();
  EXPECT_NEAR(done, 1, 1e-9);
  ASSERT_EQ(errors->size(), 4u);
  EXPECT_EQ((*errors)[0].format, KvFormat::kQ8);
  for (size_t i = 1; i < errors->size(); ++i) {
    EXPECT_GT((*errors)[i].divergence, (*errors)[i - 1].divergence)
        << KvFormatName((*errors)[i].format);
  }
}

TEST_F(KvErrorsTest, AShortWindowIsEnough) {
  const auto few = std::span(tokens_).first(kLeastKvErrorTokens);
  const auto errors = MeasureKvErrors(*model_, few, nullptr);
  ASSERT_TRUE(errors.ok()) << errors.status();
  EXPECT_GT(errors->back().divergence, errors->front().divergence);
  EXPECT_TRUE(absl::IsInvalidArgument(
      MeasureKvErrors(*model_, few.first(few.size() - 1), nullptr).status()));
}

TEST_F(KvErrorsTest, IsCancelled) {
  const std::atomic<bool> stop{true};
  EXPECT_TRUE(absl::IsCancelled(MeasureKvErrors(*model_, tokens_, &stop).status()));
}

}  // namespace
}  // namespace withy::engine
