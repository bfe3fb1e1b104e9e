// How the opening of a chosen model goes, and what is written down of it.
#include "model_worker/model_change.h"

#include <memory>
#include <string>

#include "base/config.h"
#include "base/config/model_choice.h"
#include "engine/model/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/daemon.h"
#include "rpc/error_reason.h"

namespace withy::model_worker {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class OpenChosenTest : public ::testing::Test {
 protected:
  void Choose() {
    v1::ModelChoice choice;
    choice.set_configured_path("/configured.gguf");
    choice.set_path("/chosen.gguf");
    ASSERT_TRUE(WriteModelChoice(folder_.path(), choice).ok());
  }
  // A running worker, configured so, is told to serve `path`.
  void Choose(const std::string& configured, const std::string& path) {
    const absl::Status written = WriteChosen(Started(configured), path);
    ASSERT_TRUE(written.ok()) << written;
  }
  // It is killed while it opens what was chosen.
  void EndWhileOpening() {
    v1::ModelChoice choice = Written();
    choice.set_begun(true);
    ASSERT_TRUE(WriteModelChoice(folder_.path(), choice).ok());
  }
  bool HasWayBack() const {
    const auto before = ReadChoiceBefore(folder_.path());
    EXPECT_TRUE(before.ok()) << before.status();
    return before.ok() && before->has_value();
  }
  v1::ModelChoice Written() const {
    const auto choice = ReadModelChoice(folder_.path());
    EXPECT_TRUE(choice.ok() && choice->has_value()) << choice.status();
    return choice.ok() && choice->has_value() ? **choice : v1::ModelChoice();
  }
  // What a process that is started with `path` in its configuration has.
  v1::Config Started(const std::string& path) const {
    v1::Config config;
    config.set_state_dir(folder_.path());
    config.mutable_model()->set_path(path);
    EXPECT_TRUE(FillDefaults(&config).ok());
    return config;
  }
  // Such a process opens its model; OK opens none.
  absl::Status Open(const std::string& path, const absl::Status& result) {
    const v1::Config config = Started(path);
    opened_.clear();
    const auto open = [&]() -> absl::StatusOr<std::unique_ptr<engine::ServedModel>> {
      opened_ = config.model().path();
      if (!result.ok()) return result;
      return nullptr;
    };
    const absl::Status status = OpenChosen(config, open).status();
    refused_ = RefusedChoice(config);
    return status;
  }

  const engine::TestFolder folder_;
  std::string opened_;
  std::string refused_;
};

TEST_F(OpenChosenTest, OneThatCannotBeOpenedIsGivenUp) {
  Choose();
  const absl::Status status = Open("/configured.gguf", absl::DataLossError("a hole"));
  EXPECT_EQ(opened_, "/chosen.gguf");
  EXPECT_EQ(NamedReason(status), rpc::kBeginAnew);
  EXPECT_TRUE(Open("/configured.gguf", absl::OkStatus()).ok());
  EXPECT_EQ(opened_, "/configured.gguf");
  EXPECT_THAT(refused_, HasSubstr("/chosen.gguf was chosen and cannot be served: a hole"));
}

TEST_F(OpenChosenTest, OneThatWasServedIsTriedAgain) {
  Choose();
  EXPECT_TRUE(Open("/configured.gguf", absl::OkStatus()).ok());
  EXPECT_TRUE(Written().served());
  const absl::Status status = Open("/configured.gguf", absl::NotFoundError("no such disk"));
  EXPECT_EQ(status.message(), "no such disk");
  EXPECT_EQ(opened_, "/chosen.gguf");
  EXPECT_TRUE(Written().served());
}

// It waits for room, until there is some or the configuration names another model.
TEST_F(OpenChosenTest, OneWithoutRoomIsTriedAgainUntilAnotherIsConfigured) {
  Choose();
  for (int tries = 0; tries < 2; ++tries) {
    const absl::Status status = Open("/configured.gguf", absl::ResourceExhaustedError("disk full"));
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_EQ(opened_, "/chosen.gguf");
    EXPECT_EQ(refused_, "");
  }
  EXPECT_TRUE(Open("/smaller.gguf", absl::OkStatus()).ok());
  EXPECT_EQ(opened_, "/smaller.gguf");
  EXPECT_TRUE(Open("/configured.gguf", absl::OkStatus()).ok()) << "there is room";
  EXPECT_EQ(opened_, "/chosen.gguf");
  EXPECT_TRUE(Written().served());
  EXPECT_EQ(Written().failure(), "");
}

// Where the configuration has come to name what was chosen before.
TEST_F(OpenChosenTest, OneOfJustNowIsForThePresentConfiguration) {
  Choose();
  const absl::Status status = Open("/other.gguf", absl::OkStatus());
  EXPECT_EQ(NamedReason(status), rpc::kBeginAnew);
  EXPECT_EQ(opened_, "");
  EXPECT_TRUE(Open("/other.gguf", absl::OkStatus()).ok());
  EXPECT_EQ(opened_, "/chosen.gguf");
}

// Not the configured one: what was chosen before it was served, and still can be.
TEST_F(OpenChosenTest, OneThatCannotBeOpenedGivesWayToTheOneServedBefore) {
  Choose("/configured.gguf", "/first.gguf");
  EXPECT_TRUE(Open("/configured.gguf", absl::OkStatus()).ok());
  EXPECT_FALSE(HasWayBack());

  Choose("/configured.gguf", "/second.gguf");
  EndWhileOpening();
  EXPECT_TRUE(Open("/configured.gguf", absl::OkStatus()).ok());
  EXPECT_EQ(opened_, "/first.gguf");
  EXPECT_THAT(refused_, HasSubstr("/second.gguf was chosen and cannot be served: the process"));

  Choose("/configured.gguf", "/third.gguf");
  const absl::Status status = Open("/configured.gguf", absl::DataLossError("a hole"));
  EXPECT_EQ(opened_, "/third.gguf");
  EXPECT_EQ(NamedReason(status), rpc::kBeginAnew);
  EXPECT_TRUE(Open("/configured.gguf", absl::OkStatus()).ok());
  EXPECT_EQ(opened_, "/first.gguf");
  EXPECT_THAT(refused_, HasSubstr("/third.gguf was chosen and cannot be served: a hole"));

  EXPECT_TRUE(Open("/other.gguf", absl::OkStatus()).ok());
  EXPECT_EQ(opened_, "/other.gguf") << "it was chosen for another configuration";
  EXPECT_THAT(refused_, IsEmpty());

  Choose("/configured.gguf", "/second.gguf");
  EXPECT_TRUE(HasWayBack());
  EXPECT_TRUE(Open("/configured.gguf", absl::OkStatus()).ok());
  EXPECT_EQ(opened_, "/second.gguf");
  EXPECT_THAT(refused_, IsEmpty());
  EXPECT_FALSE(HasWayBack()) << "it is served now";
}

// The same file may be what ends the process.
TEST_F(OpenChosenTest, AChoiceIsNoWayBackFromItself) {
  Choose("/configured.gguf", "/first.gguf");
  EXPECT_TRUE(Open("/configured.gguf", absl::OkStatus()).ok());
  Choose("/configured.gguf", "/first.gguf");
  EndWhileOpening();
  EXPECT_TRUE(Open("/configured.gguf", absl::OkStatus()).ok());
  EXPECT_EQ(opened_, "/configured.gguf");
}

TEST_F(OpenChosenTest, TheConfiguredModelEndsAllChoices) {
  Choose("/configured.gguf", "/first.gguf");
  EXPECT_TRUE(Open("/configured.gguf", absl::OkStatus()).ok());
  Choose("/configured.gguf", "/second.gguf");
  EXPECT_TRUE(HasWayBack());
  Choose("/configured.gguf", "/configured.gguf");
  EXPECT_FALSE(HasWayBack());
  EXPECT_TRUE(Open("/configured.gguf", absl::OkStatus()).ok());
  EXPECT_EQ(opened_, "/configured.gguf");
}

}  // namespace
}  // namespace withy::model_worker
