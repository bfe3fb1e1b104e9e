// Calls whose tokens are drafted by lookup and by a low level of the target: their answers are
// those of plain decoding, and what they drafted is counted.
#include "serving/speculation/speculator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "engine/model/testing.h"
#include "engine/sampling/testing.h"
#include "serving/call/scheduler_testing.h"

namespace withy::serving {
namespace {

using policy::DraftSourceKind;
using policy::SpeculationMode;

constexpr auto kLookup = static_cast<size_t>(DraftSourceKind::kLookup);
constexpr auto kPrefix = static_cast<size_t>(DraftSourceKind::kPrefix);

class SpeculatorTest : public testing::Test {
 protected:
  SchedulerOptions Options(bool enabled, bool always = true, int32_t rows = 65) {
    SchedulerOptions options;
    options.max_batch = 4;
    options.speculation = {.enabled = enabled, .always = always, .max_tree_rows = rows};
    return options;
  }
  static CallOutcome Run(Rig& rig, const CallRequest& request) {
    const auto outcome = rig.Submit(request).sink->Wait();
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    return outcome.value_or(CallOutcome{});
  }
  static std::vector<int32_t> IdsOf(const CallOutcome& outcome) {
    std::vector<int32_t> ids;
    for (const engine::Sample& token : outcome.tokens) ids.push_back(token.id);
    return ids;
  }
  static int32_t Sum(const std::array<int32_t, policy::kDraftSourceKinds>& counts) {
    return std::accumulate(counts.begin(), counts.end(), 0);
  }
  // Random settings and lengths; two turns of three contexts, and a call without.
  static std::vector<CallRequest> Requests(std::mt19937& random, SpeculationMode mode) {
    std::uniform_real_distribution<float> uniform(0, 1);
    std::vector<CallRequest> requests;
    for (int i = 0; i < 7; ++i) {
      CallRequest request = Rig::Ask(i == 6 ? "" : "c" + std::to_string(i % 3),
                                     "prompt " + std::string(random() % 40, 'x'),
                                     static_cast<int32_t>(4 + random() % 40));
      engine::SamplingParams& sampling = request.answer.sampling;
      if (random() % 3 != 0) sampling.temperature = 0.2f + 1.5f * uniform(random);
      if (random() % 2 == 0) sampling.top_p = 0.5f + 0.5f * uniform(random);
      if (random() % 3 == 0) sampling.top_k = static_cast<int32_t>(1 + random() % 50);
      if (random() % 3 == 0) sampling.min_p = 0.2f * uniform(random);
      if (random() % 2 == 0) sampling.repetition_penalty = 0.8f + uniform(random);
      sampling.repetition_window = static_cast<int32_t>(random() % 80);
      if (random() % 3 == 0) sampling.presence_penalty = 2 * uniform(random) - 0.5f;
      if (random() % 3 == 0) sampling.frequency_penalty = uniform(random);
      if (random() % 3 == 0) sampling.logit_bias = {{static_cast<int32_t>(random() % 50), 3.0f}};
      sampling.seed = random();
      request.call_id = static_cast<uint64_t>(i) + 1;
      request.speculation = mode;
      requests.push_back(request);
    }
    return requests;
  }

  engine::TestFolder folder_;
  std::unique_ptr<engine::Model> model_ = [this] {
    engine::SynthShape shape = engine::TinyShape();
    shape.levels = {20, 60};
    return engine::OpenTiny(folder_, engine::WriteTiny(folder_, shape, engine::GgmlType::kQ8_0));
  }();
};

// For every source, tree size and sampling, alone and beside others.
TEST_F(SpeculatorTest, AnswersAreThoseOfPlainDecoding) {
  std::array<int32_t, policy::kDraftSourceKinds> drafted{}, accepted{};
  for (uint32_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const std::vector<CallRequest> requests = Requests(random, SpeculationMode::kAuto);
    Rig plain(*model_, Options(false), 4096);
    std::vector<CallOutcome> expected;
    for (const CallRequest& request : requests) expected.push_back(Run(plain, request));
    plain.scheduler.Drain(absl::ZeroDuration());
    const std::map<std::string, std::pair<SpeculationMode, int32_t>> ways = {
        {"lookup", {SpeculationMode::kLookup, 9}},
        {"prefix", {SpeculationMode::kPrefix, 5}},
        {"auto", {SpeculationMode::kAuto, 33}},
        {"two rows", {SpeculationMode::kAuto, 2}},
        {"off", {SpeculationMode::kOff, 33}}};
    for (const auto& [name, way] : ways) {
      SCOPED_TRACE(name);
      Rig rig(*model_, Options(true, true, way.second), 4096);
      // Contexts take turns; the calls of one turn run beside each other.
      for (const size_t first : {0u, 3u}) {
        std::vector<Rig::Running> running;
        const size_t end = first == 0 ? 3 : requests.size();
        for (size_t i = first; i < end; ++i) {
          CallRequest request = requests[i];
          request.speculation = way.first;
          running.push_back(rig.Submit(request));
        }
        for (size_t i = first; i < end; ++i) {
          SCOPED_TRACE(i);
          const auto outcome = running[i - first].sink->Wait();
          ASSERT_TRUE(outcome.ok()) << outcome.status();
          EXPECT_EQ(IdsOf(*outcome), IdsOf(expected[i]));
          EXPECT_EQ(outcome->text, expected[i].text);
          EXPECT_EQ(outcome->usage.reused_tokens, expected[i].usage.reused_tokens);
          const SpeculationStats& stats = outcome->speculation;
          const int32_t extra = way.first == SpeculationMode::kOff ? 0 : Sum(stats.accepted);
          EXPECT_GE(stats.target_passes + extra, static_cast<int32_t>(outcome->tokens.size()) - 1);
          if (way.first == SpeculationMode::kOff) {
            EXPECT_EQ(Sum(stats.drafted), 0);
          }
          for (size_t s = 0; s < drafted.size(); ++s) {
            drafted[s] += stats.drafted[s];
            accepted[s] += stats.accepted[s];
            EXPECT_LE(stats.accepted[s], stats.drafted[s]);
          }
        }
      }
      rig.store.With([](FakeStore::State& state) { EXPECT_EQ(state.faults, 0); });
    }
  }
  EXPECT_GT(accepted[kLookup], 0);
  EXPECT_GT(drafted[kPrefix], 0);
}

// What drafts say that the form forbids is cut, and what the form forces is drafted.
TEST_F(SpeculatorTest, AnswersInAFormAreThoseOfPlainDecoding) {
  std::vector<std::string> texts;
  for (const char* name : {"Ada", "Adam", "Bo"}) {
    for (const char* more : {", \"age\": 7", ", \"age\": 70", ""}) {
      texts.push_back(std::string("{\"first name\": \"") + name + "\"" + more + "}");
    }
  }
  const auto grammar = std::make_shared<engine::TextsGrammar>(texts, engine::ChatFixture().end,
                                                              model_->info().vocab_size);
  int32_t forced = 0;
  for (uint32_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    for (CallRequest request : Requests(random, SpeculationMode::kAuto)) {
      request.context_id.clear();
      request.answer.grammar = grammar;
      Rig plain(*model_, Options(false), 4096);
      const CallOutcome expected = Run(plain, request);
      const auto begins_so = [&](const std::string& text) {
        return text.starts_with(expected.text);
      };
      EXPECT_TRUE(std::any_of(texts.begin(), texts.end(), begins_so)) << expected.text;
      for (const SpeculationMode mode :
           {SpeculationMode::kLookup, SpeculationMode::kPrefix, SpeculationMode::kAuto}) {
        Rig rig(*model_, Options(true), 4096);
        request.speculation = mode;
        const CallOutcome outcome = Run(rig, request);
        EXPECT_EQ(IdsOf(outcome), IdsOf(expected));
        EXPECT_EQ(outcome.reason, expected.reason);
        if (mode == SpeculationMode::kLookup) forced += outcome.speculation.accepted[kLookup];
      }
    }
  }
  EXPECT_GT(forced, 100) << "keys are drafted without a model";
}

// Passes of the low level and of the full one: each has a number of its own, and the call's id.
TEST(SpeculatorPassesTest, PassesThatDraftHaveTheirCallAndANumber) {
  engine::FakeModel model(kFakeVocab, 512);
  model.set_levels({20, 100});
  absl::Mutex mutex;
  std::vector<engine::PassTag> tags[2];  // of passes of the low level, of others
  model.on_forward = [&](const engine::Batch& batch) {
    absl::MutexLock lock(&mutex);
    tags[batch.rows.front().level == 0 ? 0 : 1].push_back(batch.tag);
  };
  SchedulerOptions options;
  options.speculation = {.enabled = true, .always = true, .max_tree_rows = 5};
  Rig rig(model, options, 256, 512);
  CallRequest request = Rig::Ask("", "a story", 20);
  request.call_id = 77;
  request.speculation = SpeculationMode::kPrefix;
  const auto outcome = rig.Submit(request).sink->Wait();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  absl::MutexLock lock(&mutex);
  std::set<uint32_t> numbers;
  for (const auto& passes : tags) {
    EXPECT_GT(passes.size(), 2u);
    for (const engine::PassTag& tag : passes) {
      EXPECT_EQ(tag.call_id, 77u);
      EXPECT_GT(tag.number, 0u);
      EXPECT_TRUE(numbers.insert(tag.number).second) << tag.number << " is used twice";
    }
  }
}

TEST_F(SpeculatorTest, AppsDoNotShareWhatIsLookedUp) {
  CallRequest request = Rig::Ask("", "say it again", 30);
  request.answer.sampling = {.temperature = 1.5f, .seed = 3};  // no loops
  request.speculation = SpeculationMode::kLookup;
  Rig rig(*model_, Options(true), 4096);
  const SpeculationStats first = Run(rig, request).speculation;
  const SpeculationStats again = Run(rig, request).speculation;
  EXPECT_GT(again.accepted[kLookup], first.accepted[kLookup] + 20) << "the app said it before";
  request.app_id = "another";
  const SpeculationStats other = Run(rig, request).speculation;
  EXPECT_EQ(other.drafted, first.drafted);
  EXPECT_EQ(other.accepted, first.accepted);
}

TEST_F(SpeculatorTest, ADeletedContextIsForgottenAtOnce) {
  Rig rig(*model_, Options(true), 4096);
  const auto accepted = [&](const std::string& context_id) {
    CallRequest request = Rig::Ask(context_id, "say it again", 30);
    request.answer.sampling = {.temperature = 1.5f, .seed = 3};  // no loops
    request.speculation = SpeculationMode::kLookup;
    return Run(rig, request).speculation.accepted[kLookup];
  };
  const auto forget = [&](const std::string& context_id) {
    absl::Notification done;
    rig.scheduler.ForgetContext("app", context_id, [&] { done.Notify(); });
    EXPECT_TRUE(done.WaitForNotificationWithTimeout(kTestLimit));
  };
  const int32_t first = accepted("c1");
  forget("c1");
  EXPECT_EQ(accepted("c2"), first);
  forget("another");
  EXPECT_GT(accepted("c3"), first + 20) << "c2 is still there";
  forget("");
  EXPECT_EQ(accepted("c4"), first) << "all that the app said";
}

// A context that another worker served before: what is looked up comes with its tokens.
TEST_F(SpeculatorTest, AContextBringsWhatWasSaidInIt) {
  // Says the same after the same four tokens: every answer is the first one again.
  engine::FakeModel model(kFakeVocab, 512, [](const std::vector<int32_t>& history) {
    const size_t first = history.size() - std::min<size_t>(history.size(), 4);
    return engine::FakeModel::Letters(
        {history.begin() + static_cast<int64_t>(first), history.end()});
  });
  CallRequest request = Rig::Ask("c", "again", 20);
  request.speculation = SpeculationMode::kLookup;
  Rig rig(model, Options(true), 256, 512);
  const CallOutcome first = Run(rig, request);
  EXPECT_EQ(first.speculation.accepted[kLookup], 0) << first.text;
  rig.scheduler.Drain(absl::ZeroDuration());
  // The same store, another scheduler.
  Scheduler restarted(model, rig.env, rig.store, {.prefill_us_per_token = 1}, Options(true),
                      Clock::Real(), *rig.recorder);
  const auto sink = std::make_shared<RecordingSink>();
  ASSERT_TRUE(restarted.Submit(request, sink).ok());
  const auto second = sink->Wait();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->text, first.text);
  EXPECT_GT(second->speculation.accepted[kLookup], 12);
  EXPECT_LT(second->speculation.target_passes, 8);
}

// Under control, too, whatever it finds to pay on this machine.
TEST_F(SpeculatorTest, UnderControlTheAnswerIsThatOfPlainDecoding) {
  CallRequest request = Rig::Ask("", "go on and on", 300);
  request.answer.sampling = {.temperature = 1.5f, .seed = 3};
  Rig plain(*model_, Options(false), 4096, /*window=*/1024);
  Rig controlled(*model_, Options(true, /*always=*/false), 4096, /*window=*/1024);
  EXPECT_EQ(IdsOf(Run(controlled, request)), IdsOf(Run(plain, request)));
}

}  // namespace
}  // namespace withy::serving
