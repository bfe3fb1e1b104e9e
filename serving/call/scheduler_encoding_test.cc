// Calls that are over while their prompts are still being encoded.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "engine/session/testing.h"
#include "serving/call/scheduler.h"
#include "serving/call/scheduler_testing.h"
#include "serving/call/testing.h"

namespace withy::serving {
namespace {

// A scheduler whose prompts are never encoded to their end.
struct StuckRig {
  StuckRig()
      : model(kFakeVocab),
        stuck(*chat.tokenizer),
        encoder(stuck, chat.chat),
        namer(ModelIdentity(model.info().id, {1, 1, 16}), "", engine::KvFormat::kQ8),
        env{.model = model.info(), .encoder = encoder, .namer = namer, .window = 256},
        store(model.info().kv, 32),
        recorder(telemetry::Recorder::Disabled()) {
    scheduler.emplace(model, env, store, engine::StepCost{.prefill_us_per_token = 1},
                      SchedulerOptions{}, Clock::Real(), *recorder);
  }
  // A call that is being encoded.
  Rig::Running Begin() {
    const int begun = stuck.begun();
    auto sink = std::make_shared<RecordingSink>();
    const auto ticket = scheduler->Submit(Rig::Ask("", "a prompt"), sink);
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    EXPECT_TRUE(Eventually([&] { return stuck.begun() > begun; }));
    return {ticket.value_or(0), sink};
  }

  engine::ChatFixture chat;
  engine::FakeModel model;
  engine::StuckTokenizer stuck;
  engine::ConversationEncoder encoder;
  ChunkNamer namer;
  SessionEnv env;
  FakeStore store;
  std::unique_ptr<telemetry::Recorder> recorder;
  std::optional<Scheduler> scheduler;
};

TEST(SchedulerEncodingTest, ACancelledCallsPromptIsEncodedNoFurther) {
  StuckRig rig;
  const auto first = rig.Begin();
  rig.scheduler->Cancel(first.ticket);
  EXPECT_EQ(first.sink->Wait().status().code(), absl::StatusCode::kCancelled);
  rig.Begin();  // the thread that encodes is free again
}

TEST(SchedulerEncodingTest, ADrainEndsTheEncodingOfPrompts) {
  StuckRig rig;
  const auto call = rig.Begin();
  rig.scheduler->Drain(absl::ZeroDuration());
  EXPECT_FALSE(call.sink->Wait().ok());
  rig.scheduler.reset();
}

}  // namespace
}  // namespace withy::serving
