// Measures the engine alone, without a service: prefill and decode against the machine's ceilings,
// batches, depth, a busy neighbour. Neighbours: engine_main.cc prints, peer_bench.h measures other
// runtimes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cpu/thread_pool.h"
#include "engine/model/model.h"
#include "engine/model/scratch_kv.h"

namespace withy::bench {

inline constexpr int32_t kPrefillTokens = 512;
inline constexpr int32_t kDecodeTokens = 64;
inline constexpr int32_t kDepthTokens = 2048;
inline constexpr int32_t kBatchRows = 4;
inline constexpr int32_t kMostRows = 8;  // of a batch

class EngineBench {
 public:
  explicit EngineBench(engine::Model& model);

  // Tokens per second of a prompt of at most kDepthTokens tokens, with logits of the last token.
  absl::StatusOr<double> Prefill(int32_t prompt_tokens = kPrefillTokens);
  // Tokens per second of `steps` decode steps over `rows` contexts, which start with `depth` tokens
  // of context (see Fill).
  absl::StatusOr<double> Decode(int32_t rows, int32_t depth, int32_t steps = kDecodeTokens);
  // Prefills context 0 with kDepthTokens tokens, for Decode at that depth.
  absl::Status Fill();

  // The machine's ceilings (engine/cpu/ceilings.h): operations per second of 8-bit dot products,
  // and bytes per second read from memory.
  double Peak();
  double Bandwidth();

  // Operations (two per multiply-add) of the matrices in a prefill: kPrefillTokens tokens through
  // the layers, one through the output head.
  double PrefillOperations() const;
  // Weight bytes read per decoded token.
  double DecodeBytes() const;

 private:
  engine::Model& model_;
  engine::ThreadPool pool_;  // for the ceilings; parked while the model computes
  std::vector<std::unique_ptr<engine::ScratchKv>> kv_;  // one per context of a batch
  std::vector<float> logits_;
};

// A child process that computes all the time while the object lives. It keeps one core busy, and
// may use the same cores with the same priority as this process.
class BusyNeighbour {
 public:
  static absl::StatusOr<std::unique_ptr<BusyNeighbour>> Start();
  ~BusyNeighbour();

 private:
  explicit BusyNeighbour(int pid) : pid_(pid) {}
  int pid_;
};

// Binds this process and its children to `count` of the cores that it may use, so that a busy
// neighbour shares them.
absl::Status PinToCores(int32_t count);

}  // namespace withy::bench
