#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "cli/config/doctor_checks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class DoctorTest : public ::testing::Test {
 protected:
  DoctorTest() {
    char pattern[] = "/tmp/withy-doctor-XXXXXX";
    dir_ = mkdtemp(pattern);
    config_.set_state_dir(dir_);
    config_.mutable_model()->set_path("/models/served.gguf");
  }
  ~DoctorTest() override { fs::remove_all(dir_); }

  void Write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(dir_ + "/" + name).parent_path());
    std::ofstream(dir_ + "/" + name) << text;
  }
  std::string State() const {
    std::string all;
    for (const Finding& finding : LookAtState(config_)) {
      absl::StrAppend(&all, finding.error ? "wrong: " : "note: ", finding.what, " -> ",
                      finding.remedy, "\n");
    }
    return all;
  }

  std::string dir_;
  v1::Config config_;
};

TEST_F(DoctorTest, AStateThatIsWholeOrNewIsFine) {
  EXPECT_THAT(State(), Not(HasSubstr("CURRENT")));
  Write("records/CURRENT", "MANIFEST-000001\n");
  Write("master.key", std::string(32, 'k'));
  Write("packed/served-484ac072.withy", "weights");
  EXPECT_THAT(State(), Not(HasSubstr("master")));
  EXPECT_THAT(State(), Not(HasSubstr("packed")));
}

TEST_F(DoctorTest, ADamagedDatabaseAndKeyAreNamedWithTheRemedy) {
  Write("records/CURRENT", "");
  Write("master.key", "short");
  Write("packed/gone-484ac072.withy", "weights");
  const std::string state = State();
  EXPECT_THAT(state, HasSubstr("wrong: " + dir_ + "/records/CURRENT is missing or empty"));
  EXPECT_THAT(state, HasSubstr("store restore"));
  EXPECT_THAT(state, HasSubstr("has 5 bytes instead of 32"));
  EXPECT_THAT(state, HasSubstr("note: " + dir_ + "/packed/gone-484ac072.withy"));
}

TEST_F(DoctorTest, AMissingStateDirectoryIsNamed) {
  config_.set_state_dir(dir_ + "/none");
  EXPECT_THAT(State(), HasSubstr("state_dir " + dir_ + "/none is not there"));
}

TEST_F(DoctorTest, ErrorsOfTheConfigurationAreFindings) {
  CheckedConfig checked{config_, {absl::InvalidArgumentError("no field thread")}};
  const std::vector<Finding> findings = LookAtConfig(checked);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_THAT(findings[0].what, HasSubstr("no field thread"));
  EXPECT_THAT(findings[1].what, HasSubstr("/models/served.gguf is not there"));
}

TEST_F(DoctorTest, UnitsSayWhatTheyWaitFor) {
  EXPECT_THAT(LookAtUnit("u", "LoadState=not-found\nActiveState=inactive\n"), IsEmpty());
  EXPECT_THAT(LookAtUnit("u", "LoadState=loaded\nActiveState=active\nStatusText=ready\n"),
              IsEmpty());
  const auto failed = LookAtUnit(
      "u", "LoadState=loaded\nActiveState=failed\nExecMainStatus=2\nStatusText=x=1 is wrong\n");
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].what, "u has failed: x=1 is wrong");
  EXPECT_THAT(failed[0].remedy, HasSubstr("config check"));
  const auto waits =
      LookAtUnit("u", "LoadState=loaded\nActiveState=activating\nStatusText=cannot start: x\n");
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_THAT(waits[0].remedy, HasSubstr("by itself"));
  EXPECT_EQ(
      LookAtUnit("u", "LoadState=loaded\nActiveState=active\nStatusText=NOT_SERVING: y\n").size(),
      1u);
}

}  // namespace
}  // namespace withy::cli
