#include "model_worker/draft_client.h"

#include <grpcpp/client_context.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "policy/constants.h"
#include "policy/draft/draft_confidence.h"
#include "rpc/channel.h"
#include "wire/answer_defaults.h"

namespace withy::model_worker {
namespace {

// A step that waits longer for its weights has other troubles.
constexpr absl::Duration kLongestGrowth = absl::Seconds(10);
constexpr absl::Duration kCostsPatience = absl::Seconds(5);
// A growth whose step has ended is not computing; this is the way back.
constexpr absl::Duration kGrowthPatience = absl::Milliseconds(5);

absl::Duration Patience(double ms) {
  return absl::Milliseconds(
      ms > 0 ? std::clamp(ms, policy::kLeastDraftPatienceMs, policy::kMostDraftPatienceMs)
             : policy::kMostDraftPatienceMs);
}

void Learn(double seen, double* known) {
  *known += (*known > 0 ? policy::kDraftPassWeight : 1) * (seen - *known);
}

}  // namespace

template <typename Request, typename Response>
struct DraftClient::Asked {
  grpc::ClientContext context;
  Request request;
  Response response;
  grpc::Status status;
  absl::Notification ended;
};

DraftClient::DraftClient(const std::string& address, uint64_t vocabulary, Clock& clock,
                         std::optional<ComputeBaton> baton)
    : vocabulary_(vocabulary),
      clock_(clock),
      stub_(v1::DraftWorker::NewStub(rpc::Connect(address))),
      baton_(std::move(baton)) {
  if (baton_.has_value()) baton_->TakeBack();  // if a process that was killed had lent it
}

// gRPC aborts if a channel goes while a request of it is being cancelled.
DraftClient::~DraftClient() {
  const std::shared_ptr<Growth> growth = growth_;
  EndGrowing();
  if (growth != nullptr) growth->ended.WaitForNotification();
  if (costs_ == nullptr) return;
  costs_->context.TryCancel();
  costs_->ended.WaitForNotification();
}

// Lends the processors to draft_worker while a step waits.
class DraftClient::Windows final : public serving::StepWindows {
 public:
  explicit Windows(DraftClient& client) : client_(client) {}
  ~Windows() override { client_.EndGrowing(); }

  bool Open(const std::atomic<bool>& /*arrived*/) override {
    client_.baton_->Lend();
    return true;
  }
  void Close() override { client_.baton_->TakeBack(); }

 private:
  DraftClient& client_;
};

void DraftClient::AskCosts() {
  if (pass_ms_ > 0 || clock_.SteadyNanos() < retry_ns_) return;
  if (costs_ == nullptr) {
    costs_ = std::make_shared<Costs>();
    rpc::SetTimeout(&costs_->context, kCostsPatience);
    stub_->async()->GetWorkerInfo(&costs_->context, &costs_->request, &costs_->response,
                                  [costs = costs_](const grpc::Status& status) {
                                    costs->status = status;
                                    costs->ended.Notify();
                                  });
    return;
  }
  if (!costs_->ended.HasBeenNotified()) return;
  const std::shared_ptr<Costs> costs = std::exchange(costs_, nullptr);
  if (!costs->status.ok()) return OnFailure(costs->status);
  const v1::CostModel& told = costs->response.cost();
  pass_ms_ = told.decode_us_per_token() / 1e3;
  token_ms_ = told.prefill_us_per_token() / 1e3;
  if (!(pass_ms_ > 0)) retry_ns_ = clock_.SteadyNanos() + policy::kDraftRefusedNs;  // no model
}

policy::DraftOffer DraftClient::Follow(const serving::DraftTask& task) {
  AskCosts();
  return {
      .ready = ready(),
      .grows_in_windows = baton_.has_value() && ready() && clock_.SteadyNanos() >= grow_retry_ns_,
      .goes_on = task.drafts.step.windows == policy::DraftSourceKind::kDraft,
      .pass_ms = pass_ms_,
      .catch_up_ms = CatchUpMs(task.call_id, task.session.tokens().size())};
}

v1::DraftCall DraftClient::ToWire(const serving::DraftTask& task) {
  const std::span<const int32_t> tokens = task.session.tokens();
  v1::DraftCall wire;
  wire.set_call_id(task.call_id);
  wire.set_vocabulary(vocabulary_);
  const uint32_t known =
      std::min(calls_[task.call_id].tokens, static_cast<uint32_t>(tokens.size()));
  wire.set_known_tokens(known);
  for (const int32_t token : tokens.subspan(known)) wire.add_tokens(token);
  const engine::SamplingParams& sampling = task.session.answer().sampling();
  *wire.mutable_sampling() = engine::ToWire(sampling);
  wire.set_prompt_tokens(static_cast<uint32_t>(sampling.prompt_tokens));
  wire.set_max_tokens(static_cast<uint32_t>(task.limits.max_nodes));
  wire.set_max_depth(static_cast<uint32_t>(task.limits.max_depth));
  wire.set_alpha(task.limits.alpha);
  wire.set_token_ms(task.limits.token_ms);
  wire.set_max_passes(static_cast<uint32_t>(task.limits.max_passes));
  wire.set_branch_threshold(task.limits.branch_threshold);
  wire.set_leaves_per_pass(static_cast<uint32_t>(task.limits.leaves_per_pass));
  return wire;
}

double DraftClient::CatchUpMs(uint64_t call_id, size_t tokens) const {
  const auto found = calls_.find(call_id);
  const Known known = found == calls_.end() ? Known{} : found->second;
  // The last token is computed by the first pass.
  if (tokens <= known.tokens + size_t{1}) return 0;
  return std::max(0.0, static_cast<double>(tokens - 1 - known.tokens) * token_ms_ - known.ms);
}

serving::DraftResult DraftClient::Grow(std::span<const serving::DraftTask> tasks,
                                       const serving::DraftTime& time) {
  serving::DraftResult result;
  for (; tasks.size() > kMostTogether; tasks = tasks.subspan(kMostTogether)) {
    const serving::DraftResult first = Grow(tasks.first(kMostTogether), time);
    result.came = result.came || first.came;
    result.caught_up_ms += first.caught_up_ms;
    result.window_drafted += first.window_drafted;
  }
  v1::DraftRequest wire;
  for (const serving::DraftTask& task : tasks) *wire.add_calls() = ToWire(task);
  v1::DraftResponse response;
  grpc::ClientContext context;
  rpc::SetTimeout(&context, Patience(time.patience_ms));
  const int64_t started = clock_.SteadyNanos();
  const grpc::Status status = stub_->Draft(&context, wire, &response);
  const double ms = Millis(clock_.SteadyNanos() - started);
  if (!status.ok()) {
    for (const serving::DraftTask& task : tasks) {
      calls_[task.call_id].ms += ms / static_cast<double>(tasks.size());
    }
    OnFailure(status);
    return result;
  }
  if (static_cast<size_t>(response.calls_size()) != tasks.size()) return result;
  uint32_t tokens = 0;
  double catch_up_ms = 0;
  for (const v1::CallDraft& call : response.calls()) {
    tokens += call.caught_up_tokens();
    catch_up_ms += call.catch_up_ms();
  }
  catch_up_ms = std::clamp(catch_up_ms, 0.0, ms);
  result.caught_up_ms += catch_up_ms;
  OnDrafted(ms, response.calls(0).passes(), tokens, catch_up_ms);
  for (size_t i = 0; i < tasks.size(); ++i) {
    result.came = Take(response.calls(static_cast<int>(i)), tasks[i], &result) || result.came;
  }
  return result;
}

// `ms`: from the request to its response.
void DraftClient::OnDrafted(double ms, uint32_t passes, uint32_t tokens, double catch_up_ms) {
  refused_ = false;
  if (passes > 0) Learn((ms - catch_up_ms) / passes, &pass_ms_);
  LearnCatchUp(tokens, catch_up_ms);
}

void DraftClient::LearnCatchUp(uint32_t tokens, double ms) {
  if (tokens >= policy::kTellingDraftTokens) Learn(ms / tokens, &token_ms_);
}

bool DraftClient::Take(const v1::CallDraft& response, const serving::DraftTask& task,
                       serving::DraftResult* result) {
  if (response.unknown()) {
    calls_[task.call_id] = {};
    return false;
  }
  calls_[task.call_id] = {.tokens = static_cast<uint32_t>(task.session.tokens().size())};
  const auto window_drafted = static_cast<int32_t>(response.window_drafted_tokens());
  task.session.draft().stats().window_drafted += window_drafted;
  task.session.draft().stats().window_kept += static_cast<int32_t>(response.window_kept_tokens());
  result->window_drafted += window_drafted;
  policy::DraftedCall& step = task.drafts.step;
  policy::DraftTree tree;
  std::vector<int32_t> places;  // of the tokens, in the tree
  for (const v1::DraftedToken& token : response.tokens()) {
    const bool root = token.parent() < 0;
    if (!root && static_cast<size_t>(token.parent()) >= places.size()) return false;
    const policy::DraftOrigin origin{policy::DraftSourceKind::kDraft,
                                     policy::DraftConfidence::ProbabilityBin(token.probability())};
    places.push_back(tree.Add(root ? -1 : places[static_cast<size_t>(token.parent())],
                              token.token(), step.speculation.Confidence(origin), origin));
  }
  step.tree.Merge(tree);
  return true;
}

std::unique_ptr<serving::StepWindows> DraftClient::GrowMeanwhile(
    std::span<const serving::DraftTask> tasks) {
  EndGrowing();
  growth_ = std::make_shared<Growth>();
  growth_->request.set_round(baton_->BeginRound());
  for (const serving::DraftTask& task : tasks.first(std::min(tasks.size(), kMostTogether))) {
    *growth_->request.add_calls() = ToWire(task);
  }
  rpc::SetTimeout(&growth_->context, kLongestGrowth);
  stub_->async()->Grow(&growth_->context, &growth_->request, &growth_->response,
                       [growth = growth_](const grpc::Status& status) {
                         growth->status = status;
                         growth->ended.Notify();
                       });
  return std::make_unique<Windows>(*this);
}

void DraftClient::EndGrowing() {
  if (growth_ == nullptr) return;
  baton_->TakeBack();
  baton_->BeginRound();
  const std::shared_ptr<Growth> growth = std::exchange(growth_, nullptr);
  if (!growth->ended.WaitForNotificationWithTimeout(kGrowthPatience)) {
    growth->context.TryCancel();
    return;
  }
  if (!growth->status.ok()) {
    const grpc::StatusCode code = growth->status.error_code();
    if (code == grpc::StatusCode::DEADLINE_EXCEEDED) return;
    if (code == grpc::StatusCode::UNAVAILABLE) return OnFailure(growth->status);
    grow_retry_ns_ = clock_.SteadyNanos() + policy::kDraftRefusedNs;
    return;
  }
  LearnCatchUp(growth->response.caught_up_tokens(), growth->response.catch_up_ms());
  const int calls = std::min(growth->request.calls_size(), growth->response.computed_tokens_size());
  for (int i = 0; i < calls; ++i) {
    const auto known = calls_.find(growth->request.calls(i).call_id());
    const uint32_t computed = growth->response.computed_tokens(i);
    if (known == calls_.end() || computed <= known->second.tokens) continue;
    known->second = {.tokens = computed};
  }
}

// A deadline that passed has cost time already, which the limit of losses counts; what the draft
// has computed by then is there for the next request. One that was away may come back with another
// model.
void DraftClient::OnFailure(const grpc::Status& status) {
  const grpc::StatusCode code = status.error_code();
  if (code == grpc::StatusCode::DEADLINE_EXCEEDED) return;
  const bool away = code == grpc::StatusCode::UNAVAILABLE;
  retry_ns_ = clock_.SteadyNanos() + (away ? policy::kDraftAwayNs : policy::kDraftRefusedNs);
  if (away) {
    calls_.clear();
    pass_ms_ = token_ms_ = 0;
  }
  if (!away && !std::exchange(refused_, true)) {
    spdlog::info("no drafts from draft_worker: {}", status.error_message());
  }
}

}  // namespace withy::model_worker
