#include "bench/profiler/governors.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::string_view kWanted[] = {"performance", "conservative", "powersave"};

// A recorded sysfs tree of two frequency policies.
class GovernorsTest : public ::testing::Test {
 protected:
  GovernorsTest() {
    Record("policy0", "schedutil", "conservative performance powersave schedutil");
    Record("policy4", "ondemand", "performance powersave ondemand");
    std::filesystem::create_directories(root_ + "/boost");
  }
  ~GovernorsTest() override { std::filesystem::remove_all(root_); }

  void Record(const std::string& policy, const std::string& governor, const std::string& offered) {
    std::filesystem::create_directories(root_ + "/" + policy);
    std::ofstream(File(policy)) << governor << '\n';
    std::ofstream(root_ + "/" + policy + "/scaling_available_governors") << offered << '\n';
  }
  std::string File(const std::string& policy) const {
    return root_ + "/" + policy + "/scaling_governor";
  }
  std::string Read(const std::string& policy) const {
    std::string word;
    std::ifstream(File(policy)) >> word;
    return word;
  }

  const std::string root_ = ::testing::TempDir() + "/withy_governors_" + std::to_string(getpid());
};

TEST_F(GovernorsTest, WhatAllCoresOfferIsSetAndTakenBack) {
  {
    Governors governors(root_);
    EXPECT_EQ(governors.first(), "schedutil");
    EXPECT_THAT(governors.Offered(kWanted), ElementsAre("performance", "powersave"));
    ASSERT_TRUE(governors.Set("powersave").ok());
    EXPECT_EQ(Read("policy0"), "powersave");
    EXPECT_EQ(Read("policy4"), "powersave");
  }
  EXPECT_EQ(Read("policy0"), "schedutil");
  EXPECT_EQ(Read("policy4"), "ondemand");
}

TEST_F(GovernorsTest, ABoardMayHaveNone) {
  const Governors governors(root_ + "/boost");
  EXPECT_EQ(governors.first(), "");
  EXPECT_THAT(governors.Offered(kWanted), IsEmpty());
  EXPECT_THAT(Governors(root_ + "/nowhere").Offered(kWanted), IsEmpty());
}

TEST_F(GovernorsTest, AFileThatCannotBeWrittenIsNamed) {
  Governors governors(root_);
  std::filesystem::remove(File("policy4"));
  std::filesystem::create_directories(File("policy4"));
  const absl::Status status = governors.Set("powersave");
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr(File("policy4")));
}

}  // namespace
}  // namespace withy::bench
