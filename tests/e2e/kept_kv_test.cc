// Greedy answers do not depend on what is kept: neither on rest, nor on evictions, nor on restarts.
// Where they do, because KV lost bits, they say so.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/channel.h"
#include "tests/e2e/board.h"
#include "tests/e2e/test_model.h"
#include "withy/v1/context_store.grpc.pb.h"

namespace withy::e2e {
namespace {

constexpr uint32_t kAnswerTokens = 8;

// A conversation: what the user said and what was answered, in turns.
struct Talk {
  std::string context_id;
  std::vector<std::string> said;
  std::vector<std::string> answered;
};

class KeptKvTest : public ::testing::Test {
 protected:
  // The pocket model: its answers are text that can be sent again.
  // `store`: a program that is context_store; empty: its own.
  void StartBoard(std::vector<std::string> overrides, const std::string& store = "",
                  const std::string& model = WITHY_SOURCE_DIR "/models/withy-pocket-q8_0.gguf") {
    overrides.push_back("model.path=" + model);
    board_ = std::make_unique<Board>(std::move(overrides));
    if (!store.empty()) board_->Use("context_store", store);
    board_->StartAll();
    ASSERT_TRUE(board_->WaitUntilServing())
        << board_->Log("orchestrator") << board_->Log("model_worker");
    stub_ = board_->NewStub();
    token_ = board_->BindApp("test.app");
  }
  v1::GetStoreInfoResponse StoreInfo() {
    const auto store = v1::ContextStore::NewStub(
        rpc::Connect("unix:" + board_->dir() + "/run/context_store.sock"));
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(30));
    context.set_wait_for_ready(true);
    v1::GetStoreInfoResponse info;
    EXPECT_TRUE(store->GetStoreInfo(&context, {}, &info).ok());
    return info;
  }
  // Until the store has done what there is to do after calls.
  void Rest() {
    const absl::Time end = absl::Now() + absl::Seconds(60);
    while (StoreInfo().idle_work() > 0 && absl::Now() < end) absl::SleepFor(absl::Milliseconds(20));
  }
  void KillAndRestartAll() {
    for (const char* process : {"orchestrator", "model_worker", "draft_worker", "context_store"}) {
      board_->Kill(process);
    }
    for (const char* process : {"context_store", "model_worker", "draft_worker", "orchestrator"}) {
      board_->Start(process);
    }
    ASSERT_TRUE(board_->WaitUntilServing()) << board_->Log("model_worker");
  }
  v1::Usage Say(Talk* talk, const std::string& text) {
    const Answer answer =
        GenerateWithRetry(*stub_, token_, UserRequest(talk->context_id, text, kAnswerTokens));
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    talk->said.push_back(text);
    talk->answered.push_back(answer.text);
    return answer.finished.usage();
  }
  // The last answer, when the conversation is sent whole and nothing is kept.
  std::string AnswerAlone(const Talk& talk) {
    v1::GenerateRequest request = UserRequest("", "", kAnswerTokens);
    auto* messages = request.mutable_prompt()->mutable_messages();
    messages->clear_messages();
    const auto add = [&](const char* role, const std::string& text) {
      v1::Message* message = messages->add_messages();
      message->set_role(role);
      message->set_content(text);
    };
    for (size_t i = 0; i < talk.said.size(); ++i) {
      add("user", talk.said[i]);
      if (i + 1 < talk.said.size()) add("assistant", talk.answered[i]);
    }
    const Answer answer = GenerateWithRetry(*stub_, token_, request);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.finished.usage().reused_tokens(), 0u);
    return answer.text;
  }
  static std::string LongText(int number) {
    std::string text = "Talk " + std::to_string(number) + ":";
    for (int i = 0; i < 12; ++i) text += " the cat sat on mat " + std::to_string(i * number) + ";";
    return text;
  }

  std::unique_ptr<Board> board_;
  std::unique_ptr<v1::LlmService::Stub> stub_;
  std::string token_;
};

TEST_F(KeptKvTest, AnswersAreThoseOfTheSameConversationWithoutKeptKv) {
  StartBoard({"store.arena_bytes=4194304"});
  std::vector<Talk> talks(16);
  const auto say_in_all = [&](const std::string& text) {
    uint64_t reused = 0;
    for (size_t i = 0; i < talks.size(); ++i) {
      const v1::Usage usage = Say(&talks[i], text.empty() ? LongText(static_cast<int>(i)) : text);
      reused += usage.reused_tokens();
      EXPECT_EQ(usage.compressed_kv_tokens(), 0u);
      EXPECT_EQ(usage.other_level_kv_tokens(), 0u);
      EXPECT_EQ(talks[i].answered.back(), AnswerAlone(talks[i])) << "talk " << i;
    }
    Rest();
    return reused;
  };
  for (Talk& talk : talks) talk.context_id = CreateContext(*stub_, token_);
  say_in_all("");
  EXPECT_GT(say_in_all("and on"), 0u);
  const v1::GetStoreInfoResponse info = StoreInfo();
  EXPECT_GT(info.evicted_chunks(), 0u) << "not all of it fits the arena";
  EXPECT_EQ(info.demoted_chunks(), 0u);
  KillAndRestartAll();
  EXPECT_GT(say_in_all("and now?"), 0u);
  EXPECT_GT(StoreInfo().read_chunks(), 0u);
}

// A store that compresses contexts when their calls end stands in for one without room: a
// contestant of the benchmark of contexts.
TEST_F(KeptKvTest, AnAnswerOnKvOfFewerBitsSaysSoAlsoAfterRestarts) {
  ASSERT_EQ(setenv("WITHY_CONTESTANT", "llms", 1), 0);
  StartBoard({"store.kv_ratio_percent=25"}, "withy-bench-context-store");
  Talk talk{.context_id = CreateContext(*stub_, token_), .said = {}, .answered = {}};
  EXPECT_EQ(Say(&talk, LongText(3)).compressed_kv_tokens(), 0u);
  Rest();
  v1::GetContextResponse kept;
  ASSERT_TRUE(GetContext(*stub_, token_, talk.context_id, &kept).ok());
  const uint32_t compressed = kept.context().compressed_kv_tokens();
  ASSERT_GT(compressed, 0u);
  ASSERT_LT(compressed, kept.context().kv_tokens()) << "the first and the latest chunks";
  const v1::Usage next = Say(&talk, LongText(4));
  EXPECT_EQ(next.compressed_kv_tokens(), compressed);
  Rest();
  KillAndRestartAll();
  // What was computed over such KV counts, too.
  const v1::Usage later = Say(&talk, "and now?");
  EXPECT_GT(later.compressed_kv_tokens(), compressed + next.prompt_tokens() / 2);
  EXPECT_LT(later.compressed_kv_tokens(), later.reused_tokens());
}

// What was answered: tokens and their log-probabilities, whose bits change when any K or V does.
using Told = std::vector<std::pair<int32_t, float>>;

class WindowedKvTest : public KeptKvTest {
 protected:
  Told Ask(const std::string& context_id, const std::string& text) {
    v1::GenerateRequest request = UserRequest(context_id, text, kAnswerTokens);
    request.mutable_limits()->set_logprobs(1);
    const Answer answer = GenerateWithRetry(*stub_, token_, request);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.finished.usage().compressed_kv_tokens(), 0u);
    reused_ += answer.finished.usage().reused_tokens();
    Told told;
    for (const v1::Token& token : answer.tokens) told.emplace_back(token.id(), token.logprob());
    return told;
  }
  static std::string Words(int number, int words) {
    std::string text = "Talk " + std::to_string(number) + ":";
    for (int i = 0; i < words; ++i) text += " the cat sat on mat " + std::to_string(i * number);
    return text;
  }
  // Conversations of several lengths; two and two begin alike, for longer than any window.
  // `between` is called now and then with a number.
  template <typename Between>
  std::vector<Told> Converse(Between between) {
    std::vector<Told> all;
    std::vector<std::string> talks;
    int steps = 0;
    for (int talk = 0; talk < 8; ++talk) {
      talks.push_back(CreateContext(*stub_, token_));
      all.push_back(Ask(talks.back(), Words(talk / 2, 40 + 10 * (talk / 2))));
      if (talk % 3 == 2) between(steps++);
    }
    for (int round = 0; round < 3; ++round) {
      for (int talk = 0; talk < 8; ++talk) {
        all.push_back(Ask(talks[static_cast<size_t>(talk)], Words(talk + round, talk % 4 * 8)));
      }
      between(steps++);
    }
    // One that goes on as another one did, and one that turns off early.
    for (const int words : {60, 20}) {
      talks.push_back(CreateContext(*stub_, token_));
      all.push_back(Ask(talks.back(), Words(2, words)));
    }
    return all;
  }
  uint64_t ResidentBytes(v1::KvFormat wanted) {
    const v1::GetStoreInfoResponse info = StoreInfo();
    for (const v1::KvFormatBytes& format : info.kv()) {
      if (format.format() == wanted) return format.resident_bytes();
    }
    return 0;
  }

  uint64_t reused_ = 0;
};

// A model with sliding windows answers with the same bits where the KV that windows hide has left
// the arena and the disk, over evictions, restarts and kills, as where everything is kept.
TEST_F(WindowedKvTest, AnswersAreThoseWithAllKvKept) {
  StartBoard({"store.arena_bytes=134217728"}, "", TestWindowedPath());
  const std::vector<Told> kept = Converse([](int) {});
  EXPECT_EQ(StoreInfo().evicted_chunks(), 0u);
  EXPECT_EQ(ResidentBytes(v1::KV_FORMAT_Q8_GLOBAL), 0u) << "there was room";
  const uint64_t all_reused = reused_;
  board_.reset();
  reused_ = 0;

  StartBoard({"store.arena_bytes=4194304"}, "", TestWindowedPath());
  uint64_t narrow = 0;
  const std::vector<Told> again = Converse([&](int step) {
    narrow = std::max(narrow, ResidentBytes(v1::KV_FORMAT_Q8_GLOBAL));
    Rest();
    if (step == 1) KillAndRestartAll();
    if (step == 3) board_->Kill("context_store");
    if (step == 3) board_->Start("context_store");
    ASSERT_TRUE(board_->WaitUntilServing()) << board_->Log("context_store");
  });
  ASSERT_EQ(again.size(), kept.size());
  for (size_t i = 0; i < kept.size(); ++i) {
    EXPECT_FALSE(kept[i].empty());
    EXPECT_EQ(again[i], kept[i]) << "answer " << i;
  }
  EXPECT_GT(narrow, 0u);
  EXPECT_GT(reused_, all_reused / 2);
  EXPECT_GT(StoreInfo().read_chunks(), 0u);
}

}  // namespace
}  // namespace withy::e2e
