// What the worker makes of draft_worker's answers, of their delay and of their absence. The other
// side is a fake over a real socket; tests/e2e has the real one.
#include "model_worker/draft_client.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/compute_baton.h"
#include "engine/model/testing.h"
#include "engine/session/testing.h"
#include "policy/constants.h"
#include "rpc/server.h"
#include "serving/call/testing.h"
#include "serving/speculation/call_drafts.h"
#include "withy/v1/draft_worker.grpc.pb.h"

namespace withy::model_worker {
namespace {

using grpc::StatusCode;
using serving::DraftTask;
using serving::Eventually;
using serving::kTestLimit;

constexpr double kPassMs = 4;
constexpr double kTokenMs = 0.5;

// Ends when it is told, or when its client no longer waits.
class HeldCall final : public grpc::ServerUnaryReactor {
 public:
  explicit HeldCall(std::function<void()> on_cancel) : on_cancel_(std::move(on_cancel)) {}
  void End(const grpc::Status& status) {
    if (!ended_.exchange(true)) Finish(status);
  }
  void OnCancel() override {
    on_cancel_();
    End(grpc::Status::CANCELLED);
  }
  void OnDone() override {}

 private:
  const std::function<void()> on_cancel_;
  std::atomic<bool> ended_{false};
};

// Says what it was told to say last. Thread-safe; what a test sets is set before the request comes.
class FakeDraftWorker final : public v1::DraftWorker::CallbackService {
 public:
  template <typename Response>
  struct Script {
    Response response = {};
    grpc::Status status = {};
    bool held = false;  // it is not answered before Release
  };

  grpc::ServerUnaryReactor* GetWorkerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetWorkerInfoRequest* /*request*/,
                                          v1::GetWorkerInfoResponse* response) override {
    const absl::MutexLock lock(&mutex_);
    ++infos_;
    return Answer(context, info_, response);
  }
  grpc::ServerUnaryReactor* Draft(grpc::CallbackServerContext* context,
                                  const v1::DraftRequest* request,
                                  v1::DraftResponse* response) override {
    const absl::MutexLock lock(&mutex_);
    drafts_.push_back(*request);
    return Answer(context, draft_, response);
  }
  grpc::ServerUnaryReactor* Grow(grpc::CallbackServerContext* context,
                                 const v1::GrowRequest* /*request*/,
                                 v1::GrowResponse* response) override {
    const absl::MutexLock lock(&mutex_);
    return Answer(context, grow_, response);
  }

  void SetCosts(double pass_ms, double token_ms, bool held = false) {
    const absl::MutexLock lock(&mutex_);
    info_ = {.held = held};
    info_.response.mutable_cost()->set_decode_us_per_token(1e3 * pass_ms);
    info_.response.mutable_cost()->set_prefill_us_per_token(1e3 * token_ms);
  }
  void SetWithoutModel() {
    const absl::MutexLock lock(&mutex_);
    info_ = {};
    info_.response.set_without_model("no draft");
  }
  void SetDraft(Script<v1::DraftResponse> script) {
    const absl::MutexLock lock(&mutex_);
    draft_ = std::move(script);
  }
  void SetGrow(Script<v1::GrowResponse> script) {
    const absl::MutexLock lock(&mutex_);
    grow_ = std::move(script);
  }
  // Answers the calls that it holds.
  void Release() {
    std::vector<HeldCall*> held;
    {
      const absl::MutexLock lock(&mutex_);
      for (const auto& call : held_) held.push_back(call.get());
    }
    for (HeldCall* call : held) call->End(grpc::Status::OK);
  }

  // How often it was asked for its costs.
  int infos() const {
    const absl::MutexLock lock(&mutex_);
    return infos_;
  }
  std::vector<v1::DraftRequest> drafts() const {
    const absl::MutexLock lock(&mutex_);
    return drafts_;
  }
  // Wait until it was asked for its costs, and until a held call was given up a second or more
  // before its deadline; false when not.
  bool AwaitInfo() const { return Await(&infos_); }
  bool AwaitGivenUp() const { return Await(&given_up_); }

 private:
  bool Await(const int* count) const {
    const auto happened = [count] { return *count > 0; };
    const absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&happened), kTestLimit);
  }
  template <typename Response>
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                   const Script<Response>& script, Response* response)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    *response = script.response;
    if (!script.held) {
      grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
      reactor->Finish(script.status);
      return reactor;
    }
    held_.push_back(std::make_unique<HeldCall>([this, deadline = context->deadline()] {
      const absl::MutexLock lock(&mutex_);
      if (std::chrono::system_clock::now() + std::chrono::seconds(1) < deadline) ++given_up_;
    }));
    return held_.back().get();
  }

  mutable absl::Mutex mutex_;
  Script<v1::GetWorkerInfoResponse> info_ ABSL_GUARDED_BY(mutex_);
  Script<v1::DraftResponse> draft_ ABSL_GUARDED_BY(mutex_);
  Script<v1::GrowResponse> grow_ ABSL_GUARDED_BY(mutex_);
  int infos_ ABSL_GUARDED_BY(mutex_) = 0;
  int given_up_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<v1::DraftRequest> drafts_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<HeldCall>> held_ ABSL_GUARDED_BY(mutex_);  // as long as the service
};

// A call whose prompt is to be computed.
struct TestCall {
  TestCall(const serving::SessionEnv& env, uint64_t id, const std::string& text) {
    request.call_id = id;
    request.answer.prompt = {engine::UserSays(text)};
    request.answer.max_tokens = 50;
    serving::OpenedLease opened{
        .segments = {}, .resident = {}, .claimed = {}, .arena = MakeArena(env.model.kv)};
    auto made = serving::Session::Create(env, request, std::move(opened));
    EXPECT_TRUE(made.ok()) << made.status();
    session = *std::move(made);
    drafts.emplace(serving::kWindow, std::make_shared<serving::AppDrafts>(1024),
                   std::make_shared<serving::ContextDrafts>(), *session);
  }
  static std::shared_ptr<serving::FakeArena> MakeArena(const engine::KvInfo& kv) {
    return std::make_shared<serving::FakeArena>(
        1, 16 * serving::GeometryOf(kv).ChunkBytes(engine::KvFormat::kQ8));
  }
  DraftTask task() {
    return {.call_id = request.call_id,
            .session = *session,
            .drafts = *drafts,
            .limits = {.max_nodes = 8, .max_depth = 8}};
  }
  uint32_t tokens() const { return static_cast<uint32_t>(session->tokens().size()); }
  // What computing the KV of its tokens takes, the first `known` of which have some: all but the
  // last, which the first pass computes.
  double CatchUpMs(uint32_t known = 0) const { return kTokenMs * (tokens() - 1 - known); }

  serving::CallRequest request;
  std::unique_ptr<serving::Session> session;
  std::optional<serving::CallDrafts> drafts;
};

class DraftClientTest : public testing::Test {
 protected:
  DraftClientTest()
      : model_(chat_.tokenizer->vocab_size()),
        namer_(serving::ModelIdentity("m", {2, 1, 16}), "", engine::KvFormat::kQ8),
        env_{.model = model_.info(),
             .encoder = *chat_.encoder,
             .namer = namer_,
             .window = serving::kWindow},
        call_(env_, 1, "a prompt of some length") {
    fake_.SetCosts(kPassMs, kTokenMs);
  }

  void StartFake() {
    auto server = rpc::Server::Start({.name = "draft_worker", .listen = {address_}}, {&fake_});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void StopFake() {
    server_->Shutdown(absl::ZeroDuration());
    server_.reset();
  }
  void StartClient(Clock& clock, bool windows = false) {
    std::optional<ComputeBaton> baton;
    if (windows) baton = ComputeBaton::Open(ComputeBaton::PathIn(folder_.path())).value();
    client_ = std::make_unique<DraftClient>(address_, /*vocabulary=*/7, clock, std::move(baton));
  }
  // With a draft_worker that has told its costs.
  void StartBoth(Clock& clock, bool windows = false) {
    StartFake();
    StartClient(clock, windows);
    ASSERT_TRUE(Eventually([&] { return Offer().ready; }));
  }
  void StartBoth(bool windows = false) { StartBoth(clock_, windows); }
  policy::DraftOffer Offer() { return client_->Follow(call_.task()); }
  // Whether the answer to the question for costs has been taken.
  bool Told() {
    return Eventually([this] {
      Offer();
      return !client_->asks_costs();
    });
  }
  serving::DraftResult Grow(double patience_ms = 1000) {
    const DraftTask tasks[] = {call_.task()};
    return client_->Grow(tasks, {.patience_ms = patience_ms});
  }
  // A step in whose windows the tree might grow.
  void PassWindows() {
    const DraftTask tasks[] = {call_.task()};
    const auto windows = client_->GrowMeanwhile(tasks);
    windows->Open(std::atomic<bool>(false));
    windows->Close();
  }
  // A tree of two tokens.
  static FakeDraftWorker::Script<v1::DraftResponse> TwoTokens() {
    FakeDraftWorker::Script<v1::DraftResponse> script;
    v1::CallDraft* const draft = script.response.add_calls();
    for (const int parent : {-1, 0}) {
      v1::DraftedToken* const token = draft->add_tokens();
      token->set_token(97);
      token->set_parent(parent);
      token->set_probability(0.9f);
    }
    return script;
  }

  engine::TestFolder folder_;
  const std::string address_ = "unix:" + (folder_ / "draft.sock");
  engine::ChatFixture chat_;
  engine::FakeModel model_;
  serving::ChunkNamer namer_;
  serving::SessionEnv env_;
  FakeClock clock_;
  FakeDraftWorker fake_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<DraftClient> client_;
  TestCall call_;
};

TEST_F(DraftClientTest, NothingIsOfferedBeforeCostsAreTold) {
  fake_.SetCosts(kPassMs, kTokenMs, /*held=*/true);
  StartFake();
  StartClient(clock_, /*windows=*/true);
  Offer();
  ASSERT_TRUE(fake_.AwaitInfo());
  EXPECT_FALSE(Offer().ready || Offer().grows_in_windows);
  fake_.Release();
  ASSERT_TRUE(Told());
  EXPECT_TRUE(Offer().ready && Offer().grows_in_windows);
  EXPECT_EQ(fake_.infos(), 1);
}

TEST_F(DraftClientTest, CostsBecomeOffersByTheTokensThatTheDraftLacks) {
  StartBoth();
  EXPECT_DOUBLE_EQ(Offer().pass_ms, kPassMs);
  EXPECT_DOUBLE_EQ(Offer().catch_up_ms, call_.CatchUpMs());
  TestCall longer(env_, 2, "a prompt that is longer than the other one");
  ASSERT_GT(longer.tokens(), call_.tokens());
  EXPECT_DOUBLE_EQ(client_->Follow(longer.task()).catch_up_ms, longer.CatchUpMs());
  EXPECT_FALSE(Offer().grows_in_windows) << "there is no baton";

  fake_.SetDraft(TwoTokens());
  EXPECT_TRUE(Grow().came);
  EXPECT_EQ(call_.drafts->step.tree.size(), 2);
  EXPECT_DOUBLE_EQ(Offer().pass_ms, kPassMs) << "no pass was needed";
  EXPECT_EQ(Offer().catch_up_ms, 0);
  EXPECT_DOUBLE_EQ(client_->Follow(longer.task()).catch_up_ms, longer.CatchUpMs());

  // It has other calls' KV in that place.
  FakeDraftWorker::Script<v1::DraftResponse> unknown;
  unknown.response.add_calls()->set_unknown(true);
  fake_.SetDraft(unknown);
  EXPECT_FALSE(Grow().came);
  EXPECT_DOUBLE_EQ(Offer().catch_up_ms, call_.CatchUpMs());
  fake_.SetDraft(TwoTokens());
  EXPECT_TRUE(Grow().came);
  const std::vector<v1::DraftRequest> requests = fake_.drafts();
  ASSERT_EQ(requests.size(), 3u);
  for (const size_t i : {0, 1, 2}) {
    const uint32_t known = i == 1 ? call_.tokens() : 0;
    EXPECT_EQ(requests[i].calls(0).known_tokens(), known) << i;
    EXPECT_EQ(requests[i].calls(0).tokens_size(), call_.tokens() - known) << i;
  }
  client_->Forget(call_.request.call_id);
  EXPECT_DOUBLE_EQ(Offer().catch_up_ms, call_.CatchUpMs());
}

TEST_F(DraftClientTest, WhatIsComputedInWindowsIsNotLacking) {
  StartBoth(/*windows=*/true);
  FakeDraftWorker::Script<v1::GrowResponse> part;
  part.response.add_computed_tokens(5);
  fake_.SetGrow(part);
  // A step waits a few milliseconds for the answer.
  EXPECT_TRUE(Eventually([&] {
    PassWindows();
    return Offer().catch_up_ms < call_.CatchUpMs();
  }));
  EXPECT_DOUBLE_EQ(Offer().catch_up_ms, call_.CatchUpMs(/*known=*/5));
}

TEST_F(DraftClientTest, OneThatStartsLaterIsFound) {
  StartClient(clock_);
  ASSERT_TRUE(Told());
  EXPECT_FALSE(Offer().ready || client_->asks_costs()) << "it was away a moment ago";
  StartFake();
  EXPECT_TRUE(Eventually([&] {
    clock_.Advance(policy::kDraftAwayNs);
    return Offer().ready;
  }));
}

TEST_F(DraftClientTest, OneWithoutAModelIsAskedAgainLater) {
  fake_.SetWithoutModel();
  StartFake();
  StartClient(clock_);
  ASSERT_TRUE(Told());
  fake_.SetCosts(kPassMs, kTokenMs);
  clock_.Advance(policy::kDraftRefusedNs - 1);
  EXPECT_FALSE(Offer().ready || client_->asks_costs());
  EXPECT_EQ(fake_.infos(), 1);
  clock_.Advance(1);
  Offer();
  EXPECT_TRUE(client_->asks_costs());
  EXPECT_TRUE(Eventually([&] { return Offer().ready; }));
}

TEST_F(DraftClientTest, OneThatRefusesIsLeftAloneForAWhile) {
  StartBoth(/*windows=*/true);
  fake_.SetDraft({.status = {StatusCode::FAILED_PRECONDITION, "vocabulary"}});
  EXPECT_FALSE(Grow().came);
  EXPECT_FALSE(Offer().ready || Offer().grows_in_windows);
  clock_.Advance(policy::kDraftRefusedNs - 1);
  EXPECT_FALSE(Offer().ready);
  clock_.Advance(1);
  EXPECT_TRUE(Offer().ready && Offer().grows_in_windows);
  fake_.SetDraft(TwoTokens());
  EXPECT_TRUE(Grow().came);

  // One without a baton still drafts.
  fake_.SetGrow({.status = {StatusCode::FAILED_PRECONDITION, "no baton"}});
  EXPECT_TRUE(Eventually([&] {
    PassWindows();
    return !Offer().grows_in_windows;
  }));
  EXPECT_TRUE(Offer().ready);
  clock_.Advance(policy::kDraftRefusedNs);
  EXPECT_TRUE(Offer().grows_in_windows);
  EXPECT_EQ(fake_.infos(), 1) << "its costs are known";
}

// Whether a draft was to come, or a step waited for its weights, when it went away.
TEST_F(DraftClientTest, OneThatWasAwayTellsItsCostsAnew) {
  fake_.SetDraft(TwoTokens());
  double pass_ms = kPassMs;
  StartBoth(/*windows=*/true);
  for (const bool in_windows : {false, true}) {
    SCOPED_TRACE(in_windows);
    ASSERT_TRUE(Grow().came);
    ASSERT_EQ(Offer().catch_up_ms, 0);
    StopFake();
    EXPECT_TRUE(Eventually([&] {
      if (in_windows) {
        PassWindows();
      } else {
        EXPECT_FALSE(Grow().came);
      }
      return !Offer().ready;
    }));
    pass_ms *= 10;
    fake_.SetCosts(pass_ms, kTokenMs);
    StartFake();
    EXPECT_TRUE(Eventually([&] {
      clock_.Advance(policy::kDraftAwayNs);
      return Offer().ready;
    }));
    EXPECT_DOUBLE_EQ(Offer().pass_ms, pass_ms) << "another model";
    EXPECT_DOUBLE_EQ(Offer().catch_up_ms, call_.CatchUpMs()) << "it has nothing of the call";
  }
}

TEST_F(DraftClientTest, ALateDraftGivesNothingAndWhatItComputedCounts) {
  serving::CrawlingClock clock;
  StartBoth(clock);
  fake_.SetDraft({.held = true});
  const serving::DraftResult late = Grow(/*patience_ms=*/5);
  EXPECT_FALSE(late.came);
  EXPECT_EQ(late.caught_up_ms, 0);
  EXPECT_TRUE(call_.drafts->step.tree.empty());
  EXPECT_TRUE(Offer().ready) << "it is asked again at once";
  constexpr double kTookMs = 0.001;  // between two looks at the clock
  EXPECT_NEAR(Offer().catch_up_ms, call_.CatchUpMs() - kTookMs, 1e-9);
  Grow(/*patience_ms=*/5);
  EXPECT_NEAR(Offer().catch_up_ms, call_.CatchUpMs() - 2 * kTookMs, 1e-9);
  EXPECT_DOUBLE_EQ(Offer().pass_ms, kPassMs) << "a late draft does not tell what passes take";
}

TEST_F(DraftClientTest, ItsEndGivesUpARequestThatIsUnderWay) {
  fake_.SetCosts(kPassMs, kTokenMs, /*held=*/true);
  StartFake();
  StartClient(clock_);
  Offer();
  ASSERT_TRUE(fake_.AwaitInfo());
  client_.reset();
  EXPECT_TRUE(fake_.AwaitGivenUp());
}

}  // namespace
}  // namespace withy::model_worker
