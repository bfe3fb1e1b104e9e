// Chooses the passes whose kernels are recorded, so that recording them takes a small share of the
// time of passes: every pass where passes are long, one of several where they are short. Pure.
// Neighbour: kernel_spans.h asks it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace withy::engine {

// Passes are kept apart by their number of rows (in powers of two): prompts do not make decode
// steps look long. Those of a kind are taken in blocks; in each block one pass, at random, is
// recorded, and stands for all of the block. So a total of recorded times, each taken as often as
// its pass stands for others, is an unbiased estimate, whatever the block's length is made of.
// Not thread-safe.
class PassSampler {
 public:
  static constexpr uint32_t kMostPasses = 256;  // a block has at most so many

  // `ticks_of_op`: what recording one operation takes; not negative. `share` of the time of passes
  // that recording may take: 0: no pass is recorded; 1 or more: every pass is.
  explicit PassSampler(double ticks_of_op = 0, double share = 1)
      : ticks_of_op_(ticks_of_op), share_(share) {}
  void set_share(double share) { share_ = share; }

  // A pass begins. Returns the number of passes that it stands for, itself included; 0: it is not
  // recorded.
  uint16_t Next(int32_t rows);
  // A pass that was recorded took `ticks` of computing; of these, a device took `stamping` for its
  // times.
  void Took(int32_t rows, size_t ops, int64_t ticks, int64_t stamping = 0);

 private:
  struct Kind {
    double recording = 1;  // ticks that recording its newest passes took,
    double computing = 0;  // and that they took; 0: none yet
    uint32_t block = 0;    // passes in the block, of which
    uint32_t left = 0;     // have not begun yet;
    uint32_t chosen = 0;   // recorded is the one with so many left behind it
  };
  static constexpr size_t kKinds = 24;
  Kind& KindOf(int32_t rows);
  uint32_t BlockOf(const Kind& kind) const;
  uint32_t Random(uint32_t below);

  const double ticks_of_op_;
  double share_;
  uint64_t random_ = 0x9e3779b97f4a7c15u;
  std::array<Kind, kKinds> kinds_ = {};
};

}  // namespace withy::engine
