// The profiler through the five real processes: metrics, summaries, a timeline, Debian's Prometheus
// with the shipped rules, and the live page in Debian's Chromium.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/board.h"
#include "tests/e2e/http.h"
#include "withy/v1/timeline.pb.h"

namespace withy::e2e {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

constexpr absl::Duration kPatience = absl::Seconds(60);

// Asks until `holds`; false after kPatience.
bool Await(const std::function<bool()>& holds) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (!holds()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(100));
  }
  return true;
}

std::string FindProgram(const std::string& name) {
  for (const char* directory : {"/usr/bin/", "/bin/", "/usr/local/bin/"}) {
    if (access((directory + name).c_str(), X_OK) == 0) return directory + name;
  }
  return "";
}

// A program that runs until it goes out of scope; its output is in `log`.
class Program {
 public:
  Program(std::vector<std::string> arguments, const std::string& log) {
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Program() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // The exit code, or -1 if it was still running after kPatience.
  int Wait() {
    int status = 0;
    const bool ended = Await([&] { return waitpid(pid_, &status, WNOHANG) == pid_; });
    if (ended) pid_ = -1;
    return ended && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
};

class ProfilerE2e : public ::testing::Test {
 protected:
  void SetUp() override {
    board_ = std::make_unique<Board>();
    board_->StartAll();
    ASSERT_TRUE(board_->WaitUntilServing()) << board_->Log("orchestrator");
    stub_ = board_->NewStub();
    token_ = board_->BindApp("mail");
  }

  // Calls of the app "mail", of which every second has an SLO that it cannot miss, and one an SLO
  // that it cannot meet.
  void Calls(int n) {
    for (int i = 0; i < n; ++i) {
      v1::GenerateRequest request = UserRequest("", absl::StrCat("tell me of number ", i), 6);
      if (i % 2 == 0) request.mutable_slo()->set_ttft_ms(i == 0 ? 0.001 : 60'000);
      const Answer answer = Generate(*stub_, token_, request);
      ASSERT_TRUE(answer.status.ok()) << answer.status;
    }
  }
  std::string Metrics() { return HttpGet(board_->metrics_address(), "/metrics"); }
  // Waits until the agent has read the spans and counters of `n` calls.
  bool AwaitCalls(int n) {
    const std::string line =
        absl::StrCat("withy_end_to_end_seconds_count{process=\"orchestrator\"} ", n, "\n");
    return Await([&] { return Metrics().find(line) != std::string::npos; });
  }
  // Runs withyctl and returns its output.
  std::string Withyctl(std::vector<std::string> words, int expected_code = 0) {
    words.insert(words.begin(),
                 (fs::read_symlink("/proc/self/exe").parent_path() / "withyctl").string());
    words.insert(words.end(), {"--address", board_->address()});
    const std::string log = board_->dir() + "/withyctl.log";
    Program program(words, log);
    EXPECT_EQ(program.Wait(), expected_code) << ReadAll(log);
    return ReadAll(log);
  }

  std::unique_ptr<Board> board_;
  std::unique_ptr<v1::LlmService::Stub> stub_;
  std::string token_;
};

TEST_F(ProfilerE2e, MetricsHaveCallsAppsAndSizes) {
  ASSERT_NO_FATAL_FAILURE(Calls(4));
  ASSERT_TRUE(AwaitCalls(4)) << Metrics();
  EXPECT_THAT(
      Metrics(),
      AllOf(HasSubstr("withy_ttft_seconds_count{process=\"orchestrator\"} 4"),
            HasSubstr("withy_queue_seconds_count{process=\"orchestrator\"} 4"),
            HasSubstr("withy_prompt_tokens_count{process=\"orchestrator\"} 4"),
            HasSubstr("withy_answer_tokens_count{process=\"orchestrator\"} 4"),
            HasSubstr("withy_slo_app_calls_total{process=\"orchestrator\",app=\"mail\"} 2"),
            HasSubstr("withy_slo_app_missed_total{process=\"orchestrator\",app=\"mail\"} 1"),
            HasSubstr("withy_slo_attainment_ratio{app=\"mail\"} 0.5"), HasSubstr("limit=\"ttft\""),
            HasSubstr("phase=\"prefill\"")));
}

TEST_F(ProfilerE2e, WithyctlPrintsWhereTheTimeGoes) {
  ASSERT_NO_FATAL_FAILURE(Calls(2));
  ASSERT_TRUE(AwaitCalls(2)) << Metrics();
  EXPECT_THAT(Withyctl({"profile", "phases"}),
              AllOf(HasSubstr("SHARE"), HasSubstr("prefill"), HasSubstr("model_worker"),
                    HasSubstr("of all calls")));
  EXPECT_THAT(Withyctl({"profile", "phases", "--json", "--window-s", "600"}),
              HasSubstr("\"covered_s\""));
  EXPECT_THAT(Withyctl({"profile", "phases", "--window-s", "0"}, 2), HasSubstr("window-s"));
  Withyctl({"profile", "kernels"});
  const std::string spans = Withyctl({"profile", "spans", "--limit", "5", "--json"});
  EXPECT_EQ(std::count(spans.begin(), spans.end(), '\n'), 5) << spans;
  EXPECT_THAT(spans, HasSubstr("\"started_ns\""));
  EXPECT_THAT(Withyctl({"profile", "spans", "--limit", "0"}, 2), HasSubstr("limit"));
  EXPECT_THAT(Withyctl({"profile", "timeline", "--seconds", "61", "--out", "x"}, 2),
              HasSubstr("seconds"));
  EXPECT_THAT(Withyctl({"profile", "timeline", "--out", board_->dir() + "/no/such/file"}, 1),
              HasSubstr("no/such/file"));
  board_->Kill("profiler_agent");
  EXPECT_THAT(Withyctl({"profile", "phases"}, 1), HasSubstr("profiler_agent.sock"));
}

// The processes and calls of a trace, by the names of its tracks.
struct Tracks {
  std::set<std::string> processes;
  std::map<uint64_t, std::set<std::string>> flows;  // processes by call
  std::set<std::string> slices;
};
Tracks ReadTrace(const std::string& path) {
  v1::timeline::Trace trace;
  EXPECT_TRUE(trace.ParseFromString(ReadAll(path)));
  Tracks tracks;
  std::map<uint64_t, std::string> names, process_of;
  std::map<int32_t, std::string> process_by_pid;
  for (const auto& packet : trace.packet()) {
    for (const auto& name : packet.interned_data().event_names()) names[name.iid()] = name.name();
    if (packet.has_track_descriptor()) {
      const auto& track = packet.track_descriptor();
      if (track.has_process()) {
        process_of[track.uuid()] = track.process().process_name();
        process_by_pid[track.process().pid()] = track.process().process_name();
        tracks.processes.insert(track.process().process_name());
      } else if (track.has_thread()) {
        process_of[track.uuid()] = process_by_pid[track.thread().pid()];
      } else {
        process_of[track.uuid()] = process_of[track.parent_uuid()];
      }
    }
    const auto& event = packet.track_event();
    if (event.type() != v1::timeline::TrackEvent::TYPE_SLICE_BEGIN) continue;
    tracks.slices.insert(names[event.name_iid()]);
    for (const uint64_t flow : event.flow_ids()) {
      tracks.flows[flow].insert(process_of[event.track_uuid()]);
    }
  }
  return tracks;
}

TEST_F(ProfilerE2e, ATimelineFollowsACallThroughTheProcesses) {
  const std::string path = board_->dir() + "/trace.perfetto-trace";
  const std::string log = board_->dir() + "/timeline.log";
  Program capture(
      {(fs::read_symlink("/proc/self/exe").parent_path() / "withyctl").string(), "profile",
       "timeline", "--seconds", "3", "--out", path, "--address", board_->address()},
      log);
  ASSERT_TRUE(Await([&] { return ReadAll(log).find("recording") != std::string::npos; }));
  ASSERT_NO_FATAL_FAILURE(Calls(1));
  ASSERT_EQ(capture.Wait(), 0) << ReadAll(log);
  EXPECT_THAT(ReadAll(log), HasSubstr("ui.perfetto.dev"));
  const Tracks tracks = ReadTrace(path);
  EXPECT_THAT(tracks.processes, IsSupersetOf({"orchestrator", "model_worker", "context_store"}));
  EXPECT_THAT(tracks.slices, IsSupersetOf({"queue", "prefill", "decode", "end_to_end"}));
  const bool through = std::any_of(tracks.flows.begin(), tracks.flows.end(), [](const auto& flow) {
    return flow.second.contains("orchestrator") && flow.second.contains("model_worker");
  });
  EXPECT_TRUE(through);
}

// The value of the first sample of an instant query; NaN if there is none.
double Query(const std::string& prometheus, const std::string& expression) {
  std::string escaped;
  for (const char c : expression) {
    absl::StrAppend(&escaped, isalnum(static_cast<unsigned char>(c)) != 0
                                  ? std::string(1, c)
                                  : absl::StrCat("%", absl::Hex(static_cast<unsigned char>(c),
                                                                absl::kZeroPad2)));
  }
  const json answer =
      json::parse(HttpGet(prometheus, "/api/v1/query?query=" + escaped), nullptr, false);
  if (answer.is_discarded() || answer["status"] != "success" || answer["data"]["result"].empty()) {
    return std::nan("");
  }
  return std::stod(answer["data"]["result"][0]["value"][1].get<std::string>());
}

TEST_F(ProfilerE2e, DebiansPrometheusScrapesAndEvaluatesTheShippedRules) {
  const std::string prometheus = FindProgram("prometheus");
  if (prometheus.empty()) {
    GTEST_SKIP() << "prometheus is missing (apt-get install prometheus)";
  }
  const std::string dir = board_->dir() + "/prometheus";
  fs::create_directories(dir);
  for (const char* rules : {"withy-rules.yml", "withy-alerts.yml"}) {
    fs::copy_file(std::string("deploy/prometheus/") + rules, dir + "/" + rules);
  }
  // The shipped configuration, but for this board's address and shorter intervals.
  std::string config = ReadAll("deploy/prometheus/prometheus.yml");
  const auto replace = [&](const std::string& from, const std::string& to) {
    for (size_t at; (at = config.find(from)) != std::string::npos;)
      config.replace(at, from.size(), to);
  };
  replace("127.0.0.1:9464", board_->metrics_address());
  replace("interval: 15s", "interval: 1s");
  std::ofstream(dir + "/prometheus.yml") << config;
  ASSERT_NO_FATAL_FAILURE(Calls(2));
  const std::string address = absl::StrCat("127.0.0.1:", FreePort());
  Program server({prometheus, "--config.file=" + dir + "/prometheus.yml",
                  "--storage.tsdb.path=" + dir + "/data", "--web.listen-address=" + address},
                 dir + "/log");
  const auto reaches = [&](const std::string& expression, double least) {
    return Await([&] { return Query(address, expression) >= least; });
  };
  ASSERT_TRUE(reaches("count(withy_up == 1)", 5)) << ReadAll(dir + "/log");
  ASSERT_TRUE(reaches("withy_ttft_seconds_count{process=\"orchestrator\"}", 2));
  // Rates need what grows between two scrapes.
  ASSERT_NO_FATAL_FAILURE(Calls(2));
  EXPECT_TRUE(reaches("sum(withy_slo_app_calls_total{app=\"mail\"})", 2));
  EXPECT_TRUE(reaches("withy:ttft_seconds:p95_5m", 1e-6));
  EXPECT_TRUE(reaches("withy:phase_busy:rate5m{phase=\"prefill\"}", 1e-9));
  EXPECT_TRUE(
      reaches("gen_ai_server_time_to_first_token_seconds_count{gen_ai_provider_name="
              "\"withy\"}",
              4));
  EXPECT_TRUE(reaches("gen_ai_client_token_usage_sum{gen_ai_token_type=\"output\"}", 1));
  EXPECT_TRUE(reaches("withy:slo_miss_ratio:rate5m{app=\"mail\"}", 0.01));
  // A killed process is an alert.
  board_->Kill("draft_worker");
  EXPECT_TRUE(reaches("count(withy_up{process=\"draft_worker\"} == 0)", 1));
  EXPECT_TRUE(
      reaches("count(ALERTS{alertname=\"WithyDraftWorkerDown\",alertstate=\"pending\"})", 1));
}

TEST_F(ProfilerE2e, TheLivePageWorksInChromiumOnADeskAndOnAPhone) {
  const std::string chromium = FindProgram("chromium");
  if (chromium.empty()) GTEST_SKIP() << "chromium is missing (apt-get install chromium)";
  ASSERT_NO_FATAL_FAILURE(Calls(4));
  ASSERT_TRUE(AwaitCalls(4));
  const char* kept = std::getenv("WITHY_SCREENSHOTS");
  const std::string dir = kept != nullptr ? kept : board_->dir();
  for (const auto& [device, size] :
       {std::pair<const char*, const char*>{"desk", "1400,2100"}, {"phone", "390,3600"}}) {
    const std::string dom = absl::StrCat(board_->dir(), "/", device, ".html");
    const std::vector<std::string> common = {chromium,
                                             "--headless=new",
                                             "--no-sandbox",
                                             "--disable-gpu",
                                             "--hide-scrollbars",
                                             "--user-data-dir=" + board_->dir() + "/chromium",
                                             absl::StrCat("--window-size=", size),
                                             "--virtual-time-budget=4000"};
    const std::string url = "http://" + board_->metrics_address() + "/";
    std::vector<std::string> dump = common, shoot = common;
    dump.insert(dump.end(), {"--dump-dom", url});
    const std::string picture = absl::StrCat(dir, "/withy-", device, ".png");
    shoot.insert(shoot.end(), {"--screenshot=" + picture, url});
    Program reads(dump, dom);
    ASSERT_EQ(reads.Wait(), 0) << ReadAll(dom);
    // Scripts ran, the data came, and what it says is shown.
    EXPECT_THAT(ReadAll(dom),
                AllOf(HasSubstr("data-shown="), HasSubstr("live, "), HasSubstr("✗ missed"),
                      HasSubstr("✓ met"), HasSubstr(">mail<"), HasSubstr("prefill"),
                      HasSubstr("● orchestrator"), HasSubstr("KV in memory")))
        << device;
    Program shoots(shoot, board_->dir() + "/shoot.log");
    ASSERT_EQ(shoots.Wait(), 0) << ReadAll(board_->dir() + "/shoot.log");
    EXPECT_GT(fs::file_size(picture), 20'000u) << "more than an empty page";
  }
}

}  // namespace
}  // namespace withy::e2e
