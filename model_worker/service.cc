#include "model_worker/service.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "grammar/compiler.h"
#include "model_worker/delta_gatherer.h"
#include "model_worker/embed_stream.h"
#include "model_worker/score_stream.h"
#include "policy/constants.h"
#include "rpc/daemon.h"
#include "rpc/status.h"
#include "rpc/write_queue.h"
#include "serving/call/task_thread.h"
#include "store_client/outcome_wire.h"
#include "wire/call_targets.h"
#include "wire/level_losses.h"
#include "wire/speculation.h"
#include "wire/wire.h"
#include "withy/v1/model_worker.grpc.pb.h"

namespace withy::model_worker {
namespace {

using RunQueue = rpc::WriteQueue<v1::RunResponse>;

constexpr size_t kTokenizeQueue = 256;

// Adds retry advice to the statuses after which a retry may succeed.
absl::Status WithHint(const absl::Status& status) {
  const bool retry =
      absl::IsUnavailable(status) || absl::IsAborted(status) || absl::IsResourceExhausted(status);
  if (!retry || rpc::RetryAfterMs(status).has_value()) return status;
  return rpc::WithRetryAfter(status, policy::kWorkerRetryMs);
}

// A call's stream, as the scheduler sees it. Shared by scheduler and RPC: either may end first.
class StreamSink final : public serving::CallSink {
 public:
  StreamSink(const serving::Scheduler& scheduler, std::shared_ptr<RunQueue> queue,
             const engine::SamplingParams& sampling, const engine::Tokenizer& tokenizer)
      : scheduler_(scheduler),
        queue_(std::move(queue)),
        sampling_(sampling),
        tokenizer_(tokenizer) {}

  void Accepted(const serving::CallAccepted& accepted) override {
    v1::RunResponse response;
    v1::RunAccepted* wire = response.mutable_accepted();
    wire->set_reused_tokens(static_cast<uint32_t>(accepted.reused_tokens));
    wire->set_prefill_tokens(static_cast<uint32_t>(accepted.prefill_tokens));
    wire->set_queue_position(static_cast<uint32_t>(accepted.queue_position));
    response.set_board_slowdown(scheduler_.board_slowdown());
    queue_->Push(std::move(response));
  }
  void Progress(int32_t computed, int32_t tokens) override {
    if (!progress_.Due(Clock::Real().SteadyNanos()) || !queue_->HasRoom()) return;
    v1::RunResponse response;
    response.mutable_progress()->set_computed_tokens(static_cast<uint32_t>(computed));
    response.mutable_progress()->set_prefill_tokens(static_cast<uint32_t>(tokens));
    queue_->Push(std::move(response));
  }
  void LevelChanged(int32_t level_percent) override {
    Flush();
    new_level_percent_ = level_percent;
  }
  void Delta(const engine::AnswerDelta& delta) override {
    if (delta.text.empty() && !delta.token.has_value()) return;
    v1::GenerateDelta wire = engine::ToWire(delta, sampling_, tokenizer_);
    if (new_level_percent_ != 0) {
      wire.set_model_level_percent(static_cast<uint32_t>(std::exchange(new_level_percent_, 0)));
    }
    Tell(deltas_.Add(std::move(wire), Clock::Real().SteadyNanos()));
  }
  void Flush() override { Tell(deltas_.Take(Clock::Real().SteadyNanos())); }
  void Finished(const serving::CallOutcome& outcome) override {
    Flush();
    v1::RunResponse response;
    *response.mutable_finished() = store_client::ToWire(outcome);
    response.set_board_slowdown(scheduler_.board_slowdown());
    queue_->Push(std::move(response));
    queue_->Close(absl::OkStatus());
  }
  void Failed(const absl::Status& status) override {
    Flush();
    queue_->Close(WithHint(status));
  }
  bool HasRoom() const override { return queue_->HasRoom(); }

 private:
  void Tell(std::optional<v1::GenerateDelta> delta) {
    if (!delta.has_value()) return;
    v1::RunResponse response;
    *response.mutable_delta() = *std::move(delta);
    queue_->Push(std::move(response));
  }

  const serving::Scheduler& scheduler_;  // which calls it
  const std::shared_ptr<RunQueue> queue_;
  const engine::SamplingParams sampling_;
  const engine::Tokenizer& tokenizer_;
  DeltaGatherer deltas_;
  engine::ProgressPace progress_;
  int32_t new_level_percent_ = 0;  // to be told with the next delta; 0 = nothing
};

class ModelWorkerService final : public v1::ModelWorker::CallbackService {
 public:
  explicit ModelWorkerService(const ServiceParts& parts)
      : parts_(parts),
        encoder_fingerprint_(parts.env.encoder.Fingerprint()),
        tokenize_thread_(kTokenizeQueue),
        score_thread_(/*limit=*/1),
        embed_thread_(serving::IdleEmbedder::kMostWaiting),
        grammars_(parts.env.encoder.tokenizer(), parts.env.model.vocab_size,
                  parts.env.encoder.CallsForm()),
        grammar_thread_(grammar::kMostWaiting) {}

  grpc::ServerWriteReactor<v1::RunResponse>* Run(grpc::CallbackServerContext* context,
                                                 const v1::RunRequest* request) override {
    const std::shared_ptr<RunQueue> queue = RunQueue::Create(parts_.answers, context);
    const auto submit = [this, request, queue] {
      if (const absl::Status status = Submit(*request, queue); !status.ok()) {
        queue->Close(WithHint(status));
      }
    };
    if (!request->has_output_format()) {
      submit();
    } else if (!grammar_thread_.Post(submit)) {
      queue->Close(WithHint(absl::ResourceExhaustedError(
          "too many calls wait for the grammars of their output_format: retry")));
    }
    return queue->reactor();
  }

  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context,
                                   const v1::CancelRunRequest* request,
                                   v1::CancelRunResponse* /*response*/) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    parts_.scheduler.CancelCall(request->call_id(), [reactor](bool found) {
      reactor->Finish(found ? grpc::Status::OK
                            : rpc::ToGrpc(absl::NotFoundError("no such call is here")));
    });
    return reactor;
  }

  grpc::ServerUnaryReactor* ForgetContext(grpc::CallbackServerContext* context,
                                          const v1::ForgetContextRequest* request,
                                          v1::ForgetContextResponse* /*response*/) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    parts_.scheduler.ForgetContext(request->app_id(), request->context_id(),
                                   [reactor] { reactor->Finish(grpc::Status::OK); });
    return reactor;
  }

  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const bool posted = tokenize_thread_.Post([this, context, request, response, reactor] {
      // Many calls may wait behind one that a hanging store holds up; a drain does not wait for
      // them. Encoding a long prompt stops when the caller has left or a drain begins.
      const engine::CancelCheck cancelled = [context] { return context->IsCancelled(); };
      reactor->Finish(cancelled() ? grpc::Status::CANCELLED
                                  : rpc::ToGrpc(CountTokens(*request, cancelled, response)));
    });
    if (!posted) {
      reactor->Finish(rpc::ToGrpc(
          rpc::WithRetryAfter(absl::ResourceExhaustedError("too many prompts wait to be counted"),
                              policy::kLeastWorkerRetryMs)));
    }
    return reactor;
  }

  grpc::ServerWriteReactor<v1::ScoreResponse>* Score(grpc::CallbackServerContext* context,
                                                     const v1::ScoreRequest* request) override {
    const auto queue = ScoreStream::Queue::Create(parts_.answers, context);
    const auto place = score_place_;
    if (!place->Take()) {
      queue->Close(WithHint(absl::ResourceExhaustedError(
          "another text is being scored: retry when it is done; one is scored at a time")));
      return queue->reactor();
    }
    const bool posted = score_thread_.Post([this, request, queue, place] {
      auto stream =
          std::make_shared<ScoreStream>(queue, place, *request, parts_.env.encoder.tokenizer());
      const engine::CancelCheck cancelled = [&queue] { return queue->cancelled(); };
      auto scorer = ScorerFromWire(*request, parts_.env, parts_.model, &cancelled);
      if (!scorer.ok()) return stream->Failed(scorer.status());
      parts_.scheduler.Score(*std::move(scorer), std::move(stream));
    });
    if (!posted) {  // the one before has left its place and not yet its thread
      place->Leave();
      queue->Close(WithHint(absl::ResourceExhaustedError("another text is being scored: retry")));
    }
    return queue->reactor();
  }

  grpc::ServerWriteReactor<v1::EmbedResponse>* Embed(grpc::CallbackServerContext* context,
                                                     const v1::EmbedRequest* request) override {
    const auto queue = EmbedStream::Queue::Create(parts_.answers, context);
    auto stream = std::make_shared<EmbedStream>(queue);
    const bool posted = embed_thread_.Post([this, request, queue, stream] {
      const engine::CancelCheck cancelled = [&queue] { return queue->cancelled(); };
      absl::Status status = parts_.trust_weights();
      if (!status.ok()) return stream->Failed(status);
      auto embedder = EmbedderFromWire(*request, parts_.env, parts_.model, &cancelled);
      if (!embedder.ok()) return stream->Failed(embedder.status());
      parts_.scheduler.Embed(*std::move(embedder), stream);
    });
    if (!posted) {
      stream->Failed(absl::ResourceExhaustedError(
          "too many requests wait for the vectors of their texts: retry later"));
    }
    return queue->reactor();
  }

  grpc::ServerWriteReactor<v1::UseModelResponse>* UseModel(
      grpc::CallbackServerContext* context, const v1::UseModelRequest* request) override {
    return parts_.change.Use(context, *request);
  }

  grpc::ServerUnaryReactor* GetWorkerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetWorkerInfoRequest* /*request*/,
                                          v1::GetWorkerInfoResponse* response) override {
    FillInfo(response);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  engine::RequestLimits Limits() const {
    const serving::SessionEnv& env = parts_.env;
    engine::RequestLimits limits{
        .vocab_size = env.model.vocab_size, .context_length = env.window, .levels_percent = {}};
    for (const engine::LevelInfo& level : env.model.levels) {
      limits.levels_percent.push_back(level.percent);
    }
    return limits;
  }

  uint64_t instance() const {
    return first_instance_ + static_cast<uint64_t>(int32_t{parts_.env.window});
  }

  // On the grammars' thread if the request has an output_format.
  absl::Status Submit(const v1::RunRequest& request, const std::shared_ptr<RunQueue>& queue) {
    if (request.worker_instance() != 0 && request.worker_instance() != instance()) {
      return absl::AbortedError(
          "model_worker was restarted, or its window changed, since the call was decided: decide "
          "anew");
    }
    WITHY_RETURN_IF_ERROR(parts_.trust_weights());
    serving::CallRequest call;
    WITHY_ASSIGN_OR_RETURN(call.answer, engine::RequestFromWire(request, parts_.defaults,
                                                                RandomId64(), parts_.env.window));
    WITHY_RETURN_IF_ERROR(engine::Validate(call.answer, Limits()));
    WITHY_ASSIGN_OR_RETURN(call.answer.grammar, grammars_.Compile(call.answer.output_format));
    call.call_id = request.call_id();
    call.app_id = request.app_id();
    call.context_id = request.context_id();
    call.request_id = request.request_id();
    call.request_digest = request.request_digest();
    call.decision = request.decision().SerializeAsString();
    call.turn = wire::TurnFromWire(request);
    call.targets = wire::TargetsFromWire(request.targets());
    call.pace_options = {.expected_tokens = static_cast<int32_t>(std::min(
                             request.expected_tokens(), static_cast<uint32_t>(parts_.env.window))),
                         .level_fixed = request.level_fixed()};
    call.pruned_words = static_cast<int32_t>(request.pruned_words());
    call.report_progress = request.report_progress();
    call.record_without_thought = request.record_without_thought();
    call.speculation = wire::ModeFromWire(request.speculation(), parts_.speculation);
    call.prompt_tokens = static_cast<int32_t>(request.decision().predicted_prompt_tokens());
    call.whole_tokens =
        call.prompt_tokens + static_cast<int32_t>(request.decision().predicted_reused_tokens());
    auto sink = std::make_shared<StreamSink>(parts_.scheduler, queue, call.answer.sampling,
                                             parts_.env.encoder.tokenizer());
    const auto ticket = parts_.scheduler.Submit(std::move(call), std::move(sink));
    if (absl::IsResourceExhausted(ticket.status())) {
      return rpc::WithRetryAfter(ticket.status(), RetryMs());
    }
    WITHY_RETURN_IF_ERROR(ticket.status());
    // Whether the caller cancelled, ran out of time or died cannot be told apart here, nor whether
    // it was the orchestrator or the app: who wants the part as the answer says so by Cancel.
    queue->OnCancelled([&scheduler = parts_.scheduler, ticket = *ticket] {
      scheduler.BreakOff(ticket, absl::CancelledError("the call's stream has ended"));
    });
    return absl::OkStatus();
  }

  // Estimated time until the present prompts are computed and the first waiting call has started.
  int64_t RetryMs() const {
    const serving::SchedulerLoad load = parts_.scheduler.load();
    const double us =
        static_cast<double>(load.pending_prefill_tokens) * parts_.cost.step.prefill_us_per_token;
    return std::max(policy::kLeastWorkerRetryMs, static_cast<int64_t>(std::ceil(us / 1e3)));
  }

  // Counts tokens as a call's session would: with the context's record before the prompt.
  absl::Status CountTokens(const v1::TokenizeRequest& request, const engine::CancelCheck& cancelled,
                           v1::TokenizeResponse* response) {
    WITHY_ASSIGN_OR_RETURN(std::vector<engine::Segment> prompt,
                           engine::PromptFromWire(request.prompt(), request.kept()));
    store_client::ContextInfo context;
    if (!request.context_id().empty()) {
      v1::StoreGetContextRequest get;
      get.set_app_id(request.app_id());
      get.set_context_id(request.context_id());
      get.set_request_id(request.request_id());
      get.set_request_digest(request.request_digest());
      WITHY_ASSIGN_OR_RETURN(context, parts_.leases.GetContext(get));
    }
    std::vector<engine::Segment> segments = std::move(context.segments);
    const size_t recorded = segments.size();
    segments.insert(segments.end(), prompt.begin(), prompt.end());
    WITHY_ASSIGN_OR_RETURN(
        const engine::EncodedConversation encoded,
        parts_.env.encoder.MeasurePrompt(segments, parts_.env.window, recorded, &cancelled,
                                         engine::TruncationFromWire(request.truncation())));
    response->set_prompt_tokens(static_cast<uint32_t>(encoded.ids.size()) -
                                static_cast<uint32_t>(encoded.history_tokens));
    response->set_adapted_messages(static_cast<uint32_t>(encoded.adapted_segments));
    response->set_answer_begins_in_thought(encoded.answer_begins_in_thought);
    response->set_dropped_messages(static_cast<uint32_t>(encoded.dropped_segments));
    const int32_t history = encoded.history_tokens;
    response->set_context_tokens(static_cast<uint32_t>(history));
    // The resident KV is that of the record as the last call left it. When more messages must be
    // dropped now, those that stay get other positions and are computed again.
    const bool as_before = encoded.dropped_segments == context.dropped_messages;
    const int32_t kept = as_before ? std::min(context.kv_tokens, encoded.stable_tokens) : 0;
    response->set_resident_tokens(static_cast<uint32_t>(kept));
    response->set_instance(instance());
    return absl::OkStatus();
  }

  void FillInfo(v1::GetWorkerInfoResponse* response) const {
    *response->mutable_model() =
        engine::Describe(parts_.env.model, "target", parts_.env.window, parts_.defaults);
    response->mutable_model()->set_warning(parts_.warning);
    response->set_model_path(parts_.model_path);
    response->set_refused_model(parts_.refused_model);
    for (const float loss : wire::LossAboveFull(parts_.model.metadata(), parts_.env.model)) {
      response->mutable_model()->add_level_loss_above_full(loss);
    }
    *response->mutable_cost() = engine::ToWire(parts_.cost, parts_.env.model);
    response->set_instance(instance());
    response->set_encoder_fingerprint(encoder_fingerprint_);
    response->set_board_slowdown(parts_.scheduler.board_slowdown());
    const serving::SchedulerLoad load = parts_.scheduler.load();
    v1::WorkerLoad* wire = response->mutable_load();
    wire->set_running_calls(static_cast<uint32_t>(load.running));
    wire->set_queued_calls(static_cast<uint32_t>(load.queued));
    wire->set_queue_limit(static_cast<uint32_t>(load.queue_limit));
    wire->set_pending_prefill_tokens(static_cast<uint32_t>(load.pending_prefill_tokens));
    v1::ProcessStatus* status = response->mutable_status();
    rpc::FillProcessStatus("model_worker", status);
    status->set_model_bytes(static_cast<uint64_t>(parts_.env.model.weight_bytes));
    status->set_running_calls(wire->running_calls());
    status->set_queued_calls(wire->queued_calls());
    status->set_queue_limit(wire->queue_limit());
    status->set_detail(absl::StrCat(parts_.env.model.name, "; ", parts_.leases.Describe(), "; ",
                                    engine::Describe(parts_.cost),
                                    parts_.warning.empty() ? "" : "; warning: ", parts_.warning));
  }

  const ServiceParts parts_;
  const uint64_t encoder_fingerprint_;
  // Another one for each window that is served: what was counted and decided for one does not hold
  // for another.
  const uint64_t first_instance_ = RandomId64();
  serving::TaskThread
      tokenize_thread_;  // encodes and asks the store, so that gRPC's threads need not wait
  const std::shared_ptr<ScorePlace> score_place_ = std::make_shared<ScorePlace>();
  serving::TaskThread score_thread_;  // encodes texts that are to be scored
  serving::TaskThread embed_thread_;  // encodes texts that are to get vectors
  grammar::Compiler grammars_;
  serving::TaskThread grammar_thread_;  // compiles, so that neither gRPC nor steps wait
};

}  // namespace

std::unique_ptr<grpc::Service> MakeModelWorkerService(const ServiceParts& parts) {
  return std::make_unique<ModelWorkerService>(parts);
}

}  // namespace withy::model_worker
