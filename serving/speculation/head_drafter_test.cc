// Calls whose tokens a draft head drafts: their answers are those of plain decoding, whatever the
// head says, and a head that knows them makes several tokens a pass.
#include "serving/speculation/head_drafter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/head/draft_head.h"
#include "engine/head/testing.h"
#include "engine/model/testing.h"
#include "serving/call/scheduler_testing.h"

namespace withy::serving {
namespace {

using engine::KnowingPair;
using policy::SpeculationMode;

constexpr auto kHead = static_cast<size_t>(policy::DraftSourceKind::kHead);

class HeadDrafterTest : public testing::Test {
 protected:
  static engine::ModelOptions OnCpu() {
    engine::ModelOptions options;
    options.device = "cpu";
    return options;
  }
  std::unique_ptr<engine::DraftHead> Open(const engine::TestHead& head,
                                          const engine::Model& target) {
    auto opened = engine::DraftHead::Open(head.Write(folder_ / "head.gguf"), target);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? *std::move(opened) : nullptr;
  }
  std::unique_ptr<engine::Model> OpenLetters(engine::ModelOptions options = OnCpu()) {
    return engine::OpenTiny(folder_, KnowingPair::WriteTarget(folder_ / "letters.gguf"), options);
  }
  static SchedulerOptions With(engine::DraftHead* head) {
    SchedulerOptions options;
    options.max_batch = 3;
    options.speculation = {.enabled = head != nullptr, .always = true, .head = head};
    return options;
  }
  // Two turns of two contexts and a call without, greedy and drawn, with prompts of few and of many
  // tokens.
  static std::vector<CallRequest> Requests() {
    std::vector<CallRequest> requests;
    for (uint64_t i = 0; i < 6; ++i) {
      requests.push_back(Rig::Ask(i == 4 ? "" : "c" + std::to_string(i % 2),
                                  "prompt " + std::string(i == 1 ? 150 : 9 * i, 'x'),
                                  10 + static_cast<int32_t>(7 * i)));
      requests.back().call_id = i + 1;
      requests.back().speculation = SpeculationMode::kHead;
      engine::SamplingParams& sampling = requests.back().answer.sampling;
      sampling.seed = 11 * i;
      sampling.logprobs = true;
      if (i % 2 == 1) sampling.temperature = 1.2f;
      if (i == 3) sampling.repetition_penalty = 1.3f;
    }
    return requests;
  }
  // One after the other, or all together but for the turns of a context.
  static std::vector<CallOutcome> Answers(engine::Model& model, const SchedulerOptions& options,
                                          bool together = false) {
    Rig rig(model, options, 4096, 400);
    std::vector<CallOutcome> outcomes;
    std::vector<Rig::Running> running;
    const auto wait = [&] {
      for (const Rig::Running& one : running) {
        const auto outcome = one.sink->Wait();
        EXPECT_TRUE(outcome.ok()) << outcome.status();
        outcomes.push_back(outcome.value_or(CallOutcome()));
      }
      running.clear();
    };
    for (const CallRequest& request : Requests()) {
      running.push_back(rig.Submit(request));
      if (!together || request.call_id % 2 == 0) wait();
    }
    wait();
    return outcomes;
  }
  static void ExpectSame(const std::vector<CallOutcome>& want,
                         const std::vector<CallOutcome>& got) {
    ASSERT_EQ(want.size(), got.size());
    for (size_t i = 0; i < want.size(); ++i) {
      SCOPED_TRACE(i);
      ASSERT_EQ(want[i].tokens.size(), got[i].tokens.size());
      for (size_t at = 0; at < want[i].tokens.size(); ++at) {
        EXPECT_EQ(want[i].tokens[at].id, got[i].tokens[at].id) << at;
        EXPECT_EQ(want[i].tokens[at].logprob, got[i].tokens[at].logprob) << at;
      }
      EXPECT_EQ(want[i].text, got[i].text);
    }
  }
  static int32_t Drafted(const std::vector<CallOutcome>& outcomes) {
    int32_t drafted = 0;
    for (const CallOutcome& outcome : outcomes) drafted += outcome.speculation.drafted[kHead];
    return drafted;
  }

  engine::TestFolder folder_;
};

TEST_F(HeadDrafterTest, AnswersAreTheSameWithAHeadThatKnowsNothing) {
  const auto model = engine::OpenTiny(
      folder_, engine::WriteTiny(folder_, engine::TinyShape(), engine::GgmlType::kQ8_0), OnCpu());
  const auto head = Open(engine::TestHead::Random(model->info()), *model);
  const std::vector<CallOutcome> want = Answers(*model, With(nullptr));
  for (const bool together : {false, true}) {
    SCOPED_TRACE(together);
    const std::vector<CallOutcome> got = Answers(*model, With(head.get()), together);
    ExpectSame(want, got);
    EXPECT_GT(Drafted(got), 0);
  }
}

TEST_F(HeadDrafterTest, AHeadThatKnowsTheAnswerMakesSeveralTokensAPass) {
  const auto model = OpenLetters();
  const auto head = Open(KnowingPair::Head(), *model);
  const std::vector<CallOutcome> want = Answers(*model, With(nullptr));
  for (const bool together : {false, true}) {
    SCOPED_TRACE(together);
    const std::vector<CallOutcome> got = Answers(*model, With(head.get()), together);
    ExpectSame(want, got);
    for (const CallOutcome& outcome : got) {
      const auto tokens = static_cast<int32_t>(outcome.tokens.size());
      EXPECT_GE(outcome.speculation.accepted[kHead], tokens / 2);
      EXPECT_GT(tokens - 1, 2 * outcome.speculation.target_passes) << "tokens a pass";
    }
  }
}

// Some of what it drafts is accepted, and some is not: what follows goes on from the target's own
// features again.
TEST_F(HeadDrafterTest, AnswersAreTheSameWithAHeadThatIsWrongNowAndThen) {
  const auto model = OpenLetters();
  engine::TestHead knowing = KnowingPair::Head();
  knowing.tensors.At("output.weight", 'k', 'i') = 0.0f;
  knowing.tensors.At("output.weight", 'z', 'i') = 1.0f;
  const auto head = Open(knowing, *model);
  const std::vector<CallOutcome> got = Answers(*model, With(head.get()));
  ExpectSame(Answers(*model, With(nullptr)), got);
  for (const CallOutcome& outcome : got) {
    EXPECT_GT(outcome.speculation.accepted[kHead], 0);
    EXPECT_LT(outcome.speculation.accepted[kHead], outcome.speculation.drafted[kHead]);
  }
}

TEST_F(HeadDrafterTest, DraftsOverATargetThatStreamsItsWeights) {
  const auto resident = OpenLetters();
  engine::ModelOptions options = OnCpu();
  options.hooks.stream_whole_layers = true;
  options.weight_budget_bytes = static_cast<uint64_t>(resident->info().weight_bytes) * 19 / 20;
  const auto streamed = OpenLetters(options);
  ASSERT_NE(streamed, nullptr);
  ASSERT_TRUE(streamed->weight_stats().streams());
  const auto head = Open(KnowingPair::Head(), *streamed);
  const std::vector<CallOutcome> got = Answers(*streamed, With(head.get()));
  ExpectSame(Answers(*resident, With(nullptr)), got);
  for (const CallOutcome& outcome : got) {
    EXPECT_GT(static_cast<int32_t>(outcome.tokens.size()) - 1,
              2 * outcome.speculation.target_passes);
  }
}

TEST_F(HeadDrafterTest, DraftsForTheFullLevelAlone) {
  engine::SynthShape shape = engine::TinyShape();
  shape.levels = {50};
  const auto model = engine::OpenTiny(
      folder_, engine::WriteTiny(folder_, shape, engine::GgmlType::kQ8_0), OnCpu());
  const auto head = Open(engine::TestHead::Random(model->info()), *model);
  for (const int32_t percent : {50, 100}) {
    Rig rig(*model, With(head.get()), 4096, 400);
    CallRequest request = Rig::Ask("c", "prompt", 20);
    request.speculation = SpeculationMode::kHead;
    request.answer.level_percent = percent;
    const auto outcome = rig.Submit(request).sink->Wait();
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(outcome->speculation.drafted[kHead] > 0, percent == 100) << percent;
  }
}

// Under control: a head that knows nothing is left alone soon.
TEST_F(HeadDrafterTest, AHeadThatDoesNotPayIsLeftAlone) {
  const auto model = engine::OpenTiny(
      folder_, engine::WriteTiny(folder_, engine::TinyShape(), engine::GgmlType::kQ8_0), OnCpu());
  const auto head = Open(engine::TestHead::Random(model->info()), *model);
  SchedulerOptions options = With(head.get());
  options.speculation.always = false;
  Rig rig(*model, options, 4096, 400);
  CallRequest request = Rig::Ask("c", "prompt", 200);
  request.speculation = SpeculationMode::kHead;
  const auto outcome = rig.Submit(request).sink->Wait();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_LT(outcome->speculation.drafted[kHead], 100);
}

}  // namespace
}  // namespace withy::serving
