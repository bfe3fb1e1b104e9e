// Keeps the experts of mixtures that are used most in memory and reads the others when rows choose
// them. A pass says for each layer which experts its rows have chosen, and waits for one after the
// other while those before it are computed; it may guess what the next layer will choose.
// Neighbours: weight_plan.h says how many fit, cpu/lowering/experts.h chooses and computes,
// weight_stream.h owns it and has what every pass needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/weights/weight_loader.h"
#include "engine/weights/weight_plan.h"
#include "engine/weights/weight_stream_options.h"

namespace withy::engine {

// What has happened since the start.
struct ExpertStats {
  uint64_t chosen = 0;     // experts of layers that passes chose
  uint64_t in_memory = 0;  // of them: were there
  uint64_t arriving = 0;   // of them: were being read, because they had been guessed
  uint64_t guessed = 0;    // reads of guesses
  uint64_t read_bytes = 0;
  uint64_t waits = 0;  // times that a pass stood still
  int64_t wait_ns = 0;
  uint64_t failures = 0;   // experts that could not be read
  uint64_t bad_reads = 0;  // reads that did not give what the file held when it was opened
};

// Choose, Resume and Guess are for one thread at a time, and not while Await runs in others; the
// rest is thread-safe. What was chosen last stays in memory until the next Choose.
class ExpertStream {
 public:
  // `sums`: of each part of each expert, [(layer * experts + expert) * kExpertParts + part].
  // Errors: those of open(2) and mmap(2).
  static absl::StatusOr<std::unique_ptr<ExpertStream>> Start(StreamedExperts plan,
                                                             const WeightStreamOptions& options,
                                                             const std::string& path,
                                                             std::vector<ChunkSum> sums);
  // As ~WeightStream.
  ~ExpertStream();
  ExpertStream(const ExpertStream&) = delete;
  ExpertStream& operator=(const ExpertStream&) = delete;

  // The rows of a layer have chosen `experts`, which are distinct: reads those that are not in
  // memory, and puts those that are first. `pass`: who asks.
  void Choose(const void* pass, int32_t layer, std::span<int32_t> experts);
  // The pass goes on with what it has chosen; if another one has chosen since, it is read again.
  void Resume(const void* pass, int32_t layer, std::span<const int32_t> experts);
  // Whether there is room for guesses beside what a layer can choose.
  bool guesses() const;
  // Reads experts of a layer, which rows will probably choose, behind what has been chosen.
  void Guess(int32_t layer, std::span<const int32_t> experts);
  // The packed bytes of an expert that has been chosen; waits until they are there. Valid until the
  // next Choose. Errors: UNAVAILABLE (the disk fails, or nothing arrives for stall_ns), DATA_LOSS
  // (the file is shorter than it was or has changed); both name file, layer, expert and remedy.
  absl::StatusOr<const std::byte*> Await(int32_t layer, int32_t expert, ExpertPart part);

  ExpertStats stats() const;

 private:
  class Core;
  // Shared with the reading thread, which a hung disk may hold beyond the life of the stream.
  explicit ExpertStream(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  const std::shared_ptr<Core> core_;
};

}  // namespace withy::engine
