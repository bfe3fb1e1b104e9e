#include "cli/config/config_install.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// With the defaults of the units.
v1::Config Installed(const std::string& text) {
  auto config = ParseConfig(text, "test");
  EXPECT_TRUE(config.ok()) << config.status();
  if (config->run_dir().empty()) config->set_run_dir("/run/withy");
  if (config->state_dir().empty()) config->set_state_dir("/var/lib/withy");
  for (v1::ModelConfig* model : {config->mutable_model(), config->mutable_draft()}) {
    if (model->path().empty()) model->set_path("/usr/share/withy/models/pocket.gguf");
  }
  EXPECT_TRUE(FillDefaults(&*config).ok());
  return *config;
}

std::string Slurp(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(UnitDropInTest, TheDefaultsNeedNone) {
  EXPECT_EQ(UnitDropIn(Installed("")), "");
  EXPECT_EQ(UnitDropIn(Installed("orchestrator { listen: \"127.0.0.1:7411\" }")), "");
  EXPECT_EQ(UnitDropIn(Installed("orchestrator { http_listen: \"0.0.0.0:80\" } "
                                 "tls { allow_plaintext_tcp: true }")),
            "");
}

TEST(UnitDropInTest, DisksAreWaitedFor) {
  const std::string text = UnitDropIn(
      Installed("model { path: \"/data/my model.gguf\" } state_dir: \"/mnt/100%/withy\""));
  EXPECT_THAT(text, HasSubstr("RequiresMountsFor=\"/data/my model.gguf\" /mnt/100%%/withy\n"));
  EXPECT_THAT(text, Not(HasSubstr("ProtectHome")));
}

TEST(UnitDropInTest, HomesAreOpenedAsFarAsNeeded) {
  const std::string text = UnitDropIn(
      Installed("model { path: \"/home/me/models/a.gguf\" } state_dir: \"/home/me/state\""));
  EXPECT_THAT(text, HasSubstr("ProtectHome=tmpfs\nBindReadOnlyPaths=-/home/me/models/a.gguf\n"
                              "BindPaths=-/home/me/state\n"));
  EXPECT_THAT(UnitDropIn(Installed("store { master_key_path: \"/tmp/key\" }")),
              HasSubstr("PrivateTmp=no"));
  EXPECT_THAT(UnitDropIn(Installed("model { path: \"/home/me/m-00001-of-00002.gguf\" }")),
              HasSubstr("BindReadOnlyPaths=-/home/me/m-00001-of-00002.gguf "
                        "-/home/me/m-00002-of-00002.gguf\n"));
  EXPECT_THAT(UnitDropIn(Installed("store { listen: \"unix:/etc/withy/run/store.sock\" }")),
              HasSubstr("ReadWritePaths=-/etc/withy/run\n"));
}

// Every line, in the order of sections that systemd needs.
TEST(UnitDropInTest, IsOneWholeFile) {
  EXPECT_EQ(
      UnitDropIn(Installed(
          "model { path: \"/home/me/a \\\"b\\\".gguf\" } state_dir: \"/etc/withy/state\" "
          "store { master_key_path: \"/var/tmp/key\" } "
          "orchestrator { http_listen: \"10.0.0.2:80\" } tls { allow_plaintext_tcp: true }")),
      "# Made by `withyctl config install` from the configuration; the next one replaces it.\n"
      "[Unit]\n"
      "RequiresMountsFor=\"/home/me/a \\\"b\\\".gguf\" /etc/withy/state /var/tmp/key\n"
      "Wants=network-online.target\n"
      "After=network-online.target\n"
      "[Service]\n"
      "ReadWritePaths=-/etc/withy/state\n"
      "ProtectHome=tmpfs\n"
      "BindReadOnlyPaths=\"-/home/me/a \\\"b\\\".gguf\"\n"
      "PrivateTmp=no\n");
}

TEST(UnitDropInTest, AnAddressOfTheNetworkIsWaitedFor) {
  const std::string text =
      UnitDropIn(Installed("orchestrator { listen: \"10.0.0.2:7411\" } tls { certificate_file: "
                           "\"/home/me/board.pem\" key_file: \"/mnt/keys/board.key\" }"));
  EXPECT_THAT(text, HasSubstr("After=network-online.target"));
  // What TLS reads is mounted and may be read.
  EXPECT_THAT(text, HasSubstr("RequiresMountsFor=/home/me/board.pem /mnt/keys/board.key\n"));
  EXPECT_THAT(text, HasSubstr("BindReadOnlyPaths=-/home/me/board.pem\n"));
}

TEST(InstallConfigTest, WritesTheFileAndTheDropInsAndTakesThemAway) {
  char pattern[] = "/tmp/withy-install-XXXXXX";
  const std::string root = mkdtemp(pattern);
  const std::string drop_in =
      root + "/etc/systemd/system/withy-model-worker.service.d/50-configuration.conf";
  const std::string text = "model { path: \"/data/none.gguf\" }\n";
  ASSERT_TRUE(InstallConfig(text, Installed(text), root).ok());
  EXPECT_EQ(Slurp(root + "/etc/withy/withy.textproto"), text);
  EXPECT_THAT(Slurp(drop_in), HasSubstr("RequiresMountsFor=/data/none.gguf"));
  EXPECT_EQ(fs::status(root + "/etc/withy/withy.textproto").permissions(),
            fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read |
                fs::perms::others_read);
  EXPECT_THAT(MissingFiles(Installed(text)), ElementsAre(HasSubstr("/data/none.gguf")));
  ASSERT_TRUE(InstallConfig("", Installed(""), root).ok());
  EXPECT_FALSE(fs::exists(drop_in));
  EXPECT_EQ(Slurp(root + "/etc/withy/withy.textproto"), "");
  fs::remove_all(root);
}

}  // namespace
}  // namespace withy::cli
