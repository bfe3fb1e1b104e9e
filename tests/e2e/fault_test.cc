// kill -9 of each process in turn under load: no answered exchange is lost or answered twice.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/board.h"

namespace withy::e2e {
namespace {

constexpr int kApps = 3;

// One app that continually uses its context and records every answer.
class TalkingApp {
 public:
  TalkingApp(Board& board, int number)
      : stub_(board.NewStub()), token_(board.BindApp("app" + std::to_string(number))) {
    context_id_ = CreateContext(*stub_, token_);
    thread_ = std::thread([this] { Talk(); });
  }

  // Stops, and compares the context with the recorded answers.
  void StopAndCheck() {
    stop_ = true;
    thread_.join();
    v1::GetContextResponse kept;
    const grpc::Status status = GetContext(*stub_, token_, context_id_, &kept);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(kept.messages_size(), static_cast<int>(answers_.size()) * 2);
    for (size_t i = 0; i < answers_.size(); ++i) {
      EXPECT_EQ(kept.messages(static_cast<int>(2 * i)).message().content(), Prompt(i));
      EXPECT_EQ(kept.messages(static_cast<int>(2 * i + 1)).message().content(), answers_[i]);
    }
    EXPECT_EQ(failures_, "");
  }

  int answered() const { return answered_; }

 private:
  static std::string Prompt(size_t turn) { return "turn " + std::to_string(turn); }

  void Talk() {
    for (size_t turn = 0; !stop_ && turn < 300; ++turn) {
      v1::GenerateRequest request = UserRequest(context_id_, Prompt(turn), 6);
      request.set_request_id("turn-" + std::to_string(turn));
      const Answer answer = GenerateWithRetry(*stub_, token_, request);
      if (!answer.status.ok()) {
        failures_ += answer.status.ToString() + "\n";
        return;
      }
      answers_.push_back(answer.finished.text());
      ++answered_;
    }
  }

  std::unique_ptr<v1::LlmService::Stub> stub_;
  const std::string token_;
  std::string context_id_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> answered_ = 0;
  std::vector<std::string> answers_;  // used by the talking thread until it is joined
  std::string failures_;
  std::thread thread_;
};

class KillTest : public ::testing::TestWithParam<std::string> {};

TEST_P(KillTest, LosesNoAnswerAndGoesOn) {
  Board board;
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("model_worker");
  std::vector<std::unique_ptr<TalkingApp>> apps;
  for (int i = 0; i < kApps; ++i) apps.push_back(std::make_unique<TalkingApp>(board, i));
  const auto answered = [&] {
    int sum = 0;
    for (const auto& app : apps) sum += app->answered();
    return sum;
  };
  const auto wait_for_answers = [&](int count) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (answered() < count && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
    return answered() >= count;
  };
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(wait_for_answers(answered() + 4)) << board.Log(GetParam());
    board.Kill(GetParam());
    board.Start(GetParam());
    ASSERT_TRUE(board.WaitUntilServing()) << board.Log(GetParam());
  }
  EXPECT_TRUE(wait_for_answers(answered() + 4)) << board.Log(GetParam());
  for (const auto& app : apps) app->StopAndCheck();
}

INSTANTIATE_TEST_SUITE_P(EachProcess, KillTest, ::testing::ValuesIn(kProcesses));

TEST(RestartTest, ContextsGoOnAfterEverythingWasKilled) {
  Board board;
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing());
  const auto stub = board.NewStub();
  const std::string token = board.BindApp("app");
  const std::string context_id = CreateContext(*stub, token);
  ASSERT_TRUE(Generate(*stub, token, UserRequest(context_id, "remember this", 10)).status.ok());
  for (const std::string& process : kProcesses) board.Kill(process);
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing());
  const Answer after = GenerateWithRetry(*stub, token, UserRequest(context_id, "what was it", 10));
  ASSERT_TRUE(after.status.ok()) << after.status;
  EXPECT_GT(after.finished.usage().context_tokens(), 10u);
}

// KV is compressed and written to disk when a call ends. After everything was killed, the next call
// reads it back and computes its own prompt only.
TEST(RestartTest, KvIsReadBackAfterEverythingWasKilled) {
  Board board;
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing());
  const auto stub = board.NewStub();
  const std::string token = board.BindApp("app");
  const std::string context_id = CreateContext(*stub, token);
  std::string text;
  for (int i = 0; i < 18; ++i) text += "line " + std::to_string(i) + " of a long message. ";
  const Answer first = Generate(*stub, token, UserRequest(context_id, text, 8));
  ASSERT_TRUE(first.status.ok()) << first.status;
  const auto get = [&] {
    v1::GetContextResponse response;
    EXPECT_TRUE(GetContext(*stub, token, context_id, &response).ok());
    return response;
  };
  v1::GetContextResponse kept;
  uint32_t whole_chunks = 0;
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  do {
    kept = get();
    whole_chunks = kept.context().tokens() / 16;
    uint32_t stored = 0;
    for (const v1::ChunkRun& run : kept.chunks()) {
      if (run.stored() != v1::KV_FORMAT_UNSPECIFIED) stored += run.chunks();
    }
    if (stored >= whole_chunks && stored > 0) break;
    absl::SleepFor(absl::Milliseconds(20));
  } while (absl::Now() < deadline);
  ASSERT_GE(whole_chunks, 20u);
  bool compressed = false;
  for (const v1::ChunkRun& run : kept.chunks()) {
    compressed |= run.resident() != v1::KV_FORMAT_UNSPECIFIED && run.resident() != v1::KV_FORMAT_Q8;
  }
  EXPECT_TRUE(compressed) << kept.ShortDebugString();

  for (const std::string& process : kProcesses) board.Kill(process);
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing());
  EXPECT_EQ(get().context().resident_bytes(), 0u);
  const Answer next = Generate(*stub, token, UserRequest(context_id, "and now?", 8));
  ASSERT_TRUE(next.status.ok()) << next.status;
  EXPECT_GE(next.finished.usage().reused_tokens(), whole_chunks * 16)
      << board.Log("context_store") << kept.ShortDebugString();
}

}  // namespace
}  // namespace withy::e2e
