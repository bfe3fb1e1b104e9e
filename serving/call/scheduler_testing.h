// What the scheduler's tests share: a scheduler over a fake or real model and a store in memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "engine/session/testing.h"
#include "serving/call/scheduler.h"
#include "serving/call/testing.h"
#include "telemetry/recorder.h"

namespace withy::serving {

inline constexpr int32_t kFakeVocab = 300;

struct Rig {
  explicit Rig(engine::Model& served, SchedulerOptions options = {}, uint32_t chunks = 256,
               int32_t window = 256, const engine::StepCost& cost = {.prefill_us_per_token = 1},
               Clock& clock = Clock::Real())
      : namer(ModelIdentity(served.info().id, {1, 1, 16}), "", engine::KvFormat::kQ8),
        env{.model = served.info(), .encoder = *chat.encoder, .namer = namer, .window = window},
        store(served.info().kv, chunks),
        recorder(telemetry::Recorder::Disabled()),
        scheduler(served, env, store, cost, options, clock, *recorder) {}

  static CallRequest Ask(const std::string& context, const std::string& text,
                         int32_t max_tokens = 10) {
    CallRequest request;
    request.app_id = "app";
    request.context_id = context;
    request.answer.prompt = {engine::UserSays(text)};
    request.answer.max_tokens = max_tokens;
    return request;
  }

  struct Running {
    Ticket ticket = 0;
    std::shared_ptr<RecordingSink> sink;
  };
  Running Submit(CallRequest request) {
    auto sink = std::make_shared<RecordingSink>();
    const auto ticket = scheduler.Submit(std::move(request), sink);
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    return {ticket.value_or(0), sink};
  }

  engine::ChatFixture chat;
  ChunkNamer namer;
  SessionEnv env;
  FakeStore store;
  std::unique_ptr<telemetry::Recorder> recorder;
  Scheduler scheduler;
};

// A fake model whose every step waits for a permit, once it is told to.
struct SteppedModel {
  explicit SteppedModel(int32_t vocab) : model(vocab) {
    model.on_forward = [this](const engine::Batch& batch) {
      {
        absl::MutexLock lock(&mutex);
        ++steps;
        rows = static_cast<int32_t>(batch.rows.size());
        contexts = static_cast<int32_t>(batch.contexts.size());
        most_contexts = std::max(most_contexts, contexts);
      }
      if (on_step) on_step();
    };
  }
  int Steps() {
    absl::MutexLock lock(&mutex);
    return steps;
  }

  engine::FakeModel model;
  absl::Mutex mutex;
  int steps = 0;
  int32_t rows = 0;
  int32_t contexts = 0;
  int32_t most_contexts = 0;
  std::function<void()> on_step;  // on the engine thread; set before the first call
};

}  // namespace withy::serving
