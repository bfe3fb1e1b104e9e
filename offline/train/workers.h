// Runs independent pieces of work on a few threads, each piece on one thread without barriers, so
// that a busy neighbour on one core does not stall the others. Neighbours: trainer.cc (batches),
// optimizer.cc (matrices), evaluate.cc.
#pragma once

#include <cstdint>
#include <functional>

namespace withy::train {

// Stores only the thread count; may be shared.
class Workers {
 public:
  explicit Workers(int threads) : threads_(threads) {}
  int threads() const { return threads_; }

  // Calls piece(i) once for every i in [0, count), in any order, and returns when all are done.
  // LibTorch uses one thread inside a piece. Rethrows an exception of a piece after the others have
  // ended.
  void Run(int64_t count, const std::function<void(int64_t)>& piece) const;

 private:
  int threads_;
};

}  // namespace withy::train
