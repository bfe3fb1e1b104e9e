// kill -9 of each process in turn under load: no answered exchange is lost or answered twice.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/channel.h"
#include "tests/e2e/board.h"
#include "tests/e2e/test_model.h"
#include "withy/v1/context_store.grpc.pb.h"

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

const std::string kStoreWithArena = "context_store, whose arena is kept";

class KillTest : public ::testing::TestWithParam<std::string> {};

TEST_P(KillTest, LosesNoAnswerAndGoesOn) {
  Board board;
  std::string process = GetParam();
  if (process == kStoreWithArena) {
    process = "context_store";
    board.KeepArena();
  }
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
    EXPECT_TRUE(wait_for_answers(answered() + 4)) << board.Log(process);
    board.Kill(process);
    board.Start(process);
    ASSERT_TRUE(board.WaitUntilServing()) << board.Log(process);
  }
  EXPECT_TRUE(wait_for_answers(answered() + 4)) << board.Log(process);
  for (const auto& app : apps) app->StopAndCheck();
}

INSTANTIATE_TEST_SUITE_P(EachProcess, KillTest, ::testing::ValuesIn(kProcesses));
INSTANTIATE_TEST_SUITE_P(AStoreWithItsArena, KillTest, ::testing::Values(kStoreWithArena));

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

// Sixteen callers, each a stateless call and one on a context of its own.
class ManyCallersTest : public ::testing::Test {
 protected:
  static constexpr int kCallers = 16;
  // Its chunks are large beside the smallest arena that can be configured.
  const std::string kModel = "model.path=" + TestSlowPath();

  static v1::GenerateRequest Ask(const std::string& context_id, int caller) {
    std::string text = "caller " + std::to_string(caller);
    for (int i = 0; i < caller; ++i) text += " and on";
    return UserRequest(context_id, text, 120);
  }
  static Answer Call(Board& board, const std::string& token, int caller) {
    const auto stub = board.NewStub();
    const std::string context_id = caller % 2 == 0 ? "" : CreateContext(*stub, token);
    return Generate(*stub, token, Ask(context_id, caller), nullptr, absl::Seconds(100));
  }
};

TEST_F(ManyCallersTest, EachGetsItsWholeAnswerInAnArenaOfAThirdOfWhatTheyNeed) {
  std::vector<std::string> alone;
  uint64_t needed_chunks = 0, chunk_bytes = 0;
  {
    Board board({kModel});
    board.StartAll();
    ASSERT_TRUE(board.WaitUntilServing());
    const std::string token = board.BindApp("app");
    for (int i = 0; i < kCallers; ++i) {
      const Answer answer = Call(board, token, i);
      ASSERT_TRUE(answer.status.ok()) << answer.status;
      alone.push_back(answer.finished.text());
      const v1::Usage& usage = answer.finished.usage();
      needed_chunks += (usage.prompt_tokens() + usage.completion_tokens()) / 16 + 1;
    }
    const auto stub = board.NewStub();
    const std::string context_id = CreateContext(*stub, token);
    ASSERT_TRUE(Generate(*stub, token, Ask(context_id, 1)).status.ok());
    v1::GetContextResponse context;
    ASSERT_TRUE(GetContext(*stub, token, context_id, &context).ok());
    chunk_bytes = context.context().resident_bytes() / ((context.context().kv_tokens() + 15) / 16);
  }
  Board board({kModel, "store.arena_bytes=" + std::to_string(needed_chunks * chunk_bytes / 3),
               "model.max_batch=" + std::to_string(kCallers)});
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("context_store");
  const std::string token = board.BindApp("app");
  std::vector<Answer> answers(kCallers);
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([&, i] { answers[static_cast<size_t>(i)] = Call(board, token, i); });
  }
  for (std::thread& caller : callers) caller.join();
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(answers[i].status.ok()) << i << ": " << answers[i].status;
    EXPECT_EQ(answers[i].finished.text(), alone[i]) << i;
    EXPECT_TRUE(answers[i].finished.reason() == v1::FINISH_REASON_MAX_TOKENS ||
                answers[i].finished.reason() == v1::FINISH_REASON_END_OF_TURN)
        << answers[i].finished.ShortDebugString();
  }
}

// A conversation that needs more than the arena holds is told so before it is computed.
TEST_F(ManyCallersTest, TheWindowIsWhatTheArenaHolds) {
  Board board({kModel, "store.arena_bytes=1048576"});
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("context_store");
  const std::string token = board.BindApp("app");
  const auto stub = board.NewStub();
  grpc::ClientContext context;
  Authorise(&context, token);
  v1::ListModelsResponse models;
  ASSERT_TRUE(stub->ListModels(&context, {}, &models).ok());
  const uint32_t window = models.models(0).context_length();
  EXPECT_THAT(board.Log("model_worker"), ::testing::HasSubstr("the KV arena of 1 MiB holds"));
  const Answer fits =
      Generate(*stub, token, UserRequest("", "short", window > 100 ? window - 60 : window / 2));
  EXPECT_TRUE(fits.status.ok()) << fits.status;
  const Answer too_long = Generate(*stub, token, UserRequest("", std::string(2 * window, 'x'), 4));
  EXPECT_EQ(too_long.status.code(), absl::StatusCode::kOutOfRange) << too_long.status;
}

// One context with a long message, whose KV was written to disk. There is room for
// two more calls in its window.
class KvRestartTest : public ::testing::Test {
 protected:
  void Talk() {
    board_.StartAll();
    ASSERT_TRUE(board_.WaitUntilServing());
    stub_ = board_.NewStub();
    token_ = board_.BindApp("app");
    context_id_ = CreateContext(*stub_, token_);
    std::string text;
    for (int i = 0; i < 13; ++i) text += "line " + std::to_string(i) + " of a long message. ";
    const Answer first = Generate(*stub_, token_, UserRequest(context_id_, text, 8));
    ASSERT_TRUE(first.status.ok()) << first.status;
    ASSERT_TRUE(Eventually([&] {
      kept_ = Get();
      whole_chunks_ = kept_.context().tokens() / 16;
      uint32_t stored = 0;
      for (const v1::ChunkRun& run : kept_.chunks()) {
        if (run.stored() != v1::KV_FORMAT_UNSPECIFIED) stored += run.chunks();
      }
      return stored >= whole_chunks_ && stored > 0;
    }));
    ASSERT_GE(whole_chunks_, 16u);
  }
  static bool Eventually(const std::function<bool()>& condition) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (!condition()) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(20));
    }
    return true;
  }
  v1::GetContextResponse Get() {
    v1::GetContextResponse response;
    EXPECT_TRUE(GetContext(*stub_, token_, context_id_, &response).ok());
    return response;
  }
  // The next call computes its own prompt, and what its load has left to the worker: that is less
  // than half of the context, because reading takes less time.
  void ExpectReuse() {
    const Answer next = GenerateWithRetry(*stub_, token_, UserRequest(context_id_, "and now?", 8));
    ASSERT_TRUE(next.status.ok()) << next.status;
    EXPECT_GE(next.finished.usage().reused_tokens(), whole_chunks_ * 16 / 2)
        << board_.Log("context_store") << board_.Log("model_worker") << kept_.ShortDebugString()
        << next.finished.ShortDebugString() << Get().ShortDebugString();
  }
  v1::GetStoreInfoResponse StoreInfo() {
    const auto store =
        v1::ContextStore::NewStub(rpc::Connect("unix:" + board_.dir() + "/run/context_store.sock"));
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(30));
    context.set_wait_for_ready(true);
    v1::GetStoreInfoResponse info;
    EXPECT_TRUE(store->GetStoreInfo(&context, {}, &info).ok());
    return info;
  }

  // Computing the context takes longer than a busy disk's reads.
  Board board_{{"model.path=" + SlowModelPath()}};
  std::unique_ptr<v1::LlmService::Stub> stub_;
  std::string token_, context_id_;
  v1::GetContextResponse kept_;
  uint32_t whole_chunks_ = 0;
};

TEST_F(KvRestartTest, KvIsReadBackAfterEverythingWasKilled) {
  Talk();
  EXPECT_EQ(kept_.context().compressed_kv_tokens(), 0u) << kept_.ShortDebugString();
  for (const std::string& process : kProcesses) board_.Kill(process);
  board_.StartAll();
  ASSERT_TRUE(board_.WaitUntilServing());
  EXPECT_EQ(Get().context().resident_bytes(), 0u);
  ExpectReuse();
}

// The supervisor kept the arena: nothing is read or computed again.
TEST_F(KvRestartTest, AKilledStoreGoesOnWithWhatIsInMemory) {
  board_.KeepArena();
  Talk();
  for (int round = 0; round < 2; ++round) {
    const uint64_t resident = Get().context().resident_bytes();
    ASSERT_GT(resident, 0u);
    board_.Kill("context_store");
    board_.Start("context_store");
    ASSERT_TRUE(board_.WaitUntilServing()) << board_.Log("context_store");
    EXPECT_TRUE(Eventually([&] { return Get().context().resident_bytes() == resident; }))
        << board_.Log("context_store");
    const v1::GetStoreInfoResponse info = StoreInfo();
    EXPECT_GE(info.kept_chunks(), whole_chunks_);
    EXPECT_EQ(info.unkept_chunks(), 0u);
    ExpectReuse();
    EXPECT_EQ(StoreInfo().read_chunks(), 0u);
    EXPECT_EQ(StoreInfo().faults(), 0u);
  }
}

TEST_F(KvRestartTest, AKilledWorkerGoesOnWithWhatIsInMemory) {
  Talk();
  const uint64_t resident = Get().context().resident_bytes();
  board_.Kill("model_worker");
  board_.Start("model_worker");
  ASSERT_TRUE(board_.WaitUntilServing());
  EXPECT_EQ(Get().context().resident_bytes(), resident);
  ExpectReuse();
  EXPECT_EQ(StoreInfo().read_chunks(), 0u);
  EXPECT_EQ(StoreInfo().faults(), 0u);
}

}  // namespace
}  // namespace withy::e2e
