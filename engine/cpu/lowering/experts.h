// The MLP of a mixture of experts: which experts each row chooses, their products, and their sum.
// A row's result is the same in any batch: each expert multiplies a row by itself, and a row adds
// its experts in the order of their weights. Neighbours: lower.h puts them into the steps of a
// pass; weights/experts/expert_stream.h has experts that do not all fit memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "engine/cpu/bound_weights.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/parallel.h"
#include "engine/cpu/workspace.h"
#include "engine/model/facts.h"
#include "engine/model/program.h"
#include "engine/weights/experts/expert_stream.h"

namespace withy::engine {

// An expert that a row has chosen, and what the row multiplies its output by.
struct ExpertChoice {
  int32_t expert = 0;
  float weight = 0.0f;
};

// Chooses by the router's logits [shape.experts]: the shape.experts_used largest, largest first; of
// equal ones that of the lower number. Always distinct experts, whatever the logits are. `out`:
// [experts_used]. `used`: scratch, any size.
void ChooseExperts(const float* logits, const ModelShape& shape, std::vector<bool>* used,
                   ExpertChoice* out);

// For one program at a time; everything passed in is borrowed. Steps refer to this object. What a
// layer's rows have chosen holds until the next layer's kRoute. Not thread-safe, but for what steps
// call.
class ExpertLowering {
 public:
  static constexpr int kMaxStepsPerOp = 3;

  // `stream`: null if all experts stay in memory.
  ExpertLowering(const ModelFacts& facts, const BoundWeights& weights, const Kernels& kernels,
                 Workspace& work, ExpertStream* stream);

  void Start(const RowPlan& plan);
  // A pass goes on, after other passes perhaps: what it has chosen must be in memory again.
  void Resume();

  // Each appends the steps of one kind of operation.
  void Route(const Op& op, StepList& steps);
  void GateUp(const Op& op, StepList& steps);
  void Down(const Op& op, StepList& steps);

  // Not OK once an expert of the program could not be read; what was computed since is void.
  absl::Status status() const;

 private:
  // Rows that have chosen the same expert: rows [first, first + rows) of the workspace's expert
  // buffers.
  struct Group {
    int32_t expert = 0;
    int32_t first = 0;
    int32_t rows = 0;
  };

  int32_t used() const { return facts_.shape.experts_used; }
  int32_t MostGroups(int32_t rows) const;
  ExpertChoice* ChoicesOf(int32_t row) { return &choices_[static_cast<size_t>(row * used())]; }

  // Called by steps.
  void ChooseRow(int32_t row);
  // Sorts the choices of the rows into groups by expert, and asks for the experts.
  void MakeGroups(const Op& op);
  void Gather(int32_t place);
  // Guesses what the next layer's rows will choose, so that it is read meanwhile.
  void GuessNext(const Op& op);
  // Calls fn(group, first tile, end) for the items [begin, end), `tiles` of each group.
  template <typename Fn>
  void ForGroups(int begin, int end, int tiles, Fn fn) const;
  // The matrix of one expert; its data is null if it cannot be read.
  PackedMatrix ExpertMatrix(const WeightName& name, int32_t expert);
  void GateUpOf(const Op& op, const Group& group, int begin, int end);
  void DownOf(const Op& op, const Group& group, int begin, int end);
  void AddUp(const Op& op, int32_t row);

  const ModelFacts& facts_;
  const BoundWeights& weights_;
  const Kernels& kernels_;
  Workspace& work_;
  ExpertStream* const stream_;

  // Of the layer whose kRoute ran last.
  int32_t layer_ = -1;
  std::vector<ExpertChoice> choices_;  // [row * used + rank]
  std::vector<int32_t> places_;        // [row * used + rank]: row of the expert buffers
  std::vector<int32_t> sources_;       // [row of the expert buffers]: row of `input`
  std::vector<Group> groups_;          // in the order of chosen_; keeps its capacity
  std::vector<int32_t> chosen_;        // experts; those in memory first, else ascending
  std::vector<int32_t> rows_of_;       // [expert]; scratch of MakeGroups

  // Of the guess.
  std::vector<bool> scratch_;
  std::vector<float> guess_norm_;
  std::vector<float> guess_logits_;
  std::vector<int32_t> guesses_;
  Activations guess_input_;

  std::atomic<bool> failed_{false};
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace withy::engine
