#include "cli/config/service_address.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/config.h"
#include "gtest/gtest.h"

namespace withy::cli {
namespace {

class ServiceAddressTest : public ::testing::Test {
 protected:
  ServiceAddressTest() {
    char pattern[] = "/tmp/withy-address-XXXXXX";
    dir_ = mkdtemp(pattern);
    config_.set_run_dir(dir_ + "/own");
    std::filesystem::create_directory(dir_ + "/own");
    config_.mutable_orchestrator()->set_listen("unix:" + dir_ + "/own/withy.sock");
  }
  ~ServiceAddressTest() override { std::filesystem::remove_all(dir_); }

  std::string dir_;
  v1::Config config_;
};

TEST_F(ServiceAddressTest, TheInstalledServiceServesWhereTheUserRunsNone) {
  const std::string own = "unix:" + dir_ + "/own/withy.sock", installed = dir_ + "/installed";
  EXPECT_EQ(ServiceAddress(config_, false, installed), own) << "neither is there";
  std::ofstream(installed) << "";
  EXPECT_EQ(ServiceAddress(config_, false, installed), "unix:" + installed);
  EXPECT_EQ(ServiceAddress(config_, true, installed), own) << "the configuration was named";
  std::ofstream(dir_ + "/own/withy.sock") << "";
  EXPECT_EQ(ServiceAddress(config_, false, installed), own);
}

TEST_F(ServiceAddressTest, ASocketOfAnotherGroupIsToldFromNone) {
  EXPECT_FALSE(MayNotConnect("unix:" + dir_ + "/none"));
  EXPECT_FALSE(MayNotConnect("127.0.0.1:1"));
  const std::string socket = dir_ + "/socket";
  std::ofstream(socket) << "";
  EXPECT_FALSE(MayNotConnect("unix:" + socket));
  chmod(socket.c_str(), 0400);
  if (geteuid() == 0) GTEST_SKIP() << "root may connect to every socket: run it as another user";
  EXPECT_TRUE(MayNotConnect("unix:" + socket));
}

}  // namespace
}  // namespace withy::cli
