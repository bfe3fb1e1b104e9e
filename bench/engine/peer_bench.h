// Runs a llama-bench program (llama.cpp or ik_llama.cpp), which the user names, on the same GGUF
// and reads its figures. Neighbours: engine_bench.h measures our engine.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace withy::bench {

struct PeerSpeed {
  double prefill_tok_s = 0;
  double decode_tok_s = 0;
};

class PeerBench {
 public:
  // Checks that the program runs and whether it offers run-time repacking. Errors: NOT_FOUND or
  // others if it cannot be run.
  static absl::StatusOr<PeerBench> Open(const std::string& program);

  // Run-time repacking: where the program offers it. It copies weights into memory.
  enum class Repack { kIfOffered, kNever };

  // Measures once: a prompt of `prompt` tokens, then `generate` tokens from an empty context.
  // Errors: INTERNAL naming the program if it fails or does not print llama-bench's JSON.
  absl::StatusOr<PeerSpeed> Run(const std::string& gguf, int32_t threads, int32_t prompt,
                                int32_t generate, Repack repack = Repack::kIfOffered) const;

  const std::string& program() const { return program_; }

 private:
  PeerBench(std::string program, bool repacks) : program_(std::move(program)), repacks_(repacks) {}

  std::string program_;
  bool repacks_;
};

}  // namespace withy::bench
