// Measures the engine by itself: prefill and decode against the machine's ceilings, batches, depth,
// a busy neighbour. Neighbours: engine_main.cc prints, peer_bench.h measures other runtimes. Needs
// no service.
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

// Median of samples with their smallest and largest.
struct Spread {
  double median = 0;
  double low = 0;
  double high = 0;
};
Spread Summarize(std::vector<double> samples);

inline constexpr int32_t kPrefillTokens = 512;
inline constexpr int32_t kDecodeTokens = 64;
inline constexpr int32_t kDepthTokens = 2048;
inline constexpr int32_t kBatchRows = 4;

class EngineBench {
 public:
  explicit EngineBench(engine::Model& model);

  // Tokens a second of a prompt, logits of the last. At most kDepthTokens tokens.
  absl::StatusOr<double> Prefill(int32_t prompt_tokens = kPrefillTokens);
  // Tokens a second of `steps` steps of `rows` contexts each, which start with `depth` tokens of
  // context (see Fill).
  absl::StatusOr<double> Decode(int32_t rows, int32_t depth, int32_t steps = kDecodeTokens);
  // Prefills context 0 with kDepthTokens tokens, for Decode at that depth.
  absl::Status Fill();

  // Operations a second of 8-bit dot products that the cores can do, and bytes a second that they
  // can read.
  double Peak();
  double Bandwidth();

  // Multiply-adds of the matrices times two: 512 tokens through the layers, one through the output
  // head.
  double PrefillOperations() const;
  double DecodeBytes() const;

 private:
  engine::Model& model_;
  engine::ThreadPool pool_;  // for the ceilings; parked while the model computes
  std::vector<std::unique_ptr<engine::ScratchKv>> kv_;  // one a context of a batch
  std::vector<float> logits_;
};

// A child process that keeps one core busy, on the same cores and with the same priority, while the
// object lives.
class BusyNeighbour {
 public:
  static absl::StatusOr<std::unique_ptr<BusyNeighbour>> Start();
  ~BusyNeighbour();

 private:
  explicit BusyNeighbour(int pid) : pid_(pid) {}
  int pid_;
};

// Keeps this process and its children on `count` of the cores it may use, so that neighbours share
// them.
absl::Status PinToCores(int32_t count);

}  // namespace withy::bench
