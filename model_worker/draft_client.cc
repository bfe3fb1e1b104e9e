#include "model_worker/draft_client.h"

#include <grpcpp/client_context.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "policy/draft_confidence.h"
#include "rpc/channel.h"
#include "wire/answer_defaults.h"

namespace withy::model_worker {
namespace {

// How long a draft may keep the target waiting: as long as some tokens take without it.
constexpr double kPatienceTokens = 4;
constexpr double kLeastPatienceMs = 5;
constexpr double kMostPatienceMs = 2000;
// How long draft_worker is left alone that is away, and one that refuses to draft.
constexpr int64_t kAwayNs = 200 * kNanosPerMilli;
constexpr int64_t kRefusedNs = 10 * kNanosPerSecond;
constexpr double kPassWeight = 0.2;

// `token_ms`: of a token without drafts; 0: whatever the drafts take.
double PatienceMs(double token_ms) {
  if (!(token_ms > 0)) return kMostPatienceMs;
  return std::clamp(kPatienceTokens * token_ms, kLeastPatienceMs, kMostPatienceMs);
}

}  // namespace

DraftClient::DraftClient(const std::string& address, uint64_t vocabulary, Clock& clock)
    : vocabulary_(vocabulary),
      clock_(clock),
      stub_(v1::DraftWorker::NewStub(rpc::Connect(address))) {}

v1::DraftRequest DraftClient::ToWire(const DraftRequest& request) {
  v1::DraftRequest wire;
  wire.set_call_id(request.call_id);
  wire.set_vocabulary(vocabulary_);
  const uint32_t known =
      std::min(known_[request.call_id], static_cast<uint32_t>(request.tokens.size()));
  wire.set_known_tokens(known);
  for (const int32_t token : request.tokens.subspan(known)) wire.add_tokens(token);
  *wire.mutable_sampling() = engine::ToWire(request.sampling);
  wire.set_max_tokens(static_cast<uint32_t>(request.limits.max_nodes));
  wire.set_max_depth(static_cast<uint32_t>(request.limits.max_depth));
  wire.set_alpha(request.limits.alpha);
  wire.set_token_ms(request.limits.token_ms);
  return wire;
}

bool DraftClient::Draft(const DraftRequest& request, const policy::ConfidenceFn& confidence,
                        policy::DraftTree* tree) {
  const v1::DraftRequest wire = ToWire(request);
  v1::DraftResponse response;
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Milliseconds(PatienceMs(request.limits.token_ms)));
  const int64_t started = clock_.SteadyNanos();
  const grpc::Status status = stub_->Draft(&context, wire, &response);
  if (!status.ok()) {
    OnFailure(status);
    return false;
  }
  refused_ = false;
  OnPasses(started, response.passes());
  return Take(request, response, confidence, tree);
}

bool DraftClient::DraftTogether(std::span<DraftJob> jobs) {
  bool any = false;
  for (; jobs.size() > kMostTogether; jobs = jobs.subspan(kMostTogether)) {
    any = DraftTogether(jobs.first(kMostTogether)) || any;
  }
  v1::DraftTogetherRequest wire;
  double token_ms = 0;
  for (const DraftJob& job : jobs) {
    *wire.add_calls() = ToWire(job.request);
    token_ms = std::max(token_ms, job.request.limits.token_ms);
  }
  v1::DraftTogetherResponse response;
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Milliseconds(PatienceMs(token_ms)));
  const int64_t started = clock_.SteadyNanos();
  const grpc::Status status = stub_->DraftTogether(&context, wire, &response);
  if (!status.ok()) {
    OnFailure(status);
    return any;
  }
  refused_ = false;
  if (static_cast<size_t>(response.calls_size()) != jobs.size()) return any;
  OnPasses(started, response.calls(0).passes());
  for (size_t i = 0; i < jobs.size(); ++i) {
    DraftJob& job = jobs[i];
    any = Take(job.request, response.calls(static_cast<int>(i)), job.confidence, &job.tree) || any;
  }
  return any;
}

void DraftClient::OnPasses(int64_t started_ns, uint32_t passes) {
  if (passes == 0) return;
  const double ms = Millis(clock_.SteadyNanos() - started_ns) / passes;
  pass_ms_ += (pass_ms_ > 0 ? kPassWeight : 1) * (ms - pass_ms_);
}

bool DraftClient::Take(const DraftRequest& request, const v1::DraftResponse& response,
                       const policy::ConfidenceFn& confidence, policy::DraftTree* tree) {
  if (response.unknown()) {
    known_[request.call_id] = 0;
    return false;
  }
  known_[request.call_id] = static_cast<uint32_t>(request.tokens.size());
  std::vector<int32_t> places;  // of the tokens, in `tree`
  for (const v1::DraftedToken& token : response.tokens()) {
    const bool root = token.parent() < 0;
    if (!root && static_cast<size_t>(token.parent()) >= places.size()) return false;
    const double probability = token.probability();
    const policy::DraftOrigin origin{policy::DraftSourceKind::kDraft,
                                     policy::DraftConfidence::ProbabilityBin(probability)};
    places.push_back(tree->Add(root ? -1 : places[static_cast<size_t>(token.parent())],
                               token.token(), confidence(origin, probability), origin));
  }
  return true;
}

// A deadline that passed has cost time already, which the limit of losses counts; what the draft
// has computed by then is there for the next request.
void DraftClient::OnFailure(const grpc::Status& status) {
  const grpc::StatusCode code = status.error_code();
  if (code == grpc::StatusCode::DEADLINE_EXCEEDED) return;
  const bool away = code == grpc::StatusCode::UNAVAILABLE;
  retry_ns_ = clock_.SteadyNanos() + (away ? kAwayNs : kRefusedNs);
  if (away) known_.clear();
  if (!away && !std::exchange(refused_, true)) {
    spdlog::info("no drafts from draft_worker: {}", status.error_message());
  }
}

}  // namespace withy::model_worker
