#include "engine/session/weight_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "engine/model/testing.h"
#include "engine/weights/packed_file.h"

namespace withy::engine {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

// Changes a byte of the weights where it lies.
void Spoil(const std::string& path) {
  const auto file = PackedFile::Open(path, PackedFile::Verify::kHead);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto at = static_cast<std::streamoff>((*file)->data_offset() + 100);
  std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(at);
  const int byte = stream.get();
  stream.seekp(at);
  stream.put(static_cast<char>(byte ^ 0x10));
}

class WeightGuardTest : public testing::Test {
 protected:
  WeightGuardTest()
      : recorder_(*telemetry::Recorder::Open(folder_.path(), "test", {})), metrics_(*recorder_) {}

  std::unique_ptr<Model> Open(ModelOptions::WeightPlace place, const std::string& path = "") {
    ModelOptions options;
    options.weight_place = place;
    options.on_damage = [this](const absl::Status& damage) { found_at_start_ = damage; };
    return OpenTiny(folder_, path.empty() ? gguf_ : path, options);
  }

  WeightGuardOptions Options(const std::string& path) {
    WeightGuardOptions options;
    options.model_path = path;
    options.cache_dir = folder_.path();
    options.bytes_per_second = uint64_t{1} << 30;
    options.interval = absl::Hours(1);
    options.busy = [this] {
      ++asked_;
      return busy_.load();
    };
    options.on_harmless = [this](const absl::Status& damage) {
      harmless_ = damage;
      told_.Notify();
    };
    options.on_unusable = [this](const absl::Status& why) {
      unusable_ = why;
      told_.Notify();
    };
    return options;
  }

  uint64_t Counted(const char* name) { return recorder_->counter({.name = name}).value(); }

  TestFolder folder_;
  const std::string gguf_ = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0);
  std::unique_ptr<telemetry::Recorder> recorder_;
  PackedFileMetrics metrics_;
  std::atomic<bool> busy_{false};
  std::atomic<int> asked_{0};
  absl::Notification told_;
  absl::Status harmless_;
  absl::Status unusable_;
  absl::Status found_at_start_;
};

TEST_F(WeightGuardTest, DamageOfMappedWeightsEndsTheModelAndIsPackedAgain) {
  std::string packed;
  {
    const auto model = Open(ModelOptions::WeightPlace::kMapped);
    packed = model->packed_path();
    EXPECT_EQ(model->info().kv_epoch, 0u);
    EXPECT_FALSE(model->weights_in_memory());
    const WeightGuard guard(*model, Options(gguf_), metrics_);
    Spoil(packed);
    ASSERT_TRUE(told_.WaitForNotificationWithTimeout(kPatience));
  }
  EXPECT_TRUE(absl::IsUnavailable(unusable_)) << unusable_;
  EXPECT_THAT(std::string(unusable_.message()),
              AllOf(HasSubstr(packed), HasSubstr("at byte"), HasSubstr("of tensor"),
                    HasSubstr("call again")));
  EXPECT_TRUE(harmless_.ok());
  EXPECT_FALSE(fs::exists(packed));
  const auto again = Open(ModelOptions::WeightPlace::kMapped);
  ASSERT_NE(again, nullptr);
  EXPECT_THAT(std::string(found_at_start_.message()), HasSubstr("at byte"));
  EXPECT_NE(again->info().kv_epoch, 0u);
  EXPECT_TRUE(PackedFile::Open(packed, PackedFile::Verify::kFull).ok());
}

TEST_F(WeightGuardTest, DamageBehindWeightsInMemoryHarmsNoAnswer) {
  const auto model = Open(ModelOptions::WeightPlace::kCopied);
  EXPECT_TRUE(model->weights_in_memory());
  {
    const WeightGuard guard(*model, Options(gguf_), metrics_);
    Spoil(model->packed_path());
    ASSERT_TRUE(told_.WaitForNotificationWithTimeout(kPatience));
  }
  EXPECT_TRUE(unusable_.ok());
  EXPECT_THAT(std::string(harmless_.message()),
              AllOf(HasSubstr("at byte"), HasSubstr("the file was packed again")));
  EXPECT_EQ(Counted("withy_packed_files_damaged_total"), 1u);
  EXPECT_TRUE(PackedFile::Open(model->packed_path(), PackedFile::Verify::kFull).ok());
  EXPECT_NE(Open(ModelOptions::WeightPlace::kCopied), nullptr);
  EXPECT_TRUE(found_at_start_.ok());
}

// Its next call reads the weights again, from the file.
TEST_F(WeightGuardTest, DamageWhileAModelRestsEndsIt) {
  const auto model = Open(ModelOptions::WeightPlace::kCopied);
  ASSERT_TRUE(model->Rest());
  EXPECT_FALSE(model->weights_in_memory());
  const WeightGuard guard(*model, Options(gguf_), metrics_);
  Spoil(model->packed_path());
  ASSERT_TRUE(told_.WaitForNotificationWithTimeout(kPatience));
  EXPECT_TRUE(absl::IsUnavailable(unusable_)) << unusable_;
  EXPECT_TRUE(harmless_.ok());
}

TEST_F(WeightGuardTest, BehindWeightsInMemoryAMissingGgufIsNamed) {
  const auto model = Open(ModelOptions::WeightPlace::kCopied);
  fs::remove(gguf_);
  const WeightGuard guard(*model, Options(gguf_), metrics_);
  Spoil(model->packed_path());
  ASSERT_TRUE(told_.WaitForNotificationWithTimeout(kPatience));
  EXPECT_TRUE(unusable_.ok());
  EXPECT_THAT(std::string(harmless_.message()),
              AllOf(HasSubstr("answers are right"), HasSubstr("put it back")));
  EXPECT_TRUE(fs::exists(model->packed_path()));
}

TEST_F(WeightGuardTest, WithoutItsGgufTheFileIsKeptAndNamed) {
  std::string packed;
  {
    const auto model = Open(ModelOptions::WeightPlace::kMapped);
    packed = model->packed_path();
  }
  fs::remove(gguf_);
  const auto model = Open(ModelOptions::WeightPlace::kMapped, packed);
  {
    const WeightGuard guard(*model, Options(packed), metrics_);
    Spoil(packed);
    ASSERT_TRUE(told_.WaitForNotificationWithTimeout(kPatience));
  }
  EXPECT_THAT(std::string(unusable_.message()), AllOf(HasSubstr(packed), HasSubstr("put it back")));
  EXPECT_TRUE(fs::exists(packed));
  EXPECT_EQ(Counted("withy_packed_files_damaged_total"), 1u);
  ModelOptions options;
  options.cache_dir = folder_.path();
  options.weight_place = ModelOptions::WeightPlace::kMapped;
  const absl::Status refused = Model::Open(packed, options).status();
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("at byte"));
}

TEST_F(WeightGuardTest, NothingIsReadWhileCallsRun) {
  const auto model = Open(ModelOptions::WeightPlace::kMapped);
  busy_ = true;
  WeightGuardOptions options = Options(gguf_);
  options.interval = absl::ZeroDuration();  // due at once
  const WeightGuard guard(*model, std::move(options), metrics_);
  const absl::Time deadline = absl::Now() + kPatience;
  while (asked_ < 5 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  ASSERT_GE(asked_, 5);
  EXPECT_EQ(Counted("withy_packed_scrubbed_bytes_total"), 0u);
  busy_ = false;
  while (Counted("withy_packed_scrubbed_bytes_total") == 0 && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_GT(Counted("withy_packed_scrubbed_bytes_total"), 0u);
  EXPECT_FALSE(told_.HasBeenNotified());
}

// A change of times alone: no call is answered until every byte was found to be as before.
TEST_F(WeightGuardTest, AFileThatWasWrittenToIsCheckedBeforeTheNextCall) {
  const auto model = Open(ModelOptions::WeightPlace::kMapped);
  const auto file = PackedFile::Open(model->packed_path());
  ASSERT_TRUE(file.ok());
  busy_ = true;  // which does not matter
  WeightGuard guard(*model, Options(gguf_), metrics_);
  EXPECT_TRUE(guard.Trust().ok());
  fs::last_write_time(model->packed_path(), fs::file_time_type::clock::now());
  const absl::Time deadline = absl::Now() + kPatience;
  while (!guard.Trust().ok() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(guard.Trust().ok()) << guard.Trust();
  EXPECT_GE(Counted("withy_packed_scrubbed_bytes_total"), (*file)->data_bytes());
  EXPECT_FALSE(told_.HasBeenNotified());
}

TEST_F(WeightGuardTest, NoCallIsAnsweredWithAFileThatIsDamaged) {
  const auto model = Open(ModelOptions::WeightPlace::kMapped);
  WeightGuard guard(*model, Options(gguf_), metrics_);
  Spoil(model->packed_path());
  const absl::Status refused = guard.Trust();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_TRUE(told_.WaitForNotificationWithTimeout(kPatience));
}

}  // namespace
}  // namespace withy::engine
