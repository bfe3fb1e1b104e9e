#include "draft_worker/service.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/compute_baton.h"
#include "base/contract_limits.h"
#include "base/ids.h"
#include "base/status.h"
#include "grammar/compiler.h"
#include "policy/draft/token_tree.h"
#include "rpc/daemon.h"
#include "rpc/status.h"
#include "rpc/write_queue.h"
#include "serving/call/task_thread.h"
#include "serving/speculation/tree_drafter.h"
#include "wire/wire.h"
#include "withy/v1/draft_worker.grpc.pb.h"

namespace withy::draft_worker {
namespace {

using RunQueue = rpc::WriteQueue<v1::RunResponse>;
using serving::GrownTree;
using serving::TreeRequest;

constexpr int64_t kRetryMs = 200;
constexpr uint32_t kMostLeaves = 16;
constexpr uint32_t kMostPasses = 1 << 16;  // of a tree; a request's larger number is the same

// Trees grow in turns that the target lends, until its step is over, the request is, or somebody
// else wants an answer of the draft model.
class LentTurns final : public serving::Turns {
 public:
  LentTurns(ComputeBaton& baton, uint32_t round, std::function<bool()> over)
      : baton_(baton), round_(round), over_(std::move(over)) {}

  bool Begin() override {
    while (!over_()) {
      const ComputeBaton::Turn turn = baton_.Borrow(round_, kLook);
      if (turn != ComputeBaton::Turn::kLater) return turn == ComputeBaton::Turn::kMine;
    }
    return false;
  }
  const std::atomic<bool>& wanted() const override { return baton_.wanted(); }
  void End() override { baton_.Return(); }

 private:
  static constexpr absl::Duration kLook = absl::Milliseconds(20);

  ComputeBaton& baton_;
  const uint32_t round_;
  const std::function<bool()> over_;
};

// One call's stream. Shared by the answerer and the RPC, because either may end first.
class StreamSink final : public AnswerSink {
 public:
  StreamSink(std::shared_ptr<RunQueue> queue, const v1::RunRequest& request,
             const engine::SamplingParams& sampling, const engine::ServedModel& model)
      : queue_(std::move(queue)),
        call_id_(request.call_id()),
        sampling_(sampling),
        model_(model),
        report_progress_(request.report_progress()) {}

  void Begun(int32_t queue_position) override {
    v1::RunResponse response;
    response.mutable_accepted()->set_queue_position(static_cast<uint32_t>(queue_position));
    Push(std::move(response));
  }
  void Progress(int32_t computed, int32_t tokens) override {
    if (!report_progress_ || !progress_.Due(Clock::Real().SteadyNanos())) return;
    v1::RunResponse response;
    response.mutable_progress()->set_computed_tokens(static_cast<uint32_t>(computed));
    response.mutable_progress()->set_prefill_tokens(static_cast<uint32_t>(tokens));
    Push(std::move(response));
  }
  void Delta(const engine::AnswerDelta& delta) override {
    v1::RunResponse response;
    *response.mutable_delta() = engine::ToWire(delta, sampling_, *model_.bundle.tokenizer);
    Push(std::move(response));
  }
  void Done(const absl::StatusOr<engine::SoloResult>& result, int64_t arrived_ns) override {
    if (patience_ns_ <= 0) return;  // already ended
    if (!result.ok()) return queue_->Close(result.status());
    v1::RunResponse response;
    v1::GenerateFinished* finished = response.mutable_finished();
    std::vector<engine::ToolCall> calls = result->tool_calls;
    engine::GiveIds(call_id_, &calls);
    engine::FillAnswer(result->reason, result->text, calls, finished);
    finished->mutable_usage()->set_prompt_tokens(static_cast<uint32_t>(result->prompt_tokens));
    finished->mutable_usage()->set_prefilled_tokens(static_cast<uint32_t>(result->prompt_tokens));
    finished->mutable_usage()->set_completion_tokens(static_cast<uint32_t>(result->tokens.size()));
    FillLatency(*result, arrived_ns, finished->mutable_latency());
    finished->set_seed(sampling_.seed);
    *finished->mutable_sampling() = engine::ToWire(sampling_);
    finished->set_explanation(engine::CutText(result->reason, result->tokens.size()));
    Push(std::move(response));
    queue_->Close(absl::OkStatus());
  }
  bool cancelled() const override { return patience_ns_ <= 0 || queue_->cancelled(); }

 private:
  void Push(v1::RunResponse response) {
    if (patience_ns_ <= 0) return;
    const int64_t since = Clock::Real().SteadyNanos();
    const bool room = queue_->WaitForRoom(absl::Nanoseconds(patience_ns_));
    patience_ns_ -= Clock::Real().SteadyNanos() - since;
    if (room && patience_ns_ > 0) {
      queue_->Push(std::move(response));
      return;
    }
    patience_ns_ = 0;
    queue_->Abandon(absl::ResourceExhaustedError(absl::StrCat(
        "the answer was ended: its reader let ", RunQueue::kLimit, " messages wait for ",
        kStalledDraftReaderNs / kNanosPerSecond, " s in total; read the stream as it arrives")));
  }

  static void FillLatency(const engine::SoloResult& result, int64_t arrived_ns,
                          v1::LatencyReport* report) {
    const engine::AnswerTimes& times = result.times;
    report->set_queue_ms(Millis(times.started - arrived_ns));
    if (times.first_token == 0) return;
    report->set_prefill_ms(Millis(times.first_token - times.started));
    report->set_decode_ms(Millis(times.last_token - times.first_token));
    v1::Latency* measured = report->mutable_measured();
    measured->set_ttft_ms(Millis(times.first_token - arrived_ns));
    measured->set_end_to_end_ms(Millis(times.last_token - arrived_ns));
    if (result.tokens.size() > 1) {
      measured->set_tpot_ms(Millis(times.last_token - times.first_token) /
                            static_cast<double>(result.tokens.size() - 1));
    }
  }

  const std::shared_ptr<RunQueue> queue_;
  const uint64_t call_id_;
  const engine::SamplingParams sampling_;
  const engine::ServedModel& model_;
  const bool report_progress_;
  engine::ProgressPace progress_;
  int64_t patience_ns_ =
      kStalledDraftReaderNs;  // remaining patience; used by the answering thread only
};

class DraftWorkerService final : public v1::DraftWorker::CallbackService {
 public:
  DraftWorkerService(Answerer& answerer, const engine::ServedModel& model,
                     const engine::WorkerCost& cost, const DraftServiceOptions& options,
                     rpc::OpenStreams& answers)
      : answerer_(answerer),
        drafter_(*model.bundle.model, model.window, answerer.pass_numbers(), Clock::Real()),
        model_(model),
        cost_(cost),
        options_(options),
        answers_(answers),
        encoder_fingerprint_(model.encoder.Fingerprint()),
        grammars_(model.encoder.tokenizer(), model.bundle.model->info().vocab_size,
                  model.encoder.CallsForm()),
        grammar_thread_(grammar::kMostWaiting) {
    const engine::ModelInfo& info = model.bundle.model->info();
    limits_.vocab_size = info.vocab_size;
    limits_.context_length = model.window;
    for (const engine::LevelInfo& level : info.levels) {
      limits_.levels_percent.push_back(level.percent);
    }
  }

  grpc::ServerWriteReactor<v1::RunResponse>* Run(grpc::CallbackServerContext* context,
                                                 const v1::RunRequest* request) override {
    const std::shared_ptr<RunQueue> queue = RunQueue::Create(answers_, context);
    const auto close = [queue](const absl::Status& status) {
      const bool full = absl::IsResourceExhausted(status);
      queue->Close(full ? rpc::WithRetryAfter(status, kRetryMs) : status);
    };
    const auto submit = [this, request, queue, close] {
      if (const absl::Status status = Submit(*request, queue); !status.ok()) close(status);
    };
    if (!request->has_output_format()) {
      submit();
    } else if (!grammar_thread_.Post(submit)) {
      close(absl::ResourceExhaustedError(
          "too many calls wait for the grammars of their output_format: retry"));
    }
    return queue->reactor();
  }

  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context,
                                   const v1::CancelRunRequest* request,
                                   v1::CancelRunResponse* /*response*/) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const bool found = answerer_.Cancel(request->call_id());
    reactor->Finish(found ? grpc::Status::OK : rpc::ToGrpc(absl::NotFoundError("no such call")));
    return reactor;
  }

  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpc(Count(*request, response)));
    return reactor;
  }

  grpc::ServerUnaryReactor* Draft(grpc::CallbackServerContext* context,
                                  const v1::DraftRequest* request,
                                  v1::DraftResponse* response) override {
    return OnAnsweringThread(context, [this, request, response](const auto& cancelled) {
      return DraftTrees(*request, cancelled, response);
    });
  }

  grpc::ServerUnaryReactor* Grow(grpc::CallbackServerContext* context,
                                 const v1::GrowRequest* request,
                                 v1::GrowResponse* response) override {
    return OnAnsweringThread(context, [this, request, response](const auto& cancelled) {
      const auto over = [this, &cancelled] { return cancelled() || answerer_.load().queued > 0; };
      return GrowTrees(*request, over, response);
    });
  }

  grpc::ServerUnaryReactor* GetWorkerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetWorkerInfoRequest* /*request*/,
                                          v1::GetWorkerInfoResponse* response) override {
    const engine::ModelInfo& info = model_.bundle.model->info();
    *response->mutable_model() = engine::Describe(info, "draft", model_.window, options_.defaults);
    response->mutable_model()->set_note(options_.note);
    response->mutable_model()->set_warning(options_.warning);
    *response->mutable_cost() = engine::ToWire(cost_, info);
    response->set_instance(instance_);
    response->set_encoder_fingerprint(encoder_fingerprint_);
    const AnswererLoad load = answerer_.load();
    v1::WorkerLoad* wire = response->mutable_load();
    wire->set_running_calls(static_cast<uint32_t>(load.running));
    wire->set_queued_calls(static_cast<uint32_t>(load.queued));
    wire->set_queue_limit(static_cast<uint32_t>(options_.queue_limit));
    v1::ProcessStatus* status = response->mutable_status();
    rpc::FillProcessStatus("draft_worker", status);
    status->set_model_bytes(static_cast<uint64_t>(info.weight_bytes));
    status->set_running_calls(wire->running_calls());
    status->set_queued_calls(wire->queued_calls());
    status->set_queue_limit(wire->queue_limit());
    status->set_detail(absl::StrCat(
        info.name, "; ", engine::Describe(cost_), options_.note.empty() ? "" : "; ", options_.note,
        options_.warning.empty() ? "" : "; warning: ", options_.warning));
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  static absl::Status Stateless(const std::string& context_id) {
    if (context_id.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "context_id: the draft model answers stateless calls only; leave it empty");
  }

  absl::Status Count(const v1::TokenizeRequest& request, v1::TokenizeResponse* response) const {
    WITHY_RETURN_IF_ERROR(Stateless(request.context_id()));
    WITHY_ASSIGN_OR_RETURN(const std::vector<engine::Segment> prompt,
                           engine::PromptFromWire(request.prompt(), request.kept()));
    WITHY_ASSIGN_OR_RETURN(
        const engine::EncodedConversation encoded,
        model_.encoder.MeasurePrompt(prompt, model_.window, /*recorded=*/0, /*cancelled=*/nullptr,
                                     engine::TruncationFromWire(request.truncation())));
    response->set_prompt_tokens(static_cast<uint32_t>(encoded.ids.size()));
    response->set_dropped_messages(static_cast<uint32_t>(encoded.dropped_segments));
    response->set_answer_begins_in_thought(encoded.answer_begins_in_thought);
    response->set_instance(instance_);
    return absl::OkStatus();
  }

  // On the grammars' thread if the request has an output_format.
  absl::Status Submit(const v1::RunRequest& request, const std::shared_ptr<RunQueue>& queue) {
    WITHY_RETURN_IF_ERROR(Stateless(request.context_id()));
    if (request.worker_instance() != 0 && request.worker_instance() != instance_) {
      return absl::AbortedError("draft_worker was restarted after the decision: decide again");
    }
    WITHY_ASSIGN_OR_RETURN(
        engine::AnswerRequest answer,
        engine::RequestFromWire(request, options_.defaults, RandomId64(), model_.window));
    WITHY_RETURN_IF_ERROR(engine::Validate(answer, limits_));
    WITHY_ASSIGN_OR_RETURN(answer.grammar, grammars_.Compile(answer.output_format));
    auto sink = std::make_shared<StreamSink>(queue, request, answer.sampling, model_);
    return answerer_.Submit(request.call_id(), std::move(answer), std::move(sink));
  }

  // `work` is told whether the RPC was cancelled; its status ends the RPC.
  using Work = std::function<absl::Status(const std::function<bool()>& cancelled)>;
  grpc::ServerUnaryReactor* OnAnsweringThread(grpc::CallbackServerContext* context, Work work) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const absl::Status posted =
        answerer_.Post([context, reactor, work = std::move(work)](const absl::Status& go) {
          const auto cancelled = [context] { return context->IsCancelled(); };
          reactor->Finish(rpc::ToGrpc(go.ok() ? work(cancelled) : go));
        });
    if (!posted.ok()) reactor->Finish(rpc::ToGrpc(posted));
    return reactor;
  }

  // On the answering thread, as GrowTrees.
  absl::Status DraftTrees(const v1::DraftRequest& request, const std::function<bool()>& cancelled,
                          v1::DraftResponse* response) {
    std::vector<TreeRequest> trees;
    std::deque<telemetry::ScopedSpan> spans;
    for (const v1::DraftCall& call : request.calls()) {
      WITHY_RETURN_IF_ERROR(CheckDraft(call));
      trees.push_back(FromWire(call));
      spans.emplace_back(answerer_.recorder(), telemetry::Phase::kDraft, call.call_id(),
                         call.known_tokens());
    }
    WITHY_ASSIGN_OR_RETURN(const std::vector<GrownTree> grown, drafter_.Draft(trees, cancelled));
    for (size_t i = 0; i < grown.size(); ++i) {
      spans[i].set_value(grown[i].tree.nodes().size());
      ToWire(grown[i], response->add_calls());
    }
    return absl::OkStatus();
  }

  absl::Status GrowTrees(const v1::GrowRequest& request, const std::function<bool()>& over,
                         v1::GrowResponse* response) {
    if (options_.baton == nullptr) {
      return absl::FailedPreconditionError(
          "draft_worker has no baton: its log says why it could not open run_dir/compute-baton");
    }
    std::vector<TreeRequest> trees;
    for (const v1::DraftCall& call : request.calls()) {
      WITHY_RETURN_IF_ERROR(CheckDraft(call));
      trees.push_back(FromWire(call));
    }
    LentTurns turns(*options_.baton, request.round(), over);
    WITHY_ASSIGN_OR_RETURN(const serving::CaughtUp caught_up, drafter_.Grow(trees, turns));
    response->set_caught_up_tokens(static_cast<uint32_t>(caught_up.tokens));
    response->set_catch_up_ms(caught_up.ms);
    for (const TreeRequest& tree : trees) {
      response->add_computed_tokens(static_cast<uint32_t>(drafter_.computed(tree.call_id)));
    }
    return absl::OkStatus();
  }

  // Refers to the request's tokens.
  TreeRequest FromWire(const v1::DraftCall& request) const {
    TreeRequest tree{
        .call_id = request.call_id(),
        .known_tokens = static_cast<int32_t>(request.known_tokens()),
        .tokens = {request.tokens().data(), static_cast<size_t>(request.tokens_size())},
        .sampling = engine::ParamsOf(request.sampling()),
        .limits = {}};
    const auto ends = model_.bundle.tokenizer->end_of_generation_ids();
    tree.sampling.unpenalized.assign(ends.begin(), ends.end());
    tree.sampling.prompt_tokens = static_cast<int32_t>(request.prompt_tokens());
    tree.limits.max_nodes = static_cast<int32_t>(request.max_tokens());
    tree.limits.max_depth = static_cast<int32_t>(request.max_depth());
    tree.limits.max_passes = static_cast<int32_t>(std::min(request.max_passes(), kMostPasses));
    tree.limits.alpha = request.alpha();
    tree.limits.token_ms = request.token_ms();
    if (request.branch_threshold() > 0) tree.limits.branch_threshold = request.branch_threshold();
    if (request.leaves_per_pass() > 0) {
      tree.limits.leaves_per_pass = static_cast<int32_t>(request.leaves_per_pass());
    }
    return tree;
  }

  static void ToWire(const GrownTree& grown, v1::CallDraft* response) {
    response->set_unknown(grown.unknown);
    response->set_passes(static_cast<uint32_t>(grown.passes));
    response->set_pass_ms(grown.pass_ms);
    response->set_caught_up_tokens(static_cast<uint32_t>(grown.caught_up.tokens));
    response->set_catch_up_ms(grown.caught_up.ms);
    response->set_window_drafted_tokens(static_cast<uint32_t>(grown.window_drafted));
    response->set_window_kept_tokens(static_cast<uint32_t>(grown.window_kept));
    for (const policy::DraftNode& node : grown.tree.nodes()) {
      v1::DraftedToken* token = response->add_tokens();
      token->set_token(node.token);
      token->set_parent(node.parent);
      token->set_probability(static_cast<float>(node.confidence));
    }
  }

  absl::Status CheckDraft(const v1::DraftCall& request) const {
    constexpr uint32_t kMost = policy::TokenTree::kMaxDraftedTokens;
    if (request.vocabulary() != model_.bundle.tokenizer->fingerprint()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the vocabulary of the draft, ", model_.bundle.model->info().name,
                       ", is not the target's: set draft.path to a model of that vocabulary"));
    }
    if (request.max_tokens() < 1 || request.max_tokens() > kMost) {
      return absl::InvalidArgumentError(
          absl::StrCat("max_tokens is ", request.max_tokens(), ": must be in [1, ", kMost, "]"));
    }
    if (request.max_depth() < 1 || request.max_depth() > kMost) {
      return absl::InvalidArgumentError(
          absl::StrCat("max_depth is ", request.max_depth(), ": must be in [1, ", kMost, "]"));
    }
    if (!(request.alpha() >= 0 && request.alpha() < 1) || !(request.token_ms() >= 0)) {
      return absl::InvalidArgumentError(absl::StrCat("alpha is ", request.alpha(), " and token_ms ",
                                                     request.token_ms(),
                                                     ": must be in [0, 1) and 0 or more"));
    }
    if (!(request.branch_threshold() >= 0 && request.branch_threshold() <= 1) ||
        request.leaves_per_pass() > kMostLeaves) {
      return absl::InvalidArgumentError(
          absl::StrCat("branch_threshold is ", request.branch_threshold(), " and leaves_per_pass ",
                       request.leaves_per_pass(), ": must be in [0, 1] and at most ", kMostLeaves));
    }
    if (request.known_tokens() <= static_cast<uint32_t>(model_.window)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("known_tokens is ", request.known_tokens(),
                                                   ": the draft's window has ", model_.window));
  }

  Answerer& answerer_;
  serving::TreeDrafter drafter_;
  const engine::ServedModel& model_;
  const engine::WorkerCost cost_;
  const DraftServiceOptions options_;
  rpc::OpenStreams& answers_;
  const uint64_t encoder_fingerprint_;
  const uint64_t instance_ = RandomId64();
  engine::RequestLimits limits_;
  grammar::Compiler grammars_;
  serving::TaskThread grammar_thread_;  // compiles, so that neither gRPC nor answers wait
};

// Answers every call with the reason why there is no draft.
class NoDraftService final : public v1::DraftWorker::CallbackService {
 public:
  explicit NoDraftService(std::string why) : why_(std::move(why)) {}

  grpc::ServerWriteReactor<v1::RunResponse>* Run(grpc::CallbackServerContext* context,
                                                 const v1::RunRequest* /*request*/) override {
    const std::shared_ptr<RunQueue> queue = RunQueue::Create(answers_, context);
    queue->Close(absl::NotFoundError(why_));
    return queue->reactor();
  }
  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context,
                                   const v1::CancelRunRequest*, v1::CancelRunResponse*) override {
    return Refuse(context);
  }
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest*, v1::TokenizeResponse*) override {
    return Refuse(context);
  }
  grpc::ServerUnaryReactor* Draft(grpc::CallbackServerContext* context, const v1::DraftRequest*,
                                  v1::DraftResponse*) override {
    return Refuse(context);
  }
  grpc::ServerUnaryReactor* Grow(grpc::CallbackServerContext* context, const v1::GrowRequest*,
                                 v1::GrowResponse*) override {
    return Refuse(context);
  }
  grpc::ServerUnaryReactor* GetWorkerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetWorkerInfoRequest* /*request*/,
                                          v1::GetWorkerInfoResponse* response) override {
    response->set_without_model(why_);
    rpc::FillProcessStatus("draft_worker", response->mutable_status());
    response->mutable_status()->set_detail(why_);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context) const {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpc(absl::NotFoundError(why_)));
    return reactor;
  }

  const std::string why_;
  rpc::OpenStreams answers_;  // they end at once
};

}  // namespace

std::unique_ptr<grpc::Service> MakeDraftWorkerService(Answerer& answerer,
                                                      const engine::ServedModel& model,
                                                      const engine::WorkerCost& cost,
                                                      const DraftServiceOptions& options,
                                                      rpc::OpenStreams& answers) {
  return std::make_unique<DraftWorkerService>(answerer, model, cost, options, answers);
}

std::unique_ptr<grpc::Service> MakeNoDraftService(std::string why) {
  return std::make_unique<NoDraftService>(std::move(why));
}

}  // namespace withy::draft_worker
