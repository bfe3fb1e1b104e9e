// Speculation through the five processes: answers are those of plain decoding whatever the source,
// and whatever happens to the draft.
#include <grpcpp/grpcpp.h>

#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "engine/gguf/reader.h"
#include "engine/head/testing.h"
#include "engine/weights/shape.h"
#include "gtest/gtest.h"
#include "tests/e2e/board.h"
#include "tests/e2e/test_model.h"

namespace withy::e2e {
namespace {

class SpeculationTest : public ::testing::Test {
 protected:
  // A draft with the target's weights is always right. KV stays at 8 bits: contexts that are idle
  // for a moment would else be rounded, so that answers depend on how soon the next call comes.
  void StartBoard(const std::string& model, bool always = true) {
    board_ = std::make_unique<Board>(
        std::vector<std::string>{"model.path=" + model, "draft.path=" + model, "model.tree_rows=9",
                                 "store.kv_ratio_percent=100"});
    if (always) board_->SpeculateAlways();
    board_->StartAll();
    ASSERT_TRUE(board_->WaitUntilServing()) << board_->Log("model_worker");
    stub_ = board_->NewStub();
    token_ = board_->BindApp("app");
  }
  // The target's weights are streamed, the draft's, which are the same, are in memory.
  void StartStreaming(const std::string& setting) {
    board_ = std::make_unique<Board>(std::vector<std::string>{
        "model.path=" + LargeElasticPath(), "draft.path=" + LargeElasticPath(),
        "model.weight_budget_bytes=16000000", "model.tree_rows=9", setting});
    board_->SpeculateAlways();
    board_->StartAll();
    ASSERT_TRUE(board_->WaitUntilServing()) << board_->Log("model_worker");
    stub_ = board_->NewStub();
    token_ = board_->BindApp("app");
  }
  // Calls until the draft is used; the worker looks for it again a moment after it was away.
  void UntilDrafted(const v1::GenerateRequest& request, const std::string& expected,
                    bool in_windows) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    bool drafted = false;
    while (!drafted && absl::Now() < deadline) {
      const Answer again = Generate(*stub_, token_, request);
      EXPECT_EQ(again.text, expected);
      drafted = AcceptedOf(again, v1::SPECULATION_DRAFT) > 20 &&
                (!in_windows || again.finished.speculation().window_kept_tokens() > 0);
    }
    EXPECT_TRUE(drafted) << board_->Log("model_worker");
  }
  // A call in whose middle, after `bytes` of its text, draft_worker is killed.
  Answer KillTheDraftAfter(size_t bytes, const v1::GenerateRequest& request,
                           const std::string& expected) {
    bool killed = false;
    Answer without = Generate(*stub_, token_, request, [&](const Answer& answer) {
      if (!killed && answer.text.size() > bytes) {
        board_->Kill("draft_worker");
        killed = true;
      }
      return true;
    });
    EXPECT_TRUE(killed);
    EXPECT_TRUE(without.status.ok()) << without.status;
    EXPECT_EQ(without.text, expected);
    return without;
  }
  static const v1::SourceReport* Find(const Answer& answer, v1::Speculation source) {
    for (const v1::SourceReport& report : answer.finished.speculation().sources()) {
      if (report.source() == source) return &report;
    }
    return nullptr;
  }
  static uint32_t AcceptedOf(const Answer& answer, v1::Speculation source) {
    const v1::SourceReport* report = Find(answer, source);
    return report == nullptr ? 0 : report->accepted_tokens();
  }

  std::unique_ptr<Board> board_;
  std::unique_ptr<v1::LlmService::Stub> stub_;
  std::string token_;
};

TEST_F(SpeculationTest, AnswersAreThoseOfPlainDecoding) {
  StartBoard(TestElasticPath());
  ASSERT_TRUE(WaitUntilDrafted(*board_)) << board_->Log("model_worker");
  const std::vector<v1::Speculation> sources = {v1::SPECULATION_OFF, v1::SPECULATION_LOOKUP,
                                                v1::SPECULATION_PREFIX, v1::SPECULATION_DRAFT,
                                                v1::SPECULATION_AUTO};
  for (const float temperature : {0.0f, 1.2f}) {
    std::vector<std::string> first_texts, second_texts;
    for (const v1::Speculation source : sources) {
      SCOPED_TRACE(v1::Speculation_Name(source));
      const std::string context_id = CreateContext(*stub_, token_);
      v1::GenerateRequest request = UserRequest(context_id, "tell me about the weather", 40);
      request.mutable_sampling()->set_temperature(temperature);
      request.mutable_sampling()->set_seed(11);
      request.set_speculation(source);
      const Answer first = Generate(*stub_, token_, request);
      const Answer second = Generate(*stub_, token_, request);
      ASSERT_TRUE(first.status.ok() && second.status.ok()) << first.status << second.status;
      EXPECT_EQ(first.text, first.finished.text());
      first_texts.push_back(first.text);
      second_texts.push_back(second.text);
      EXPECT_EQ(first_texts.back(), first_texts.front());
      EXPECT_EQ(second_texts.back(), second_texts.front());
      EXPECT_EQ(first.started.decision().speculation(), source != v1::SPECULATION_OFF);
      const v1::SpeculationReport& report = first.finished.speculation();
      EXPECT_EQ(report.target_passes() + first.finished.usage().accepted_tokens() + 1,
                first.finished.usage().completion_tokens());
      for (const v1::SourceReport& used : report.sources()) {
        EXPECT_TRUE(source == v1::SPECULATION_AUTO || used.source() == source);
        EXPECT_LE(used.accepted_tokens(), used.drafted_tokens());
      }
      if (source == v1::SPECULATION_OFF) {
        EXPECT_EQ(report.sources_size(), 0);
      }
      if (source == v1::SPECULATION_PREFIX) {
        EXPECT_NE(Find(first, source), nullptr);
      }
      if (source == v1::SPECULATION_DRAFT) {
        EXPECT_GT(AcceptedOf(first, source), 10u) << board_->Log("model_worker");
        EXPECT_LT(report.target_passes(), 30u);
      }
    }
  }
}

// Without measurements' settings, too, and beside each other.
TEST_F(SpeculationTest, UnderControlAnswersAreTheSame) {
  StartBoard(TestElasticPath(), /*always=*/false);
  std::string expected;
  for (int i = 0; i < 6; ++i) {
    v1::GenerateRequest request = UserRequest("", "tell me about the weather", 60);
    request.set_speculation(i == 0 ? v1::SPECULATION_OFF : v1::SPECULATION_UNSPECIFIED);
    const Answer answer = Generate(*stub_, token_, request);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    if (i == 0) {
      expected = answer.text;
    }
    EXPECT_EQ(answer.text, expected);
  }
}

// A draft head of the model drafts in the worker itself; of a head that knows nothing answers are
// the same.
TEST_F(SpeculationTest, ADraftHeadDraftsAndChangesNoAnswer) {
  const auto file = engine::GgufFile::Open(TestTargetPath());
  ASSERT_TRUE(file.ok()) << file.status();
  const auto shape = engine::ReadShape(*file);
  ASSERT_TRUE(shape.ok()) << shape.status();
  engine::ModelInfo target;
  target.d_model = shape->d_model;
  target.vocab_size = shape->vocab_size;
  const std::string head = ::testing::TempDir() + "/withy_e2e_head.gguf";
  engine::TestHead::Random(target).Write(head);
  board_ = std::make_unique<Board>(
      std::vector<std::string>{"model.path=" + TestTargetPath(), "model.head_path=" + head,
                               "model.tree_rows=9", "store.kv_ratio_percent=100"});
  board_->SpeculateAlways();
  board_->StartAll();
  ASSERT_TRUE(board_->WaitUntilServing()) << board_->Log("model_worker");
  stub_ = board_->NewStub();
  token_ = board_->BindApp("app");
  for (const float temperature : {0.0f, 1.2f}) {
    std::string expected;
    for (const v1::Speculation source : {v1::SPECULATION_OFF, v1::SPECULATION_HEAD}) {
      v1::GenerateRequest request =
          UserRequest(CreateContext(*stub_, token_), "tell me about the weather", 40);
      request.mutable_sampling()->set_temperature(temperature);
      request.mutable_sampling()->set_seed(11);
      request.set_speculation(source);
      const Answer first = Generate(*stub_, token_, request);
      const Answer second = Generate(*stub_, token_, request);
      ASSERT_TRUE(first.status.ok() && second.status.ok()) << first.status << second.status;
      if (source == v1::SPECULATION_OFF) {
        expected = first.text + second.text;
        continue;
      }
      EXPECT_EQ(first.text + second.text, expected);
      for (const Answer& answer : {first, second}) {
        const v1::SourceReport* const report = Find(answer, v1::SPECULATION_HEAD);
        ASSERT_NE(report, nullptr) << board_->Log("model_worker");
        EXPECT_GT(report->drafted_tokens(), 20u);
      }
    }
  }
}

// While a pass waits for weights, models that are in memory draft for the next one: the lowest
// level, or draft_worker's, which here has the target's weights and so is always right.
TEST_F(SpeculationTest, StreamedWeightsAreDraftedMeanwhile) {
  std::vector<std::string> expected;
  for (const std::string off : {"true", "false"}) {
    StartStreaming("model.speculation_windows_off=" + off);
    uint32_t drafted = 0, kept = 0, kept_by_draft = 0;
    for (int i = 0; i < 6; ++i) {
      v1::GenerateRequest request = UserRequest("", "tell me about the weather", 40);
      request.mutable_sampling()->set_temperature(i % 2 == 0 ? 0.0f : 1.5f);
      request.mutable_sampling()->set_seed(static_cast<uint64_t>(i));
      if (i > 1) request.set_speculation(v1::SPECULATION_PREFIX);
      if (i > 3) request.set_speculation(v1::SPECULATION_DRAFT);
      if (off == "true") request.set_speculation(v1::SPECULATION_OFF);
      const Answer answer = Generate(*stub_, token_, request);
      ASSERT_TRUE(answer.status.ok()) << answer.status;
      if (off == "true") {
        expected.push_back(answer.text);
      } else {
        EXPECT_EQ(answer.text, expected[static_cast<size_t>(i)]);
      }
      if (i > 3) kept_by_draft += answer.finished.speculation().window_kept_tokens();
      drafted += answer.finished.speculation().window_drafted_tokens();
      kept += answer.finished.speculation().window_kept_tokens();
    }
    EXPECT_EQ(drafted > 0, off == "false");
    EXPECT_EQ(kept_by_draft > 0, off == "false") << board_->Log("draft_worker");
    // The lowest level of random weights guesses hardly anything right: the benchmark shows what
    // trained ones keep.
    EXPECT_LE(kept, drafted);
  }
}

// What was said in a context is looked up by the app's other calls until the context is deleted.
TEST_F(SpeculationTest, WhatWasSaidInADeletedContextIsNotLookedUp) {
  StartBoard(TestElasticPath());
  v1::GenerateRequest request = UserRequest("", "say it once more", 30);
  request.set_speculation(v1::SPECULATION_LOOKUP);
  // Random tokens: they repeat nothing of themselves.
  request.mutable_sampling()->set_temperature(1.5f);
  request.mutable_sampling()->set_seed(3);
  const auto answer = [&](const std::string& app_token, const std::string& context_id) {
    request.set_context_id(context_id);
    const Answer one = Generate(*stub_, app_token, request);
    EXPECT_TRUE(one.status.ok()) << one.status;
    return AcceptedOf(one, v1::SPECULATION_LOOKUP);
  };
  const uint32_t nothing_said = answer(board_->BindApp("before"), "");
  const std::string kept = CreateContext(*stub_, token_);
  answer(token_, kept);
  EXPECT_GT(answer(token_, CreateContext(*stub_, token_)), nothing_said + 20) << "said before";

  const std::string other = board_->BindApp("other");
  const std::string deleted = CreateContext(*stub_, other);
  answer(other, deleted);
  grpc::ClientContext context;
  Authorise(&context, other);
  v1::DeleteContextRequest remove;
  remove.set_context_id(deleted);
  v1::DeleteContextResponse removed;
  ASSERT_TRUE(stub_->DeleteContext(&context, remove, &removed).ok());
  EXPECT_EQ(answer(other, ""), nothing_said);
}

TEST_F(SpeculationTest, ADraftOfAnotherVocabularyIsNamedAndAnswersArePlain) {
  board_ = std::make_unique<Board>(std::vector<std::string>{
      "model.path=" + TestTargetPath(), "draft.path=" + TestForeignDraftPath()});
  board_->SpeculateAlways();
  board_->StartAll();
  ASSERT_TRUE(board_->WaitUntilServing()) << board_->Log("draft_worker");
  stub_ = board_->NewStub();
  token_ = board_->BindApp("app");
  v1::GenerateRequest request = UserRequest("", "tell me about the weather", 20);
  request.set_speculation(v1::SPECULATION_OFF);
  const Answer plain = Generate(*stub_, token_, request);
  request.set_speculation(v1::SPECULATION_DRAFT);
  ASSERT_TRUE(plain.status.ok()) << plain.status;
  // The worker finds the draft a moment after both serve.
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  bool refused = false;
  while (!refused && absl::Now() < deadline) {
    const Answer drafted = Generate(*stub_, token_, request);
    ASSERT_TRUE(drafted.status.ok()) << drafted.status;
    EXPECT_EQ(drafted.text, plain.text);
    EXPECT_EQ(drafted.finished.speculation().sources_size(), 0);
    refused = board_->Log("model_worker").find("set draft.path to a model of that vocabulary") !=
              std::string::npos;
  }
  EXPECT_TRUE(refused) << board_->Log("model_worker");
  EXPECT_NE(board_->Log("draft_worker").find("cannot draft for the target"), std::string::npos);
}

TEST_F(SpeculationTest, ATreeThatIsTooLargeIsRefusedAtTheStart) {
  board_ = std::make_unique<Board>(std::vector<std::string>{"model.tree_rows=257"});
  board_->Start("model_worker");
  EXPECT_NE(board_->WaitForExit("model_worker"), 0);
  EXPECT_NE(board_->Log("model_worker").find("tree_rows is 257; it must be between 2 and 256"),
            std::string::npos)
      << board_->Log("model_worker");
}

TEST_F(SpeculationTest, TheAnswerGoesOnWhenTheDraftIsKilledAndUsesItWhenItIsBack) {
  StartBoard(TestSlowPath());
  ASSERT_TRUE(WaitUntilDrafted(*board_)) << board_->Log("model_worker");
  v1::GenerateRequest request = UserRequest("", "a story, please", 48);
  request.set_speculation(v1::SPECULATION_OFF);
  const Answer plain = Generate(*stub_, token_, request);
  ASSERT_TRUE(plain.status.ok()) << plain.status;
  request.set_speculation(v1::SPECULATION_DRAFT);
  const Answer drafted = Generate(*stub_, token_, request);
  EXPECT_EQ(drafted.text, plain.text);
  ASSERT_GT(AcceptedOf(drafted, v1::SPECULATION_DRAFT), 20u) << board_->Log("draft_worker");
  const Answer without = KillTheDraftAfter(plain.text.size() / 4, request, plain.text);
  EXPECT_GT(without.finished.speculation().target_passes(),
            drafted.finished.speculation().target_passes());
  board_->Start("draft_worker");
  ASSERT_TRUE(board_->WaitUntilServing()) << board_->Log("draft_worker");
  UntilDrafted(request, plain.text, /*in_windows=*/false);
}

// It may compute on lent processors when it is killed.
TEST_F(SpeculationTest, AStreamedAnswerGoesOnWhenTheDraftIsKilled) {
  StartStreaming("model.speculation_windows_off=false");
  v1::GenerateRequest request = UserRequest("", "a story, please", 48);
  request.set_speculation(v1::SPECULATION_OFF);
  const Answer plain = Generate(*stub_, token_, request);
  ASSERT_TRUE(plain.status.ok()) << plain.status;
  request.set_speculation(v1::SPECULATION_DRAFT);
  for (const size_t share : {5, 2}) {
    SCOPED_TRACE(share);
    KillTheDraftAfter(plain.text.size() / share, request, plain.text);
    board_->Start("draft_worker");
    ASSERT_TRUE(board_->WaitUntilServing()) << board_->Log("draft_worker");
    UntilDrafted(request, plain.text, /*in_windows=*/true);
  }
}

}  // namespace
}  // namespace withy::e2e
