#include "serving/call/call_registry.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "serving/call/testing.h"

namespace withy::serving {
namespace {

// Two calls run and one waits; calls that are admitted stand in `calls`.
struct Desk {
  static SchedulerOptions Options() {
    SchedulerOptions options;
    options.max_batch = 2;
    options.queue_limit = 1;
    return options;
  }
  absl::StatusOr<Ticket> Admit(const std::string& request_id = "") {
    CallRequest request;
    request.app_id = "app";
    request.request_id = request_id;
    request.answer.prompt = {engine::UserSays("twelve bytes")};
    request.turn.priority = 3;
    return registry.Admit(std::move(request), std::make_shared<RecordingSink>());
  }
  void End(size_t index, bool stored) {
    registry.EndName(calls[index]->request, stored);
    registry.Release();
  }

  FakeClock clock;
  std::vector<std::unique_ptr<Call>> calls;
  CallRegistry registry{Options(), clock,
                        [this](std::unique_ptr<Call> call) { calls.push_back(std::move(call)); }};
};

TEST(CallRegistryTest, CallsKnowTheirPlace) {
  Desk desk;
  const auto first = desk.Admit();
  const auto second = desk.Admit();
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_EQ(desk.calls.size(), 2u);
  EXPECT_NE(*first, *second);
  EXPECT_EQ(desk.calls[1]->ticket, *second);
  EXPECT_EQ(desk.calls[0]->queue_position, 0);
  EXPECT_EQ(desk.calls[1]->queue_position, 1);
  EXPECT_EQ(desk.calls[1]->turn.priority, 3);
  EXPECT_EQ(desk.calls[1]->turn.arrived_ns, desk.clock.SteadyNanos());
  EXPECT_LT(desk.calls[0]->turn.id, desk.calls[1]->turn.id);
}

TEST(CallRegistryTest, BeyondItsBoundsACallIsRefused) {
  Desk desk;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(desk.Admit().ok());
  const absl::Status refused = desk.Admit().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("model.queue_limit"), refused.message().npos);
  desk.End(0, false);
  EXPECT_TRUE(desk.Admit().ok());
  EXPECT_TRUE(desk.registry.AdmitRebuild("app", "c", std::make_shared<RecordingSink>()).ok())
      << "rebuilds are not counted";
  EXPECT_TRUE(desk.calls.back()->request.rebuild);
}

TEST(CallRegistryTest, ANameStandsForOneCall) {
  Desk desk;
  ASSERT_TRUE(desk.Admit("r").ok());
  EXPECT_EQ(desk.Admit("r").status().code(), absl::StatusCode::kAborted);
  desk.End(0, /*stored=*/false);
  ASSERT_TRUE(desk.Admit("r").ok()) << "a retry after a failure";
  desk.End(1, /*stored=*/true);
  EXPECT_EQ(desk.Admit("r").status().code(), absl::StatusCode::kAborted) << "the store has it";
}

TEST(CallRegistryTest, ADrainTakesNothingNewAndWaitsForWhatIsThere) {
  Desk desk;
  ASSERT_TRUE(desk.Admit().ok());
  desk.registry.BeginDrain();
  EXPECT_EQ(desk.Admit().status().code(), absl::StatusCode::kUnavailable);
  const auto sink = std::make_shared<RecordingSink>();
  EXPECT_EQ(desk.registry.AdmitRebuild("app", "c", sink).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(desk.registry.AwaitEmpty(absl::ZeroDuration()));
  std::thread end([&] { desk.End(0, false); });
  EXPECT_TRUE(desk.registry.AwaitEmpty(kTestLimit));
  end.join();
  uint64_t seen = 0;
  EXPECT_FALSE(desk.registry.AwaitQuiet(absl::InfiniteDuration(), &seen));
}

TEST(CallRegistryTest, LoadCountsACallAsSoonAsItIsAdmitted) {
  Desk desk;
  ASSERT_TRUE(desk.Admit().ok());
  EXPECT_EQ(desk.registry.load().queued, 1u);
  EXPECT_EQ(desk.registry.load().pending_prefill_tokens, 3) << "four bytes a token";
  EXPECT_EQ(desk.registry.load().queue_limit, 1u);
  desk.registry.SetLoad(2, 0, 50);
  EXPECT_EQ(desk.registry.load().running, 2u);
  EXPECT_EQ(desk.registry.load().queued, 0u);
  EXPECT_EQ(desk.registry.load().pending_prefill_tokens, 50);
}

}  // namespace
}  // namespace withy::serving
