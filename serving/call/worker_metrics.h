// model_worker's counters and spans. Neighbours: telemetry/ exports them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/model/kernel_observer.h"
#include "engine/session/answer_stream.h"
#include "engine/weights/weight_stream.h"
#include "policy/board/board_speed.h"
#include "policy/draft/draft_tree.h"
#include "serving/call/call.h"
#include "telemetry/recorder.h"

namespace withy::serving {

// Any thread. `recorder` must outlive it.
class WorkerMetrics {
 public:
  explicit WorkerMetrics(telemetry::Recorder& recorder);

  // A step computed `rows` rows of a call. `phase`: kPrefill, kRecompute, kDecode or kVerify.
  // `token`: index of the first row's token in the context; of an answer, index of the first token
  // that the step gave.
  void Step(uint64_t call_id, telemetry::Phase phase, int32_t rows, int32_t token,
            int64_t started_ns, int64_t ended_ns);
  // `token`: index of the first of them in the answer.
  void Sampling(uint64_t call_id, size_t tokens, int32_t token, int64_t started_ns,
                int64_t ended_ns);
  // Names passes for their kernel spans. For the engine thread.
  engine::PassNumbers& pass_numbers() { return pass_numbers_; }
  void StepDone() { steps_.Add(); }
  // A draft model gave `tokens` tokens of a call's tree.
  void Drafted(uint64_t call_id, int32_t tokens, int64_t started_ns, int64_t ended_ns);
  // The same while the step of the call waited for weights.
  void DraftedInWindow(uint64_t call_id, int32_t tokens, int64_t started_ns, int64_t ended_ns);
  void DraftedInWindow(uint64_t tokens) { window_drafted_.Add(tokens); }  // by draft_worker
  void TokensVerified(policy::DraftSourceKind source, int32_t drafted, int32_t accepted) {
    Of(drafted_, source).Add(static_cast<uint64_t>(drafted));
    Of(accepted_, source).Add(static_cast<uint64_t>(accepted));
  }
  // The call waited, and its lease opened.
  void Started(uint64_t call_id, int64_t arrived_ns, int64_t started_ns);
  void LeaseOpened(uint64_t call_id, int64_t started_ns, int64_t opened_ns);
  void Loaded(uint64_t call_id, int64_t opened_ns, int64_t ready_ns, const CallUsage& usage);
  // A step of the call stood still until KV had been read.
  void KvAwaited(uint64_t call_id, int64_t since_ns, int64_t until_ns);
  void Committed(uint64_t call_id, int64_t started_ns, int64_t ended_ns);
  void Finished(uint64_t call_id, const CallOutcome& outcome);
  void Failed() { failed_.Add(); }
  void Faulted() { faults_.Add(); }
  void LevelDropped() { level_drops_.Add(); }
  void Upgraded() { upgrades_.Add(); }
  void Rested() { rests_.Add(); }
  void Load(size_t running, size_t queued);
  // A pass told how fast the board is.
  void Board(const policy::BoardSpeed& board);
  // RunResponse.board_slowdown; any thread.
  double board_slowdown() const { return static_cast<double>(board_slowdown_.value()) * 1e-6; }
  // A pass that began or went on at `started_ns` streamed weights. For the engine thread.
  void WeightsStreamed(const engine::WeightStreamStats& stats, int64_t started_ns);

 private:
  using BySource = std::array<telemetry::Counter*, policy::kDraftSourceKinds>;
  static telemetry::Counter& Of(const BySource& counters, policy::DraftSourceKind source) {
    return *counters[static_cast<size_t>(source)];
  }

  telemetry::Recorder& recorder_;
  telemetry::Counter& prefilled_;
  telemetry::Counter& generated_;
  telemetry::Counter& reused_;
  telemetry::Counter& compressed_;
  telemetry::Counter& steps_;
  telemetry::Counter& failed_;
  telemetry::Counter& faults_;
  telemetry::Counter& level_drops_;
  telemetry::Counter& rests_;
  telemetry::Counter& upgrades_;
  std::array<telemetry::Counter*, 6> finished_{};  // by FinishReason
  BySource drafted_{};
  BySource accepted_{};
  telemetry::Counter& window_drafted_;
  telemetry::Gauge& running_;
  telemetry::Gauge& queued_;
  telemetry::Counter& streamed_bytes_;
  telemetry::Counter& weight_waits_;
  telemetry::Counter& weight_wait_ns_;
  telemetry::Counter& weight_failures_;
  telemetry::Gauge& weight_memory_;
  telemetry::Counter& experts_chosen_;
  telemetry::Counter& experts_in_memory_;
  telemetry::Gauge& board_slowdown_;
  telemetry::Gauge& step_error_;
  telemetry::Counter& board_changes_;
  const telemetry::NameId weight_wait_span_;
  engine::WeightStreamStats streamed_;  // as counted so far
  engine::PassNumbers pass_numbers_;    // of the engine thread
};

}  // namespace withy::serving
