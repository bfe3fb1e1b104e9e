// Runs a llama-bench (llama.cpp or ik_llama.cpp) on the same GGUF and reads its figures.
// Neighbours: engine_bench.h measures ours. The peer is somebody else's program, named by the user.
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
  // Errors: NOT_FOUND or others when the program cannot be run.
  static absl::StatusOr<PeerBench> Open(const std::string& program);

  // One pass: a prompt of `prompt` tokens, then `generate` tokens from an empty context, each once.
  // Run-time repacking is on where the program offers it. Errors: INTERNAL naming the program when
  // it fails or prints something else than llama-bench's JSON.
  absl::StatusOr<PeerSpeed> Run(const std::string& gguf, int32_t threads, int32_t prompt,
                                int32_t generate) const;

  const std::string& program() const { return program_; }

 private:
  PeerBench(std::string program, bool repacks) : program_(std::move(program)), repacks_(repacks) {}

  std::string program_;
  bool repacks_;
};

}  // namespace withy::bench
