// Effects of the machine on the service: full disks, signals, other files in place of sockets and
// models, silent connections.
#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/board.h"
#include "tests/e2e/test_model.h"

namespace withy::e2e {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A temporary directory that can be a small separate file system.
class Place {
 public:
  explicit Place(const char* mount_options = nullptr) {
    char pattern[] = "/tmp/withy-machine-XXXXXX";
    dir_ = mkdtemp(pattern);
    mounted_ = mount_options != nullptr &&
               mount("withy-test", dir_.c_str(), "tmpfs", 0, mount_options) == 0;
  }
  ~Place() {
    if (mounted_) umount2(dir_.c_str(), MNT_DETACH);
    fs::remove_all(dir_);
  }
  bool mounted() const { return mounted_; }
  const std::string& dir() const { return dir_; }
  // Fills all free space.
  void Fill() const {
    std::ofstream filler(dir_ + "/filler", std::ios::binary);
    const std::string page(4096, 'x');
    while (filler.write(page.data(), static_cast<std::streamsize>(page.size())).flush()) {
    }
  }
  void MakeRoom() const { fs::remove(dir_ + "/filler"); }

 private:
  std::string dir_;
  bool mounted_ = false;
};

std::map<std::string, v1::ProcessState> States(const Board& board) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::GetStatusResponse response;
  std::map<std::string, v1::ProcessState> states;
  if (!board.NewStub()->GetStatus(&context, {}, &response).ok()) return states;
  for (const v1::ProcessState& state : response.processes()) states[state.process()] = state;
  return states;
}

// Polls until `process` reports `detail`, for at most a minute.
v1::ProcessState AwaitDetail(const Board& board, const std::string& process,
                             const std::string& detail) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  v1::ProcessState state;
  do {
    state = States(board)[process];
    if (state.status().detail().find(detail) != std::string::npos) break;
    absl::SleepFor(absl::Milliseconds(20));
  } while (absl::Now() < deadline);
  return state;
}

TEST(MachineTest, AFullStateDirectoryIsSaidAndIsGoneOnWithWhenThereIsRoom) {
  const Place disk("size=96m");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs needs CAP_SYS_ADMIN: run it as root";
  disk.Fill();
  Board board({"state_dir=" + disk.dir()});
  board.StartAll();
  for (const char* process : {"context_store", "model_worker", "draft_worker"}) {
    const v1::ProcessState state = AwaitDetail(board, process, "disk full");
    EXPECT_EQ(state.health(), "not serving") << process;
    EXPECT_THAT(state.status().detail(),
                AllOf(HasSubstr("waits for room"), HasSubstr(disk.dir()), HasSubstr("free")))
        << process << board.Log(process);
    EXPECT_THAT(board.Log(process), HasSubstr("waits for room: ")) << process;
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::BindAppRequest bind;
  bind.set_app("early");
  v1::BindAppResponse bound;
  const grpc::Status refused = board.NewStub()->BindApp(&context, bind, &bound);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(refused.error_message(), AllOf(HasSubstr("disk full"), HasSubstr("context_store")));
  disk.MakeRoom();
  ASSERT_TRUE(board.WaitUntilServing());
  const std::string token = board.BindApp("app");
  const Answer answer =
      GenerateWithRetry(*board.NewStub(), token, UserRequest("", "hello", 4), absl::Seconds(30));
  EXPECT_TRUE(answer.status.ok()) << answer.status;
}

TEST(MachineTest, AFullRunDirectoryIsWaitedFor) {
  const Place disk("size=48m");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs needs CAP_SYS_ADMIN: run it as root";
  disk.Fill();
  Board board({"run_dir=" + disk.dir()});
  board.StartAll();
  for (const std::string& process : kProcesses) {
    for (int i = 0; i < 3000 && board.Log(process).find("waits for room") == std::string::npos;
         ++i) {
      absl::SleepFor(absl::Milliseconds(20));
    }
    EXPECT_THAT(board.Log(process), AllOf(HasSubstr("waits for room"), HasSubstr(disk.dir())));
  }
  EXPECT_EQ(board.Stop("draft_worker"), 0) << "a process that waits is stopped at once";
  disk.MakeRoom();
  board.Start("draft_worker");
  for (const std::string& process : kProcesses) {
    for (int i = 0; i < 3000 && board.Log(process).find("ready, serves") == std::string::npos;
         ++i) {
      absl::SleepFor(absl::Milliseconds(20));
    }
    EXPECT_THAT(board.Log(process), HasSubstr("ready, serves"));
  }
}

TEST(MachineTest, WhatStandsInThePlaceOfASocketIsRefusedAndLeft) {
  const std::pair<const char*, const char*> sockets[] = {
      {"context_store", "store.listen"},     {"context_store", "arena.sock"},
      {"model_worker", "model.listen"},      {"draft_worker", "draft.listen"},
      {"profiler_agent", "profiler.listen"}, {"orchestrator", "orchestrator.listen"},
      {"orchestrator", "withy.sock"}};
  for (const auto& [process, where] : sockets) {
    const Place data;
    const bool is_field = std::string(where).find(".listen") != std::string::npos;
    const std::string path = is_field ? data.dir() + "/notes" : data.dir() + "/" + where;
    std::ofstream(path) << "keep me";
    std::vector<std::string> overrides = {"run_dir=" + data.dir()};
    if (is_field) overrides.push_back(std::string(where) + "=unix:" + path);
    Board board(overrides);
    board.Start(process);
    EXPECT_EQ(board.WaitForExit(process), 2) << process << " " << where << board.Log(process);
    EXPECT_THAT(board.Log(process), AllOf(HasSubstr(path), HasSubstr("a regular file")));
    EXPECT_EQ(ReadAll(path), "keep me") << process << " " << where;
  }
}

TEST(MachineTest, AHangUpEndsNothingAndOtherSignalsDrain) {
  Board board;
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing());
  const auto stub = board.NewStub();
  const std::string token = board.BindApp("app");
  bool sent = false;
  const Answer answer =
      Generate(*stub, token, UserRequest("", "hello", 40), [&](const Answer& /*so_far*/) {
        if (!std::exchange(sent, true)) {
          for (const std::string& process : kProcesses) {
            for (const int signal : {SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE}) {
              EXPECT_EQ(kill(board.Pid(process), signal), 0) << process;
            }
          }
        }
        return true;
      });
  EXPECT_TRUE(sent);
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.finished.usage().completion_tokens(), 40u);
  ASSERT_TRUE(board.WaitUntilServing()) << "a signal ended something";
  for (const std::string& process : kProcesses) {
    EXPECT_EQ(board.Stop(process, SIGQUIT), 0) << process;
    EXPECT_THAT(board.Log(process), AllOf(HasSubstr("Hangup: ignored"), HasSubstr("stopped")));
  }
}

// Other weights under the same name, with the same size, metadata and time stamp.
TEST(MachineTest, OtherWeightsInThePlaceOfAModelAreServed) {
  const Place models;
  const std::string target = models.dir() + "/target.gguf", draft = models.dir() + "/draft.gguf";
  fs::copy_file(TestTargetPath(), target);
  fs::copy_file(TestDraftPath(), draft);
  Board board({"model.path=" + target, "draft.path=" + draft});
  const auto restart = [&] {
    std::map<std::string, uint64_t> inodes;
    for (const char* process : {"model_worker", "draft_worker"}) {
      board.Stop(process);
      board.Start(process);
    }
    EXPECT_TRUE(board.WaitUntilServing()) << board.Log("model_worker");
    for (const auto& entry : fs::directory_iterator(board.dir() + "/state/packed")) {
      struct stat info {};
      if (entry.path().extension() == ".withy" && stat(entry.path().c_str(), &info) == 0) {
        inodes[entry.path().stem().string().substr(0, 5)] = info.st_ino;
      }
    }
    return inodes;
  };
  board.StartAll();
  auto packed = restart();
  EXPECT_EQ(packed.size(), 2u);
  EXPECT_EQ(restart(), packed) << "packed again without need";
  for (const std::string& path : {target, draft}) {
    const auto time = fs::last_write_time(path);
    std::string bytes = ReadAll(path);
    char& late = bytes[bytes.size() - 1000];
    late = static_cast<char>(late ^ 1);
    std::ofstream(path + ".new", std::ios::binary) << bytes;
    fs::last_write_time(path + ".new", time);
    fs::rename(path + ".new", path);
    const auto after = restart();
    const std::string name = fs::path(path).stem().string().substr(0, 5);
    EXPECT_NE(after.at(name), packed.at(name)) << path;
    packed = after;
  }
}

// The packed file of the target.
std::string PackedTarget(const Board& board) {
  for (const auto& entry : fs::directory_iterator(board.dir() + "/state/packed")) {
    const fs::path& path = entry.path();
    if (path.extension() == ".withy" && path.filename().string().starts_with("target")) return path;
  }
  return "";
}

// Overwrites half of a file where it lies.
void Spoil(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto size = static_cast<std::streamoff>(fs::file_size(path));
  file.seekp(size / 4);
  const std::string noise(static_cast<size_t>(size / 2), 'x');
  file.write(noise.data(), static_cast<std::streamsize>(noise.size()));
}

TEST(MachineTest, NoAnswerIsComputedWithDamagedWeights) {
  const Place models;
  const std::string target = models.dir() + "/target.gguf";
  fs::copy_file(TestTargetPath(), target);
  Board board({"model.path=" + target, "draft.path=" + TestDraftPath()});
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("model_worker");
  const std::string token = board.BindApp("damage.app");
  const auto stub = board.NewStub();
  const std::string context = CreateContext(*stub, token);
  const auto ask = [&](const std::string& in, const std::string& id) {
    v1::GenerateRequest request = UserRequest(in, "What is the weather in Ulm?", 24);
    request.set_request_id(id);
    return GenerateWithRetry(*stub, token, request);
  };
  const Answer right = ask("", "first");
  ASSERT_TRUE(right.status.ok()) << right.status;
  ASSERT_TRUE(ask(context, "in context").status.ok());

  // While it is served: mapped, as small models are, it changes under the worker at once.
  Spoil(PackedTarget(board));
  const Answer served = ask("", "second");
  EXPECT_TRUE(served.status.ok()) << served.status << board.Log("model_worker");
  EXPECT_EQ(served.text, right.text);
  EXPECT_THAT(board.Log("model_worker"),
              AllOf(HasSubstr("were found damaged"), HasSubstr("starts anew"),
                    HasSubstr("packing " + target + " again")));
  EXPECT_TRUE(ask(context, "goes on").status.ok());

  // While it is stopped.
  EXPECT_EQ(board.Stop("model_worker"), 0);
  Spoil(PackedTarget(board));
  board.Start("model_worker");
  const Answer started = ask("", "third");
  EXPECT_TRUE(started.status.ok()) << started.status << board.Log("model_worker");
  EXPECT_EQ(started.text, right.text);

  // Without the GGUF it cannot be packed again: nothing is answered, and the log says why.
  fs::remove(target);
  const std::string packed = PackedTarget(board);
  Spoil(packed);
  EXPECT_EQ(board.WaitForExit("model_worker"), 1) << board.Log("model_worker");
  EXPECT_THAT(board.Log("model_worker"),
              AllOf(HasSubstr(target), HasSubstr(packed), HasSubstr("put the GGUF back")));
  EXPECT_TRUE(fs::exists(packed));
}

TEST(MachineTest, ConnectionsThatSayNothingHoldUpNoScrape) {
  Board board;
  board.Start("profiler_agent");
  const std::string& address = board.metrics_address();
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto connect_once = [&] {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) fd.Reset();
    return fd;
  };
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (!connect_once().valid() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(10));
  std::vector<UniqueFd> others;
  for (int i = 0; i < 100; ++i) {
    others.push_back(connect_once());
    if (i % 2 == 1) (void)!write(others.back().get(), "GET /me", 7);
  }
  const absl::Time started = absl::Now();
  const UniqueFd fd = connect_once();
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
  ASSERT_EQ(write(fd.get(), request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(fd.get(), buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
  }
  EXPECT_THAT(text, HasSubstr("withy_up{process=\"profiler_agent\"} 1"));
  // One of them alone has ten seconds for its request.
  EXPECT_LT(absl::Now() - started, absl::Seconds(8));
}

}  // namespace
}  // namespace withy::e2e
