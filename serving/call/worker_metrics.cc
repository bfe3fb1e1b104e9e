#include "serving/call/worker_metrics.h"

#include <cmath>

namespace withy::serving {

using telemetry::Phase;
using telemetry::RecordDuration;

WorkerMetrics::WorkerMetrics(telemetry::Recorder& recorder)
    : recorder_(recorder),
      prefilled_(recorder.counter(
          {.name = "withy_prefilled_tokens_total", .help = "Prompt tokens computed."})),
      generated_(
          recorder.counter({.name = "withy_generated_tokens_total", .help = "Tokens sampled."})),
      reused_(recorder.counter(
          {.name = "withy_reused_tokens_total", .help = "Prompt tokens whose KV was reused."})),
      compressed_(recorder.counter(
          {.name = "withy_compressed_kv_tokens_total",
           .help = "Prompt tokens whose KV was reused in fewer bits than 8, for want of room."})),
      steps_(recorder.counter(
          {.name = "withy_engine_steps_total", .help = "Forward passes over the weights."})),
      failed_(recorder.counter(
          {.name = "withy_worker_calls_failed_total", .help = "Calls that ended in an error."})),
      faults_(recorder.counter({.name = "withy_kv_chunk_faults_total",
                                .help = "Resident chunks that were not what they claim."})),
      level_drops_(recorder.counter({.name = "withy_level_drops_total",
                                     .help = "Times a running call went on at a lower level."})),
      rests_(recorder.counter({.name = "withy_model_rests_total",
                               .help = "Times the weights' memory was given back: "
                                       "model.idle_release_s."})),
      upgrades_(recorder.counter(
          {.name = "withy_upgraded_contexts_total",
           .help = "Contexts whose KV was computed again at the full level in an idle moment."})),
      window_drafted_(recorder.counter(
          {.name = "withy_window_drafted_tokens_total",
           .help = "Tokens drafted while a pass of the target waited for weights."})),
      running_(recorder.gauge({.name = "withy_calls_running", .help = "Calls being answered."})),
      queued_(recorder.gauge({.name = "withy_calls_queued", .help = "Calls waiting."})),
      streamed_bytes_(recorder.counter({.name = "withy_weights_streamed_bytes_total",
                                        .help = "Weights read from the packed file for passes.",
                                        .unit = telemetry::Unit::kBytes})),
      weight_waits_(recorder.counter({.name = "withy_weight_waits_total",
                                      .help = "Times a pass stood still until weights came."})),
      weight_wait_ns_(recorder.counter({.name = "withy_weight_wait_seconds_total",
                                        .help = "Time that passes stood still for weights.",
                                        .unit = telemetry::Unit::kNanoseconds})),
      weight_failures_(
          recorder.counter({.name = "withy_weight_read_failures_total",
                            .help = "Passes that ended because weights could not be read."})),
      weight_memory_(recorder.gauge({.name = "withy_weight_memory_bytes",
                                     .help = "Memory of weights under a budget, with buffers.",
                                     .unit = telemetry::Unit::kBytes})),
      experts_chosen_(recorder.counter(
          {.name = "withy_experts_chosen_total",
           .help = "Experts of layers that passes chose, where not all fit memory."})),
      experts_in_memory_(
          recorder.counter({.name = "withy_experts_in_memory_total",
                            .help = "Chosen experts that were in memory, so that none was read."})),
      board_slowdown_(recorder.gauge(
          {.name = "withy_board_slowdown",
           .help = "Time of passes now over their time at the measured speed of the board.",
           .unit = telemetry::Unit::kMillionths})),
      step_error_(recorder.gauge({.name = "withy_step_prediction_error",
                                  .help = "Median error of the predictions of the last passes.",
                                  .unit = telemetry::Unit::kMillionths})),
      board_changes_(recorder.counter({.name = "withy_board_speed_changes_total",
                                       .help = "Times that the board's speed changed at once."})),
      weight_wait_span_(recorder.Name("weight_wait", telemetry::SpanKind::kIo)) {
  using engine::FinishReason;
  for (const FinishReason reason :
       {FinishReason::kEndOfTurn, FinishReason::kStopString, FinishReason::kMaxTokens,
        FinishReason::kContextFull, FinishReason::kKvFull, FinishReason::kCancelled}) {
    finished_[static_cast<size_t>(reason)] =
        &recorder.counter({.name = "withy_worker_calls_finished_total",
                           .help = "Calls that came to an end, by reason.",
                           .label_key = "reason",
                           .label_value = engine::FinishReasonName(reason)});
  }
  using policy::DraftSourceKind;
  for (const DraftSourceKind source : {DraftSourceKind::kLookup, DraftSourceKind::kPrefix,
                                       DraftSourceKind::kDraft, DraftSourceKind::kHead}) {
    drafted_[static_cast<size_t>(source)] =
        &recorder.counter({.name = "withy_drafted_tokens_total",
                           .help = "Drafted tokens that the target verified, by source.",
                           .label_key = "source",
                           .label_value = policy::DraftSourceName(source)});
    accepted_[static_cast<size_t>(source)] =
        &recorder.counter({.name = "withy_accepted_tokens_total",
                           .help = "Drafted tokens that the target accepted, by source.",
                           .label_key = "source",
                           .label_value = policy::DraftSourceName(source)});
  }
}

void WorkerMetrics::Step(uint64_t call_id, Phase phase, int32_t rows, int32_t token,
                         int64_t started_ns, int64_t ended_ns) {
  RecordDuration(recorder_, phase, call_id, started_ns, ended_ns, static_cast<uint64_t>(rows),
                 static_cast<uint32_t>(token));
  const bool prompt = phase == Phase::kPrefill || phase == Phase::kRecompute;
  if (prompt) prefilled_.Add(static_cast<uint64_t>(rows));
}

void WorkerMetrics::Sampling(uint64_t call_id, size_t tokens, int32_t token, int64_t started_ns,
                             int64_t ended_ns) {
  RecordDuration(recorder_, Phase::kSampling, call_id, started_ns, ended_ns, tokens,
                 static_cast<uint32_t>(token));
  generated_.Add(tokens);
}

void WorkerMetrics::Drafted(uint64_t call_id, int32_t tokens, int64_t started_ns,
                            int64_t ended_ns) {
  RecordDuration(recorder_, Phase::kDraft, call_id, started_ns, ended_ns,
                 static_cast<uint64_t>(tokens));
}

void WorkerMetrics::DraftedInWindow(uint64_t call_id, int32_t tokens, int64_t started_ns,
                                    int64_t ended_ns) {
  window_drafted_.Add(static_cast<uint64_t>(tokens));
  Drafted(call_id, tokens, started_ns, ended_ns);
}

void WorkerMetrics::Started(uint64_t call_id, int64_t arrived_ns, int64_t started_ns) {
  RecordDuration(recorder_, Phase::kQueue, call_id, arrived_ns, started_ns);
}

void WorkerMetrics::LeaseOpened(uint64_t call_id, int64_t started_ns, int64_t opened_ns) {
  RecordDuration(recorder_, Phase::kLease, call_id, started_ns, opened_ns);
}

void WorkerMetrics::Loaded(uint64_t call_id, int64_t opened_ns, int64_t ready_ns,
                           const CallUsage& usage) {
  RecordDuration(recorder_, Phase::kLoad, call_id, opened_ns, ready_ns,
                 static_cast<uint64_t>(usage.reused_tokens));
  reused_.Add(static_cast<uint64_t>(usage.reused_tokens));
  compressed_.Add(static_cast<uint64_t>(usage.compressed_kv_tokens));
}

void WorkerMetrics::KvAwaited(uint64_t call_id, int64_t since_ns, int64_t until_ns) {
  RecordDuration(recorder_, Phase::kLoad, call_id, since_ns, until_ns);
}

void WorkerMetrics::Committed(uint64_t call_id, int64_t started_ns, int64_t ended_ns) {
  RecordDuration(recorder_, Phase::kCommit, call_id, started_ns, ended_ns);
}

void WorkerMetrics::Finished(uint64_t call_id, const CallOutcome& outcome) {
  const CallTimes& times = outcome.times;
  const size_t tokens = outcome.tokens.size();
  if (times.first_token_ns != 0) {
    RecordDuration(recorder_, Phase::kTtft, call_id, times.arrived_ns, times.first_token_ns);
    RecordDuration(recorder_, Phase::kEndToEnd, call_id, times.arrived_ns, times.last_token_ns,
                   tokens);
  }
  if (tokens > 1) {
    const int64_t mean =
        (times.last_token_ns - times.first_token_ns) / static_cast<int64_t>(tokens - 1);
    RecordDuration(recorder_, Phase::kTpot, call_id, times.last_token_ns - mean,
                   times.last_token_ns, tokens);
  }
  if (telemetry::Counter* counter = finished_[static_cast<size_t>(outcome.reason)]) {
    counter->Add();
  }
}

void WorkerMetrics::WeightsStreamed(const engine::WeightStreamStats& stats, int64_t started_ns) {
  const uint64_t bytes = stats.read_bytes - streamed_.read_bytes;
  const int64_t waited_ns = stats.wait_ns - streamed_.wait_ns;
  streamed_bytes_.Add(bytes);
  weight_waits_.Add(stats.waits - streamed_.waits);
  weight_wait_ns_.Add(static_cast<uint64_t>(waited_ns));
  weight_failures_.Add(stats.failures - streamed_.failures);
  weight_memory_.Set(static_cast<int64_t>(stats.resident_bytes + stats.buffer_bytes));
  experts_chosen_.Add(stats.experts.chosen - streamed_.experts.chosen);
  experts_in_memory_.Add(stats.experts.in_memory - streamed_.experts.in_memory);
  if (waited_ns > 0) {
    RecordDuration(recorder_, weight_wait_span_, 0, started_ns, started_ns + waited_ns, bytes);
  }
  streamed_ = stats;
}

void WorkerMetrics::Board(const policy::BoardSpeed& board) {
  constexpr uint32_t kErrorEvery = 32;  // it is a median
  board_slowdown_.Set(std::llround(board.slowdown() * 1e6));
  if (board.passes() % kErrorEvery == 0) step_error_.Set(std::llround(board.MedianError() * 1e6));
  board_changes_.Add(board.changes() - board_changes_.value());
}

void WorkerMetrics::Load(size_t running, size_t queued) {
  running_.Set(static_cast<int64_t>(running));
  queued_.Set(static_cast<int64_t>(queued));
}

}  // namespace withy::serving
