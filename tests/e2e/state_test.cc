// What lies in the state directory, a full disk, a limit on memory and a signal at any moment: the
// service starts, says what it does without, loses nothing and ends in time.
#include <grpcpp/grpcpp.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/test_seed.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/board.h"

namespace withy::e2e {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<fs::path> KvFiles(const Board& board) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(board.dir() + "/state/kv", ignored)) {
    if (entry.path().extension() == ".kv") files.push_back(entry.path());
  }
  return files;
}

bool Within(absl::Duration patience, const std::function<bool()>& holds) {
  const absl::Time deadline = absl::Now() + patience;
  while (!holds()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return true;
}

TEST(StateTest, AnEntryOfTheKvDirectoryThatCannotBeReadIsNamedAndTheCallIsAnswered) {
  Board board;
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing());
  const auto stub = board.NewStub();
  const std::string token = board.BindApp("app");
  const std::string context = CreateContext(*stub, token, "Be brief.");
  const v1::GenerateRequest question = UserRequest(context, "What is the day of the market?", 8);
  ASSERT_TRUE(GenerateWithRetry(*stub, token, question).status.ok());
  const std::pair<const char*, std::function<void(const fs::path&)>> kinds[] = {
      {"link", [](const fs::path& path) { fs::create_symlink("/nonexistent", path); }},
      {"directory", [](const fs::path& path) { fs::create_directories(path / "inside"); }},
      {"pipe", [](const fs::path& path) { ASSERT_EQ(mkfifo(path.c_str(), 0600), 0); }},
      {"noise", [](const fs::path& path) { std::ofstream(path) << std::string(100'000, 'x'); }}};
  for (const auto& [what, make] : kinds) {
    SCOPED_TRACE(what);
    ASSERT_TRUE(Within(absl::Seconds(30), [&] { return !KvFiles(board).empty(); }));
    board.Stop("context_store");
    const fs::path file = KvFiles(board).back();
    fs::remove(file);
    make(file);
    board.Start("context_store");
    ASSERT_TRUE(board.WaitUntilServing()) << board.Log("context_store");
    const Answer answer = GenerateWithRetry(*stub, token, question);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_THAT(board.Log("context_store"), HasSubstr(file.filename().string()));
    fs::remove_all(file);
  }
  v1::GetContextResponse kept;
  EXPECT_TRUE(GetContext(*stub, token, context, &kept).ok());
}

TEST(StateTest, OnAFullDiskADeletionThatWasDoneIsToldAsDoneAndRoomIsGoneOnWith) {
  char pattern[] = "/tmp/withy-state-XXXXXX";
  const std::string disk = mkdtemp(pattern);
  if (mount("withy-test", disk.c_str(), "tmpfs", 0, "size=96m") != 0) {
    fs::remove(disk);
    GTEST_SKIP() << "mounting a tmpfs needs CAP_SYS_ADMIN: run it as root";
  }
  {
    Board board({"state_dir=" + disk + "/state"});
    board.StartAll();
    ASSERT_TRUE(board.WaitUntilServing());
    const auto stub = board.NewStub();
    const std::string token = board.BindApp("app");
    std::vector<std::string> contexts;
    for (int i = 0; i < 2; ++i) {
      contexts.push_back(CreateContext(*stub, token));
      ASSERT_TRUE(
          GenerateWithRetry(*stub, token, UserRequest(contexts.back(), "hello", 4)).status.ok());
    }
    std::ofstream filler(disk + "/filler", std::ios::binary);
    const std::string page(4096, 'x');
    while (filler.write(page.data(), static_cast<std::streamsize>(page.size())).flush()) {
    }
    filler.close();
    v1::DeleteContextRequest request;
    request.set_context_id(contexts[0]);
    v1::DeleteContextResponse response;
    grpc::ClientContext call;
    Authorise(&call, token);
    const grpc::Status deleted = stub->DeleteContext(&call, request, &response);
    EXPECT_TRUE(deleted.ok()) << deleted.error_message();
    v1::GetContextResponse gone;
    EXPECT_EQ(GetContext(*stub, token, contexts[0], &gone).error_code(),
              grpc::StatusCode::NOT_FOUND);
    fs::remove(disk + "/filler");
    const Answer answer = Generate(*stub, token, UserRequest(contexts[1], "hello", 4));
    EXPECT_TRUE(answer.status.ok()) << answer.status << board.Log("context_store");
    EXPECT_TRUE(Within(absl::Seconds(60), [&] {
      return board.Log("context_store").find("had left behind is freed") != std::string::npos;
    })) << board.Log("context_store");
  }
  umount2(disk.c_str(), MNT_DETACH);
  fs::remove(disk);
}

// A busy machine gets three times what is promised.
constexpr absl::Duration kEndsWithin = absl::Seconds(15);

TEST(StateTest, ASignalAtAnyMomentEndsEveryProcessInTime) {
  std::mt19937 random(TestSeed());
  // 8 MiB of measuring take 50 s, and KV of a call several.
  Board board({"store.kv_disk_bytes_per_second=1048576"});
  const auto stop_all = [&] {
    for (const std::string& process : kProcesses) {
      const absl::Time begin = absl::Now();
      EXPECT_THAT(board.Stop(process), ::testing::AnyOf(0, 128 + SIGTERM)) << process;
      EXPECT_LT(absl::Now() - begin, kEndsWithin) << process << board.Log(process);
    }
  };
  for (int round = 0; round < 6; ++round) {
    board.StartAll();
    absl::SleepFor(absl::Milliseconds(random() % 1500));
    stop_all();
  }
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing());
  const std::string token = board.BindApp("app");
  const std::string context = CreateContext(*board.NewStub(), token);
  const std::string text(400, 'a');
  ASSERT_TRUE(
      GenerateWithRetry(*board.NewStub(), token, UserRequest(context, text, 4)).status.ok());
  stop_all();
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("context_store");
  const Answer again = GenerateWithRetry(*board.NewStub(), token, UserRequest(context, "hello", 4));
  EXPECT_TRUE(again.status.ok()) << again.status;
}

// A cgroup of version 1 or 2 that the test and what it starts are in, where the machine allows it.
class Cgroup {
 public:
  Cgroup() {
    for (const auto& [at, file] : {std::pair("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                                   std::pair("/sys/fs/cgroup", "memory.max")}) {
      path_ = std::string(at) + "/withy-test-" + std::to_string(getpid());
      limit_ = path_ + "/" + file;
      home_ = std::string(at) + "/cgroup.procs";
      if (mkdir(path_.c_str(), 0755) == 0 && Limit(uint64_t{1} << 40)) return;
      rmdir(path_.c_str());
    }
    path_.clear();
  }
  ~Cgroup() {
    Leave();
    if (!path_.empty()) Within(absl::Seconds(10), [&] { return rmdir(path_.c_str()) == 0; });
  }
  bool works() const { return !path_.empty(); }
  bool Limit(uint64_t bytes) const { return Write(limit_, std::to_string(bytes)); }
  bool Enter() const { return Write(path_ + "/cgroup.procs", std::to_string(getpid())); }
  // To the root: what the test does from here on is small.
  void Leave() const {
    if (works()) Write(home_, std::to_string(getpid()));
  }

 private:
  static bool Write(const std::string& path, const std::string& text) {
    std::ofstream file(path);
    return (file << text).flush().good();
  }
  std::string path_, limit_, home_;
};

constexpr char kNoCgroup[] = "a cgroup with a limit on memory needs root and a memory controller";

std::string StoreDetail(const Board& board) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::GetStatusResponse response;
  if (!board.NewStub()->GetStatus(&context, {}, &response).ok()) return "";
  for (const v1::ProcessState& state : response.processes()) {
    if (state.process() != "context_store") continue;
    return state.status().detail();
  }
  return "";
}

TEST(StateTest, AllFiveFitTheMemoryThatTheirCgroupAllows) {
  const Cgroup cgroup;
  if (!cgroup.works()) GTEST_SKIP() << kNoCgroup;
  ASSERT_TRUE(cgroup.Limit(uint64_t{320} << 20));
  Board board({"store.arena_bytes=1073741824"});
  ASSERT_TRUE(cgroup.Enter());
  board.StartAll();
  cgroup.Leave();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("context_store");
  EXPECT_THAT(board.Log("context_store"),
              AllOf(HasSubstr("not the 1024 MiB of store.arena_bytes: arena 1024 MiB + weights"),
                    HasSubstr("allowed 320 MiB")));
  EXPECT_THAT(StoreDetail(board), HasSubstr("the arena is smaller than configured"));
  const std::string token = board.BindApp("app");
  for (int i = 0; i < 4; ++i) {
    const std::string text(400, static_cast<char>('a' + i));
    const Answer answer = GenerateWithRetry(*board.NewStub(), token, UserRequest("", text, 8));
    EXPECT_TRUE(answer.status.ok()) << answer.status;
  }
  for (const std::string& process : kProcesses) EXPECT_EQ(board.Stop(process), 0) << process;
}

TEST(StateTest, WithoutMemoryForAnyArenaTheSumIsToldAndTheStoreStartsOnceThereIsSome) {
  const Cgroup cgroup;
  if (!cgroup.works()) GTEST_SKIP() << kNoCgroup;
  ASSERT_TRUE(cgroup.Limit(uint64_t{56} << 20));
  Board board;
  ASSERT_TRUE(cgroup.Enter());
  board.Start("context_store");
  cgroup.Leave();
  EXPECT_TRUE(Within(absl::Seconds(30), [&] {
    return board.Log("context_store").find("no memory for the KV arena") != std::string::npos;
  }));
  EXPECT_THAT(board.Log("context_store"),
              AllOf(HasSubstr("arena 32 MiB + weights"), HasSubstr("allowed 56 MiB")));
  ASSERT_TRUE(cgroup.Limit(uint64_t{400} << 20));
  for (const std::string& process : kProcesses) {
    if (process != "context_store") board.Start(process);
  }
  EXPECT_TRUE(board.WaitUntilServing()) << board.Log("context_store");
}

}  // namespace
}  // namespace withy::e2e
