#include "draft_worker/answerer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace withy::draft_worker {
namespace {

constexpr int64_t kHangNs = 20 * kNanosPerSecond;
constexpr absl::Duration kCancelGrace = absl::Seconds(5);

absl::Status Draining() { return absl::UnavailableError("draft_worker is shutting down: retry"); }

absl::Status CancelledEarly() { return absl::CancelledError("cancelled before its first token"); }

}  // namespace

Answerer::Answerer(engine::ServedModel& model, const Options& options, Clock& clock,
                   telemetry::Recorder& recorder)
    : model_(model),
      options_(options),
      clock_(clock),
      recorder_(recorder),
      generated_(
          recorder.counter({.name = "withy_generated_tokens_total", .help = "Tokens sampled."})),
      running_(recorder.gauge({.name = "withy_calls_running", .help = "Calls being answered."})),
      queued_(recorder.gauge({.name = "withy_calls_queued", .help = "Calls waiting."})),
      thread_([this] { Run(); }) {}

Answerer::~Answerer() {
  Drain(absl::ZeroDuration());
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

absl::Status Answerer::Submit(uint64_t call_id, engine::AnswerRequest request,
                              std::shared_ptr<AnswerSink> sink) {
  absl::MutexLock lock(&mutex_);
  if (draining_) return Draining();
  if (waiting_.size() >= options_.queue_limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat("draft_worker: one call runs and ", waiting_.size(),
                     " wait (draft.queue_limit); this would be number ", waiting_.size() + 1));
  }
  const auto position = static_cast<int32_t>(waiting_.size() + (busy_ ? 1 : 0));
  waiting_.push_back({.call_id = call_id,
                      .request = std::move(request),
                      .sink = std::move(sink),
                      .arrived_ns = clock_.SteadyNanos(),
                      .queue_position = position});
  queued_.Set(static_cast<int64_t>(waiting_.size()));
  return absl::OkStatus();
}

absl::Status Answerer::Post(std::function<void(const absl::Status&)> task) {
  absl::MutexLock lock(&mutex_);
  if (draining_) return Draining();
  if (tasks_.size() >= kMostTasks) {
    return absl::ResourceExhaustedError(
        absl::StrCat("draft_worker: ", tasks_.size(), " requests for drafts wait"));
  }
  tasks_.push_back(std::move(task));
  return absl::OkStatus();
}

void Answerer::RunTasks() {
  while (true) {
    std::function<void(const absl::Status&)> task;
    absl::Status status;
    {
      absl::MutexLock lock(&mutex_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      if (draining_) status = Draining();
    }
    step_since_ns_ = clock_.SteadyNanos();
    task(status);
    step_since_ns_ = 0;
  }
}

bool Answerer::Cancel(uint64_t call_id) {
  Call call;
  {
    absl::MutexLock lock(&mutex_);
    if (busy_ && busy_call_ == call_id) {
      cancel_call_ = true;
      return true;
    }
    const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                    [&](const Call& c) { return c.call_id == call_id; });
    if (found == waiting_.end()) return false;
    call = std::move(*found);
    waiting_.erase(found);
    queued_.Set(static_cast<int64_t>(waiting_.size()));
  }
  call.sink->Done(CancelledEarly(), call.arrived_ns);
  return true;
}

void Answerer::Drain(absl::Duration grace) {
  std::deque<Call> refused;
  {
    const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return waiting_.empty() && !busy_;
    };
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    if (mutex_.AwaitWithTimeout(absl::Condition(&idle), grace)) return;
    refused.swap(waiting_);
    cancel_all_ = true;
  }
  for (const Call& call : refused) call.sink->Done(Draining(), call.arrived_ns);
  const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !busy_; };
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&done), kCancelGrace);
}

AnswererLoad Answerer::load() const {
  absl::MutexLock lock(&mutex_);
  return {.running = busy_ ? size_t{1} : size_t{0}, .queued = waiting_.size()};
}

bool Answerer::MakesProgress() const { return PieceNanos() < kHangNs; }

int64_t Answerer::PieceNanos() const {
  const int64_t since = step_since_ns_.load();
  return since == 0 ? 0 : clock_.SteadyNanos() - since;
}

void Answerer::Run() {
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !waiting_.empty() || !tasks_.empty();
  };
  while (true) {
    Call call;
    {
      absl::MutexLock lock(&mutex_);
      busy_ = false;
      running_.Set(0);
      mutex_.Await(absl::Condition(&ready));
    }
    RunTasks();
    {
      absl::MutexLock lock(&mutex_);
      if (waiting_.empty()) {
        if (stopping_ && tasks_.empty()) return;
        continue;
      }
      call = std::move(waiting_.front());
      waiting_.pop_front();
      busy_ = true;
      busy_call_ = call.call_id;
      cancel_call_ = false;
      running_.Set(1);
      queued_.Set(static_cast<int64_t>(waiting_.size()));
    }
    telemetry::RecordDuration(recorder_, telemetry::Phase::kQueue, call.call_id, call.arrived_ns,
                              clock_.SteadyNanos());
    call.sink->Begun(call.queue_position);
    call.sink->Done(Judge(Answer(call)), call.arrived_ns);
  }
}

// A partial answer is a result only if the caller requested that.
absl::StatusOr<engine::SoloResult> Answerer::Judge(
    absl::StatusOr<engine::SoloResult> result) const {
  if (!result.ok() || result->reason != engine::FinishReason::kCancelled) return result;
  if (cancel_call_) {
    if (result->tokens.empty()) return CancelledEarly();
    return result;
  }
  if (cancel_all_) return Draining();
  return absl::CancelledError("the call's stream has ended");
}

absl::StatusOr<engine::SoloResult> Answerer::Answer(const Call& call) {
  const engine::SoloOptions options{.window = model_.window, .piece_rows = options_.piece_rows};
  int32_t steps = 0;
  const engine::SoloHooks hooks{
      .on_delta =
          [&](const engine::AnswerDelta& delta) {
            if (delta.token.has_value()) generated_.Add();
            call.sink->Delta(delta);
          },
      .cancelled =
          [&] {
            step_since_ns_ = clock_.SteadyNanos();
            return cancel_all_ || cancel_call_ || call.sink->cancelled();
          },
      .on_step =
          [&](int32_t rows, int64_t started_ns, int64_t ended_ns) {
            step_since_ns_ = 0;
            const bool prefill = steps++ == 0 || rows > 1;
            telemetry::RecordDuration(
                recorder_, prefill ? telemetry::Phase::kPrefill : telemetry::Phase::kDecode,
                call.call_id, started_ns, ended_ns, static_cast<uint64_t>(rows));
          },
      .on_prompt = [&](int32_t computed, int32_t tokens) { call.sink->Progress(computed, tokens); },
      .next_pass = [&] { return pass_numbers_.Next(call.call_id); }};
  auto result = engine::AnswerAlone(*model_.bundle.model, model_.encoder, call.request, options,
                                    hooks, clock_);
  step_since_ns_ = 0;
  if (result.ok() && result->times.first_token != 0) {
    telemetry::RecordDuration(recorder_, telemetry::Phase::kTtft, call.call_id, call.arrived_ns,
                              result->times.first_token);
    telemetry::RecordDuration(recorder_, telemetry::Phase::kEndToEnd, call.call_id, call.arrived_ns,
                              result->times.last_token, result->tokens.size());
  }
  return result;
}

}  // namespace withy::draft_worker
