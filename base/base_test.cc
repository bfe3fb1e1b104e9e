// Tests of base/: configuration, ids, queues, shared memory between two mappings.
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bounded_queue.h"
#include "base/charts/line_chart.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/config/defaults.h"
#include "base/config/model_choice.h"
#include "base/fd_passing.h"
#include "base/files.h"
#include "base/ids.h"
#include "base/keep_in_memory.h"
#include "base/listen_address.h"
#include "base/shared_memory.h"
#include "base/thread_role.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Config, EmptyFileGivesAWorkingConfiguration) {
  proto::Config config;
  ASSERT_TRUE(FillDefaults(&config).ok());
  EXPECT_THAT(config.orchestrator().listen(), HasSubstr("unix:"));
  EXPECT_GT(config.model().threads(), 0u);
  EXPECT_EQ(config.store().arena_bytes(), uint64_t{256} << 20);
}

TEST(Config, UnknownFieldIsNamedWithItsLine) {
  const auto config = ParseConfig("log_level: \"info\"\nmodle { }\n", "withy.textproto");
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("withy.textproto:2:"));
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("modle"));
}

TEST(Config, OverridesWinInOrderAndNameWhatIsWrong) {
  proto::Config config;
  ASSERT_TRUE(ApplyOverride("model.path=/m/a \"b\".gguf", &config).ok());
  ASSERT_TRUE(ApplyOverride("model.threads=3", &config).ok());
  ASSERT_TRUE(ApplyOverride("model.threads=2", &config).ok());
  EXPECT_EQ(config.model().path(), "/m/a \"b\".gguf");
  EXPECT_EQ(config.model().threads(), 2u);
  ASSERT_TRUE(ApplyOverride("model.threads=0", &config).ok());
  EXPECT_EQ(config.model().threads(), 0u) << "back to the default";
  config.mutable_orchestrator()->set_bind_app_over_tcp(true);
  ASSERT_TRUE(ApplyOverride("orchestrator.bind_app_over_tcp=false", &config).ok());
  EXPECT_FALSE(config.orchestrator().bind_app_over_tcp());
  EXPECT_THAT(std::string(ApplyOverride("model.thread=2", &config).message()),
              HasSubstr("'thread'"));
  EXPECT_THAT(std::string(ApplyOverride("model=2", &config).message()), HasSubstr("'model'"));
  EXPECT_THAT(std::string(ApplyOverride("model.threads", &config).message()),
              HasSubstr("field.path=value"));
}

// The message of the error that FillDefaults returns.
std::string Refusal(const std::string& text) {
  absl::StatusOr<proto::Config> config = ParseConfig(text, "test");
  EXPECT_TRUE(config.ok()) << config.status();
  const absl::Status status = FillDefaults(&*config);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text << ": " << status;
  return std::string(status.message());
}

bool IsTaken(const std::string& text) {
  absl::StatusOr<proto::Config> config = ParseConfig(text, "test");
  return config.ok() && FillDefaults(&*config).ok();
}

TEST(Config, RangeErrorsNameTheWholePathValueAndLimits) {
  EXPECT_THAT(Refusal("store { memory_pressure_percent: 101 }"),
              HasSubstr("store.memory_pressure_percent is 101; it must be"));
  EXPECT_THAT(Refusal("store { kv_daily_write_bytes: 5 }"),
              HasSubstr("store.kv_daily_write_bytes is 5; it must be"));
  EXPECT_THAT(Refusal("store { arena_bytes: 5 }"), HasSubstr("store.arena_bytes is 5; it must be"));
  EXPECT_THAT(Refusal("store { tokens_per_context: 15 }"),
              HasSubstr("store.tokens_per_context is 15; it must be between 16 and"));
  EXPECT_THAT(Refusal("store { bytes_per_app: 65535 }"),
              HasSubstr("store.bytes_per_app is 65535; it must be between 65536 and"));
  EXPECT_THAT(Refusal("store { disk_bytes: 1000000 }"),
              HasSubstr("store.disk_bytes is 1000000; it must be between 33554432 and"));
  EXPECT_THAT(Refusal("store { master_key_path: \"master.key\" }"),
              HasSubstr("store.master_key_path is \"master.key\"; it must be an absolute path"));
  EXPECT_THAT(
      Refusal("store { public_system_prompt_files: \"prompt.txt\" }"),
      HasSubstr("store.public_system_prompt_files is \"prompt.txt\"; it must be an absolute"));
  EXPECT_THAT(Refusal("store { public_system_prompts: \"\" }"),
              HasSubstr("store.public_system_prompts is \"\"; it must not be empty"));
  std::string many;
  for (int i = 0; i < 65; ++i) many += "public_system_prompts: \"a\" ";
  EXPECT_THAT(Refusal("store { " + many + "}"),
              HasSubstr("store.public_system_prompts is a list of 65; at most 64"));
  EXPECT_THAT(Refusal("store { kv_disk_bytes_per_second: 300 }"),
              HasSubstr("store.kv_disk_bytes_per_second is 300; it must be between 1048576"));
  for (const std::string section : {"orchestrator", "model", "draft"}) {
    if (section != "orchestrator") {
      EXPECT_THAT(Refusal(section + " { weight_budget_bytes: 300 }"),
                  HasSubstr(section + ".weight_budget_bytes is 300; it must be between 1048576"));
      EXPECT_THAT(Refusal(section + " { scrub_bytes_per_s: 300 }"),
                  HasSubstr(section + ".scrub_bytes_per_s is 300; it must be between 65536"));
      EXPECT_THAT(Refusal(section + " { scrub_interval_s: 40000000 }"),
                  HasSubstr(section + ".scrub_interval_s is 40000000; it must be between 1"));
      auto never = ParseConfig(section + " { scrub_bytes_per_s: 0 }", "test");
      EXPECT_TRUE(never.ok() && FillDefaults(&*never).ok());
      for (const char* rows : {"1", "257"}) {
        EXPECT_THAT(
            Refusal(section + " { tree_rows: " + rows + " }"),
            HasSubstr(section + ".tree_rows is " + rows + "; it must be between 2 and 256"));
      }
    }
    EXPECT_EQ(Refusal(section + " { queue_limit: 4000000000 }"),
              section + ".queue_limit is 4000000000; it must be between 1 and 100000");
  }
}

TEST(Config, WebOriginsAreAsBrowsersSendThem) {
  auto config = ParseConfig(
      "orchestrator { http_web_origins: \"http://localhost:3000\" "
      "http_web_origins: \"https://a.example\" http_web_origins: \"*\" }",
      "test");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(FillDefaults(&*config), absl::OkStatus());
  for (const char* wrong :
       {"localhost", "http://", "://a", "http://a/", "http://a/b", "http://*", "http://a b", ""}) {
    EXPECT_THAT(Refusal(std::string("orchestrator { http_web_origins: \"") + wrong + "\" }"),
                HasSubstr("orchestrator.http_web_origins"))
        << wrong;
  }
}

TEST(Config, DefaultSamplingIsInRangeOrNamed) {
  for (const std::string section : {"model", "draft"}) {
    for (const std::string field :
         {"temperature: -0.5", "temperature: 11", "temperature: nan", "top_p: 0", "top_p: 1.5",
          "min_p: 1", "repetition_penalty: 0", "repetition_penalty: 11", "repetition_window: 65537",
          "seed: 4"}) {
      EXPECT_THAT(Refusal(section + " { sampling { " + field + " } }"),
                  HasSubstr(section + ".sampling." + field.substr(0, field.find(':')) + " is "));
    }
    EXPECT_THAT(Refusal(section + " { max_tokens: 1048577 }"),
                HasSubstr(section + ".max_tokens is 1048577; it must be between 1 and 1048576"));
  }
  proto::Config config;
  ASSERT_TRUE(ApplyOverride("model.sampling.temperature=0.5", &config).ok());
  ASSERT_TRUE(ApplyOverride("draft.sampling.temperature=0", &config).ok());
  ASSERT_TRUE(FillDefaults(&config).ok());
  EXPECT_EQ(config.model().sampling().temperature(), 0.5f);
  EXPECT_TRUE(config.draft().sampling().has_temperature());
}

TEST(Config, TheShippedModelIsGreedyAndAnotherAsItsFileSays) {
  proto::Config config;
  config.mutable_draft()->set_path("/m/small.gguf");
  ASSERT_TRUE(FillDefaults(&config).ok());
  EXPECT_TRUE(config.model().sampling().has_temperature());
  EXPECT_EQ(config.model().sampling().temperature(), 0);
  EXPECT_FALSE(config.draft().sampling().has_temperature());
}

TEST(Config, AChosenModelStandsForTheConfiguredOneThatItWasChosenFor) {
  const std::string dir = ::testing::TempDir() + "/withy-choice-" + std::to_string(getpid());
  std::filesystem::create_directories(dir);
  const auto filled = [&dir](const std::string& model) {
    auto config = ParseConfig("state_dir: \"" + dir + "\" model { " + model + " }", "test");
    EXPECT_TRUE(config.ok()) << config.status();
    EXPECT_TRUE(FillDefaults(&*config).ok());
    return config->model();
  };
  const std::string named = R"(path: "/a.gguf" chat_template: "plain" threads: 3)";
  proto::ModelChoice choice;
  choice.set_configured_path("/a.gguf");
  choice.set_path("/b.gguf");
  ASSERT_TRUE(WriteModelChoice(dir, choice).ok());
  EXPECT_EQ(filled(named).path(), "/b.gguf");
  EXPECT_EQ(filled(named).chat_template(), "") << "that is of the other file";
  EXPECT_EQ(filled(named).threads(), 3u);
  EXPECT_EQ(filled(R"(path: "/c.gguf")").path(), "/c.gguf");
  choice.set_begun(true);
  ASSERT_TRUE(WriteModelChoice(dir, choice).ok());
  EXPECT_EQ(filled(named).path(), "/a.gguf") << "it ended the process that opened it";
  choice.set_served(true);
  ASSERT_TRUE(WriteModelChoice(dir, choice).ok());
  EXPECT_EQ(filled(named).path(), "/b.gguf");
  // Of the pocket model that nobody named.
  const std::string pocket = filled("").path();
  choice.set_configured_path(pocket);
  ASSERT_TRUE(WriteModelChoice(dir, choice).ok());
  EXPECT_EQ(filled("").path(), "/b.gguf");
  EXPECT_FALSE(filled("").sampling().has_temperature()) << "only the pocket model is greedy";
  ASSERT_TRUE(WriteModelChoice(dir, proto::ModelChoice()).ok());
  EXPECT_EQ(filled("").path(), pocket);
  std::filesystem::remove_all(dir);
}

TEST(Config, WhatEachProcessWouldReadDifferentlyIsRefused) {
  EXPECT_THAT(Refusal("run_dir: \"relative\""), HasSubstr("run_dir is \"relative\""));
  EXPECT_THAT(Refusal("state_dir: \"./state\""), HasSubstr("state_dir is \"./state\""));
}

TEST(Config, ALogLevelHasOneOfTheNamesInAnyCase) {
  EXPECT_THAT(Refusal("log_level: \"loud\""), HasSubstr("trace, debug, info, warn or error"));
  proto::Config config;
  config.set_log_level("Debug");
  ASSERT_TRUE(FillDefaults(&config).ok());
  EXPECT_EQ(config.log_level(), "debug");
}

TEST(Config, WhatIsNoAddressIsRefusedWithBothForms) {
  for (const std::string field : {"orchestrator", "model", "draft", "store", "profiler"}) {
    const std::string message = Refusal(field + " { listen: \"foo\" }");
    EXPECT_THAT(message, HasSubstr(field + ".listen is \"foo\""));
    EXPECT_THAT(message, HasSubstr("unix:/PATH, or HOST:PORT"));
  }
}

// A file with the given text, for LoadConfig.
class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text) {
    char pattern[] = "/tmp/withy-config-XXXXXX";
    const UniqueFd fd(mkstemp(pattern));
    path_ = pattern;
    std::ofstream(path_) << text;
  }
  ~ConfigFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Config, ARefusedValueIsNamedWithThePlaceWhereItWasWritten) {
  const ConfigFile file("model { threads: 2 }\norchestrator {\n  queue_limit: 4000000000\n}\n");
  EXPECT_EQ(std::string(LoadConfig(file.path()).status().message()),
            file.path() +
                ":3:3: orchestrator.queue_limit is 4000000000; it must be between 1 and 100000");
  const std::string over[] = {"orchestrator.queue_limit=1", "model.threads=3000"};
  EXPECT_EQ(std::string(LoadConfig(file.path(), over).status().message()),
            "override 'model.threads=3000': model.threads is 3000; it must be between 1 and 1024");
}

TEST(Config, ListsHaveAPlaceToo) {
  const ConfigFile good(
      "store { public_system_prompts: \"a\" public_system_prompts: \"b\" }\n"
      "orchestrator { app_budgets { app: \"mail\" tokens_per_day: 5 } app_budgets { app: \"*\" } "
      "}\n");
  const auto read = LoadConfig(good.path());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->orchestrator().app_budgets(0).tokens_per_day(), 5u);
  EXPECT_EQ(read->store().public_system_prompts_size(), 2);
  const ConfigFile bad("orchestrator {\n  http_web_origins: \"*\"\n  http_web_origins: \"b\"\n}\n");
  EXPECT_THAT(std::string(LoadConfig(bad.path()).status().message()),
              HasSubstr(bad.path() + ":2:3: orchestrator.http_web_origins is \"b\""));
}

TEST(Config, EveryErrorIsFoundAndTheRestCanBeUsed) {
  const ConfigFile file(
      "log_level: \"debug\"\n"
      "model { thread: 5 tree_rows: 7 }\n"
      "draft { threads: many max_batch: 3 }\n"
      "modle { path: \"/x\" }\n"
      "store { arena_bytes: 5 kv_ratio_percent: 30 }\n"
      "orchestrator { http_listen: \"8080\" queue_limit: 0x }\n"
      "profiler { poll_ms: 20 metrics_listen: \"here\" }\n"
      "run_dir: \"relative\"\n");
  const auto checked = CheckConfig(file.path());
  ASSERT_TRUE(checked.ok()) << checked.status();
  std::string all;
  for (const absl::Status& problem : checked->problems) {
    EXPECT_EQ(problem.code(), absl::StatusCode::kInvalidArgument);
    absl::StrAppend(&all, problem.message(), "\n");
  }
  EXPECT_EQ(checked->problems.size(), 8u) << all;
  for (const char* expected :
       {"\"thread\"", "many", "\"modle\"", "store.arena_bytes is 5", "orchestrator.http_listen",
        "metrics_listen is \"here\"", "run_dir is \"relative\"", ":6:"}) {
    EXPECT_THAT(all, HasSubstr(expected));
  }
  const proto::Config& config = checked->config;
  EXPECT_EQ(config.log_level(), "debug");
  EXPECT_EQ(config.model().tree_rows(), 7u);
  EXPECT_EQ(config.draft().max_batch(), 3u);
  EXPECT_EQ(config.store().arena_bytes(), uint64_t{256} << 20);
  EXPECT_EQ(config.store().kv_ratio_percent(), 30u);
  EXPECT_EQ(config.profiler().poll_ms(), 20u);
  EXPECT_EQ(config.profiler().metrics_listen(), "127.0.0.1:9464");
  EXPECT_EQ(LoadConfig(file.path()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Config, AFileThatIsNoConfigurationHasErrorsAndDefaults) {
  for (const std::string text :
       {"model {", "}", "\x01\x02\n:::", "model: { path: \"a", "{{{{\n}"}) {
    const ConfigFile file(text);
    const auto checked = CheckConfig(file.path());
    ASSERT_TRUE(checked.ok()) << checked.status();
    EXPECT_FALSE(checked->problems.empty()) << text;
    EXPECT_EQ(checked->config.profiler().metrics_listen(), "127.0.0.1:9464");
  }
}

TEST(Config, AMissingNamedFileIsAnErrorAMissingDefaultIsNot) {
  EXPECT_EQ(LoadConfig("/nonexistent/withy.textproto").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE(LoadConfig("/tmp").ok()) << "a directory is no empty file";
}

TEST(Config, AppsAreServedInRunDirWhateverElseIsListenedOn) {
  proto::Config config;
  config.set_run_dir("/run/here/");
  ASSERT_TRUE(FillDefaults(&config).ok());
  EXPECT_THAT(AppAddresses(config), ElementsAre("unix:/run/here/withy.sock"));
  config.mutable_orchestrator()->set_listen("127.0.0.1:7411");
  EXPECT_THAT(AppAddresses(config), ElementsAre("127.0.0.1:7411", "unix:/run/here/withy.sock"));
  config.mutable_orchestrator()->set_listen("unix:/run/./here/withy.sock");
  EXPECT_THAT(AppAddresses(config), ElementsAre("unix:/run/./here/withy.sock"));
}

TEST(Config, WhatIsOpenToANetworkNeedsTlsOrTheWordForNone) {
  for (const char* field :
       {"orchestrator.listen", "orchestrator.http_listen", "profiler.metrics_listen"}) {
    const std::string path = field;
    const std::string section = path.substr(0, path.find('.'));
    const std::string open =
        section + " { " + path.substr(section.size() + 1) + ": \"192.168.0.2:80\" } ";
    EXPECT_THAT(Refusal(open),
                AllOf(HasSubstr(path + " is \"192.168.0.2:80\""), HasSubstr("tls.certificate_file"),
                      HasSubstr("tls.allow_plaintext_tcp")));
    EXPECT_TRUE(IsTaken(open + "tls { allow_plaintext_tcp: true }"));
    EXPECT_TRUE(IsTaken(open + "tls { certificate_file: \"/a\" key_file: \"/b\" }"));
  }
  // The workers' addresses speak no TLS.
  const std::string store = "store { listen: \"0.0.0.0:80\" } ";
  EXPECT_THAT(Refusal(store + "tls { certificate_file: \"/a\" key_file: \"/b\" }"),
              HasSubstr("store.listen"));
  EXPECT_TRUE(IsTaken(store + "tls { allow_plaintext_tcp: true }"));
  EXPECT_TRUE(IsTaken("orchestrator { listen: \"127.0.0.1:80\" http_listen: \"[::1]:80\" }"));
}

TEST(Config, FilesOfTlsBelongTogether) {
  EXPECT_THAT(Refusal("tls { certificate_file: \"/a\" }"), HasSubstr("tls.key_file"));
  EXPECT_THAT(Refusal("tls { key_file: \"/a\" }"), HasSubstr("tls.certificate_file"));
  EXPECT_THAT(Refusal("tls { client_ca_file: \"/a\" }"), HasSubstr("tls.client_ca_file"));
  EXPECT_THAT(Refusal("tls { on_loopback: true }"), HasSubstr("tls.on_loopback"));
  EXPECT_THAT(Refusal("tls { certificate_file: \"a\" key_file: \"/b\" }"),
              HasSubstr("absolute path"));
}

TEST(Config, BudgetsNameEachAppOnce) {
  EXPECT_TRUE(
      IsTaken("orchestrator { app_budgets { app: \"mail\" tokens_per_day: 5 } "
              "app_budgets { app: \"*\" } }"));
  EXPECT_THAT(Refusal("orchestrator { app_budgets { app: \"a\" } app_budgets { app: \"a\" } }"),
              HasSubstr("one entry"));
  EXPECT_THAT(Refusal("orchestrator { app_budgets { tokens_per_day: 5 } }"),
              HasSubstr("orchestrator.app_budgets is an entry without an app"));
}

TEST(ListenAddress, IsASocketsAbsolutePathOrAHostWithAPort) {
  for (const char* good : {"unix:/run/withy.sock", "127.0.0.1:0", "localhost:65535", "[::1]:7411",
                           "0.0.0.0:1", "board-1.lan:80"}) {
    EXPECT_TRUE(CheckListenAddress(good).ok()) << good;
  }
  for (const char* bad :
       {"", "foo", "unix:", "unix:/", "unix:relative.sock", "unix:///a.sock", "unix:/run/",
        "127.0.0.1:65536", "127.0.0.1:99999", "127.0.0.1:", "127.0.0.1:-1", "127.0.0.1:+1",
        "127.0.0.1:http", ":80", "::1:80", "dns:///host:80", "unix-abstract:name", "a b:80",
        "host:99999999999999"}) {
    const absl::Status status = CheckListenAddress(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(Ids, AreUniqueAndPrefixed) {
  const std::string a = NewId("ctx"), b = NewId("ctx");
  EXPECT_NE(a, b);
  EXPECT_EQ(a.size(), 4 + 32u);
  EXPECT_EQ(a.substr(0, 4), "ctx_");
  EXPECT_EQ(ToHex(std::string("\x00\xff\x1a", 3)), "00ff1a");
}

TEST(BoundedQueue, RefusesOverItsLimitAndDrainsAfterClose) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_FALSE(queue.TryPush(3));
  queue.Close();
  EXPECT_FALSE(queue.TryPush(4));
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(), 2);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

TEST(BoundedQueue, CarriesEveryItemAcrossThreads) {
  BoundedQueue<int> queue(4);
  int64_t sum = 0;
  std::thread consumer([&] {
    while (auto item = queue.Pop()) sum += *item;
  });
  for (int i = 1; i <= 1000; ++i) ASSERT_TRUE(queue.Push(int{i}));
  queue.Close();
  consumer.join();
  EXPECT_EQ(sum, 500500);
}

TEST(SharedMemory, ASealedMemfdPassedOverASocketIsTheSameMemory) {
  auto fd = CreateSealedMemfd("test", 8192);
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_NE(ftruncate(fd->get(), 4096), 0) << "a sealed memfd must not shrink";
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets), 0);
  UniqueFd left(sockets[0]), right(sockets[1]);
  uint64_t sent = 42, received = 0;
  ASSERT_TRUE(SendFd(left.get(), std::as_bytes(std::span(&sent, 1)), fd->get()).ok());
  auto passed = RecvFd(right.get(), std::as_writable_bytes(std::span(&received, 1)));
  ASSERT_TRUE(passed.ok()) << passed.status();
  EXPECT_EQ(received, 42u);
  auto here = SharedMemory::Map(fd->get(), 8192, SharedMemory::Access::kReadWrite);
  auto there = SharedMemory::Map(passed->get(), 8192, SharedMemory::Access::kReadOnly);
  ASSERT_TRUE(here.ok() && there.ok());
  EXPECT_TRUE(here->Prefault().ok());
  here->data()[5000] = std::byte{7};
  EXPECT_EQ(there->data()[5000], std::byte{7});
  EXPECT_EQ(SharedMemory::Map(fd->get(), 8193, SharedMemory::Access::kReadOnly).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetPeerCredentials(left.get())->pid, getpid());
  left.Reset();
  EXPECT_EQ(RecvFd(right.get(), std::as_writable_bytes(std::span(&received, 1))).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(FakeClock, MovesOnlyWhenTold) {
  FakeClock clock;
  const int64_t start = clock.SteadyNanos();
  clock.Advance(5);
  EXPECT_EQ(clock.SteadyNanos() - start, 5);
}

TEST(LineChart, DrawsEveryLineInsideTheFrame) {
  const LineChart chart{.title = "a < b & c",
                        .x_label = "x",
                        .y_label = "y",
                        .lines = {{"up", {{0, 0}, {10, 5}}}, {"one point", {{10, 5}}}}};
  const std::string svg = chart.Svg();
  EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
  EXPECT_NE(svg.find("points=\"60.0,350.0 470.0,30.0 \""), std::string::npos) << svg;
  EXPECT_NE(svg.find("points=\"470.0,30.0 \""), std::string::npos) << svg;
  EXPECT_EQ(LineChart{}.Svg().find("nan"), std::string::npos);
  EXPECT_FALSE(chart.Write("/nowhere/at/all.svg").ok());
}

class FilesTest : public testing::Test {
 protected:
  FilesTest() { std::filesystem::create_directories(folder_); }
  ~FilesTest() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("withy_files_" + std::to_string(getpid()));
};

TEST_F(FilesTest, AnOutputThatWouldFailAtTheEndIsRefusedAtTheStart) {
  const std::string input = Write("input", "bytes");
  EXPECT_TRUE(CheckOutput(folder_ / "new", {input, ""}).ok());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));
  EXPECT_TRUE(CheckOutput(Write("old", ""), {input}).ok());
  const auto refusal = [&](const std::string& path) { return CheckOutput(path, {"", input}); };
  const absl::Status nowhere = refusal(folder_ / "none/new");
  EXPECT_EQ(nowhere.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(nowhere.message()), HasSubstr((folder_ / "none").string()));
  EXPECT_EQ(refusal(folder_).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(input).code(), absl::StatusCode::kInvalidArgument);
  std::filesystem::create_symlink(input, folder_ / "link");
  const absl::Status same = refusal(folder_ / "link");
  EXPECT_EQ(same.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(same.message()), HasSubstr("another name"));
}

TEST_F(FilesTest, OnlyARegularFileIsReadAndNoPipeIsWaitedFor) {
  const std::string path = Write("a", std::string(40'000, 'x'));
  EXPECT_EQ(ReadRegularFile(path, 40'000).value(), std::string(40'000, 'x'));
  EXPECT_EQ(ReadRegularFile(Write("empty", ""), 0).value(), "");
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::pair<std::string, absl::StatusCode> refused[] = {
      {folder_ / "none", absl::StatusCode::kNotFound},
      {folder_, absl::StatusCode::kFailedPrecondition},
      {pipe, absl::StatusCode::kFailedPrecondition}};
  for (const auto& [bad, code] : refused) {
    const absl::Status status = ReadRegularFile(bad, 100).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad));
  }
  EXPECT_EQ(ReadRegularFile(path, 39'999).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(FilesTest, ADigestIsOfWhatIsInAFile) {
  const std::string path = Write("a", std::string(100'000, 'x') + "y");
  const std::string digest = FileDigest(path).value();
  EXPECT_EQ(digest.size(), 16u);
  EXPECT_EQ(FileDigest(Write("b", std::string(100'000, 'x') + "y")).value(), digest);
  EXPECT_NE(FileDigest(Write("a", std::string(100'000, 'x') + "z")).value(), digest);
  EXPECT_EQ(FileDigest(Write("empty", "")).value(), "cbf29ce484222325");
  for (const std::string bad : {folder_ / "none", folder_}) {
    const absl::Status status = FileDigest(bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad));
  }
}

// Runs in its own process: all memory it has touched counts as locked, unless that is too much.
TEST(KeepInMemory, LocksWhatIsTouchedWhereItMay) {
  const auto locked_kib = [] {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmLck:")) return std::stol(line.substr(6));
    }
    return -1L;
  };
  const pid_t child = fork();
  if (child == 0) {
    if (KeepInMemory(uint64_t{1} << 60)) _exit(1);
    if (locked_kib() != 0) _exit(2);
    const std::vector<char> page(4096, 'x');
    mlock(page.data(), page.size());
    if (locked_kib() <= 0) _exit(0);  // sanitizers lock nothing but report success
    munlock(page.data(), page.size());
    if (KeepInMemory(0) && locked_kib() <= 0) _exit(3);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Uses its own threads, so that the test's other threads keep their roles.
TEST(ThreadRole, CarriersComeFirstWhereTheyMayAndTheirThreadsToo) {
  const int usual = getpriority(PRIO_PROCESS, 0);
  bool permitted = false;
  std::thread([&] { permitted = setpriority(PRIO_PROCESS, 0, -10) == 0; }).join();
  std::thread([&] {
    SetThreadRole(ThreadRole::kCarries);
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), permitted ? std::min(usual, -10) : usual);
    std::thread([&] {
      EXPECT_EQ(getpriority(PRIO_PROCESS, 0), permitted ? std::min(usual, -10) : usual);
      SetThreadRole(ThreadRole::kComputes);
      EXPECT_EQ(getpriority(PRIO_PROCESS, 0), permitted ? 0 : std::max(usual, 0));
      EXPECT_EQ(sched_getscheduler(0), SCHED_BATCH);
    }).join();
    EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
  }).join();
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), usual);
}

}  // namespace
}  // namespace withy
