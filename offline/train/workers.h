// Runs independent pieces of work on a few threads, each piece on one: no barrier inside a piece,
// so that a busy neighbour on one core does not stop the other. Neighbours: trainer.cc (batches),
// optimizer.cc (matrices), evaluate.cc.
#pragma once

#include <cstdint>
#include <functional>

namespace withy::train {

// Stateless but for the count; safe to share.
class Workers {
 public:
  explicit Workers(int threads) : threads_(threads) {}
  int threads() const { return threads_; }

  // Calls piece(i) for every i in [0, count), each once, in any order, and returns when all are
  // done. LibTorch inside a piece uses one thread. An exception from a piece is thrown again here,
  // after the others have ended.
  void Run(int64_t count, const std::function<void(int64_t)>& piece) const;

 private:
  int threads_;
};

}  // namespace withy::train
