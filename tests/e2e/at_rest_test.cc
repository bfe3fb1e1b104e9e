// Conversations on disk, across processes: encrypted, with their keys rotated under kill -9, backed
// up while the service runs, restored elsewhere, and bounded by quotas.
#include <grpcpp/grpcpp.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

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

// The files under `directory` that have these bytes.
std::string FilesWith(const std::string& directory, const std::string& bytes) {
  std::string found;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    if (ReadAll(entry.path()).find(bytes) != std::string::npos)
      found += entry.path().string() + " ";
  }
  return found;
}

// Runs withyctl for a board; both outputs go to `*output`. Returns its exit code.
int Withyctl(const Board& board, const std::string& arguments, std::string* output) {
  const fs::path binary = fs::read_symlink("/proc/self/exe").parent_path() / "withyctl";
  const std::string config = " --config " + board.dir() + "/withy.textproto";
  const std::string command = binary.string() + " " + arguments +
                              (arguments.starts_with("store check") ? "" : config) + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  output->clear();
  for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) output->push_back(static_cast<char>(c));
  const int status = pclose(pipe);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::vector<std::string> Messages(const Board& board, const std::string& token,
                                  const std::string& context_id) {
  v1::GetContextResponse kept;
  const grpc::Status status = GetContext(*board.NewStub(), token, context_id, &kept);
  EXPECT_TRUE(status.ok()) << status.error_message();
  std::vector<std::string> messages;
  for (const v1::ContextMessage& message : kept.messages()) {
    messages.push_back(message.message().content());
  }
  return messages;
}

TEST(AtRestTest, WhatWasSaidIsInNoFile) {
  Board board;
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("context_store");
  const auto stub = board.NewStub();
  const std::string token = board.BindApp("app");
  const std::string context_id = CreateContext(*stub, token, "Talk of quagmires only.");
  v1::GenerateRequest request = UserRequest(context_id, "what are quagmires", 8);
  request.set_request_id("r1");
  const Answer answer = Generate(*stub, token, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  v1::GenerateRequest stateless = UserRequest("", "and quagmires in bogs", 8);
  stateless.set_request_id("r2");
  ASSERT_TRUE(Generate(*stub, token, stateless).status.ok());
  for (const std::string& process : kProcesses) board.Kill(process);
  EXPECT_EQ(FilesWith(board.dir() + "/state", "quagmires"), "");
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("context_store");
  const auto messages = Messages(board, token, context_id);
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[1], "what are quagmires");
  EXPECT_EQ(messages[2], answer.finished.text());
  const Answer replayed = GenerateWithRetry(*stub, token, request);
  EXPECT_EQ(replayed.finished.text(), answer.finished.text());
}

TEST(AtRestTest, EachFaultOfTheKeyFileIsToldAndNothingIsLost) {
  Board board;
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("context_store");
  const std::string token = board.BindApp("app");
  const std::string context_id = CreateContext(*board.NewStub(), token, "be brief");
  const std::string key = board.dir() + "/state/master.key", kept = board.dir() + "/kept.key";
  EXPECT_EQ(board.Stop("context_store"), 0);
  fs::rename(key, kept);
  const auto refused = [&](const std::string& words, int code = 2) {
    board.Start("context_store");
    EXPECT_EQ(board.WaitForExit("context_store"), code) << words;
    const std::string log = board.Log("context_store");
    EXPECT_THAT(log.substr(log.find_last_of('\n', log.size() - 2) + 1),
                AllOf(HasSubstr(key), HasSubstr(words)));
  };
  refused("does not exist", 1);  // its disk may come later
  EXPECT_FALSE(fs::exists(key)) << "no new key in the place of one that is needed";
  const auto write = [&](const std::string& bytes, mode_t mode) {
    std::ofstream(key, std::ios::binary) << bytes;
    chmod(key.c_str(), mode);
  };
  write("short", 0600);
  refused("has 5 bytes");
  write(std::string(32, 'x'), 0600);
  refused("is not the one that text and KV are encrypted with");
  EXPECT_EQ(ReadAll(key), std::string(32, 'x')) << "left as it is";
  fs::copy_file(kept, key, fs::copy_options::overwrite_existing);
  chmod(key.c_str(), 0644);
  refused("mode 0644");
  chmod(key.c_str(), 0600);
  board.Start("context_store");
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("context_store");
  EXPECT_EQ(Messages(board, token, context_id), std::vector<std::string>{"be brief"});
}

// withyctl rotates the key again and again while the store is killed at random moments.
TEST(AtRestTest, AKeyRotationSurvivesKillsAtAnyMoment) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Board board;
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("context_store");
  const auto stub = board.NewStub();
  const std::string token = board.BindApp("app");
  std::vector<std::string> contexts, told;
  for (int i = 0; i < 8; ++i) {
    contexts.push_back(CreateContext(*stub, token, "context " + std::to_string(i)));
  }
  const std::string first = ReadAll(board.dir() + "/state/master.key");
  std::atomic<bool> over = false;
  std::atomic<int> rotated = 0;
  std::thread operator_thread([&] {
    std::string output;
    while (!over) rotated += Withyctl(board, "store rotate-key", &output) == 0 ? 1 : 0;
  });
  for (int round = 0; round < 8; ++round) {
    absl::SleepFor(absl::Milliseconds(random() % 250));
    board.Kill("context_store");
    board.Start("context_store");
    ASSERT_TRUE(board.WaitUntilServing()) << board.Log("context_store");
    const int i = static_cast<int>(random() % contexts.size());
    EXPECT_EQ(Messages(board, token, contexts[i])[0], "context " + std::to_string(i));
    const Answer answer = GenerateWithRetry(*stub, token, UserRequest(contexts[i], "go on", 2));
    EXPECT_TRUE(answer.status.ok()) << answer.status;
  }
  const int before = rotated;
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (rotated == before && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  over = true;
  operator_thread.join();
  EXPECT_GT(rotated, before) << "a rotation that is not disturbed succeeds";
  EXPECT_NE(ReadAll(board.dir() + "/state/master.key"), first);
  EXPECT_FALSE(fs::exists(board.dir() + "/state/master.key.next"));
  for (size_t i = 0; i < contexts.size(); ++i) {
    EXPECT_EQ(Messages(board, token, contexts[i])[0], "context " + std::to_string(i));
  }
}

TEST(AtRestTest, ABackupOfARunningServiceIsRestoredElsewhere) {
  Board board;
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("context_store");
  const auto stub = board.NewStub();
  const std::string token = board.BindApp("app");
  const std::string context_id = CreateContext(*stub, token);
  const Answer first = Generate(*stub, token, UserRequest(context_id, "before the backup", 4));
  ASSERT_TRUE(first.status.ok()) << first.status;
  // Calls go on meanwhile.
  std::atomic<bool> over = false;
  std::thread app([&] {
    const std::string other = CreateContext(*stub, token);
    while (!over) {
      EXPECT_TRUE(Generate(*stub, token, UserRequest(other, "go on", 2)).status.ok());
    }
  });
  const std::string backup = board.dir() + "/backup";
  std::string output;
  const int code = Withyctl(board, "store backup " + backup, &output);
  over = true;
  app.join();
  ASSERT_EQ(code, 0) << output << board.Log("context_store");
  EXPECT_THAT(output, HasSubstr("with the master key"));
  EXPECT_TRUE(fs::is_empty(board.dir() + "/state/backups")) << "the copy in between is gone";
  EXPECT_EQ(FilesWith(backup, "before the backup"), "");
  EXPECT_EQ(Withyctl(board, "store check " + backup, &output), 0) << output;
  EXPECT_EQ(Withyctl(board, "store backup " + backup, &output), 1);
  EXPECT_THAT(output, HasSubstr("ALREADY_EXISTS"));
  EXPECT_EQ(Withyctl(board, "store restore " + backup, &output), 1);
  EXPECT_THAT(output, AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("move it away")));
  ASSERT_TRUE(Generate(*stub, token, UserRequest(context_id, "after it", 4)).status.ok());
  // A rotated key opens nothing of a former backup; the backup has its own.
  ASSERT_EQ(Withyctl(board, "store rotate-key", &output), 0) << output;

  Board elsewhere;
  ASSERT_EQ(Withyctl(elsewhere, "store restore " + backup, &output), 0) << output;
  elsewhere.StartAll();
  ASSERT_TRUE(elsewhere.WaitUntilServing()) << elsewhere.Log("context_store");
  const std::vector<std::string> restored = Messages(elsewhere, token, context_id);
  ASSERT_EQ(restored.size(), 2u);
  EXPECT_EQ(restored[0], "before the backup");
  EXPECT_EQ(restored[1], first.finished.text());
  const Answer next = Generate(*elsewhere.NewStub(), token, UserRequest(context_id, "and now", 4));
  EXPECT_TRUE(next.status.ok()) << next.status;
  EXPECT_EQ(Messages(board, token, context_id).size(), 4u);
}

TEST(AtRestTest, ADamagedDatabaseIsRepairedByOneCommand) {
  Board board;
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("context_store");
  const auto stub = board.NewStub();
  const std::string token = board.BindApp("app");
  const std::string context_id = CreateContext(*stub, token);
  const Answer first = Generate(*stub, token, UserRequest(context_id, "before the damage", 4));
  ASSERT_TRUE(first.status.ok()) << first.status;
  std::string output;
  EXPECT_EQ(Withyctl(board, "store repair", &output), 1) << "while the store runs";
  EXPECT_THAT(output, HasSubstr("is in use"));
  board.Kill("context_store");
  const std::string records = board.dir() + "/state/records";
  std::ofstream(records + "/CURRENT", std::ios::trunc).flush();
  ASSERT_EQ(Withyctl(board, "store repair", &output), 0) << output;
  EXPECT_THAT(output, AllOf(HasSubstr("1 contexts"), HasSubstr(records + ".damaged-")));
  board.Start("context_store");
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("context_store");
  EXPECT_EQ(Messages(board, token, context_id)[0], "before the damage");
  EXPECT_TRUE(GenerateWithRetry(*stub, token, UserRequest(context_id, "behind it", 4)).status.ok());
  board.Stop("context_store");
  EXPECT_EQ(Withyctl(board, "store repair", &output), 0) << output;
  EXPECT_THAT(output, HasSubstr("nothing was changed"));
}

TEST(AtRestTest, AReachedQuotaRefusesTheNextCallAndKeepsTheText) {
  Board board({"store.tokens_per_context=16", "orchestrator.contexts_per_app=2"});
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("context_store");
  const auto stub = board.NewStub();
  const std::string token = board.BindApp("app");
  const std::string context_id = CreateContext(*stub, token);
  const std::string text = "a message of more than sixteen tokens, which one call may have";
  ASSERT_TRUE(Generate(*stub, token, UserRequest(context_id, text, 4)).status.ok());
  const Answer refused = Generate(*stub, token, UserRequest(context_id, "more", 4));
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status)) << refused.status;
  EXPECT_THAT(std::string(refused.status.message()),
              AllOf(HasSubstr(context_id), HasSubstr("the limit is 16"),
                    HasSubstr("store.tokens_per_context"), HasSubstr("a new context")));
  EXPECT_EQ(Messages(board, token, context_id).size(), 2u);
  const std::string next = CreateContext(*stub, token);
  EXPECT_TRUE(Generate(*stub, token, UserRequest(next, "more", 4)).status.ok());
  grpc::ClientContext third;
  Authorise(&third, token);
  v1::CreateContextResponse created;
  const grpc::Status full = stub->CreateContext(&third, {}, &created);
  EXPECT_EQ(full.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(full.error_message(), HasSubstr("the limit is 2"));
}

}  // namespace
}  // namespace withy::e2e
