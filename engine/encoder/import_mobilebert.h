// Makes a TLM from a Hugging Face MobileBERT directory: config.json, vocab.txt, model.safetensors.
// A plain MobileBERT gets both towers from its upper layers, new heads and orthogonal SLO rows. If
// the directory holds a trained TLM's own tensors ("tlm." before the names of docs/formats-tlm.md),
// they are kept. Neighbours: safetensors.h, checkpoint.h; training begins with it
// (offline/tlm/). Source: ElastiLM 3.3.
//
//   WITHY_ASSIGN_OR_RETURN(TlmCheckpoint tlm, ImportMobileBert("mobilebert-uncased", {}));
//   WITHY_RETURN_IF_ERROR(WriteTlm(tlm, GgmlType::kQ8_0, "tlm.gguf"));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/encoder/checkpoint.h"

namespace withy::engine {

struct MobileBertImport {
  int32_t shared_layers = -1;  // number of shared layers; -1: half of them
  int32_t slo_steps = 10;
  std::vector<int32_t> prompt_levels = DefaultLevels();
  std::vector<int32_t> model_levels = DefaultLevels();
  uint64_t seed = 1;  // seed of newly initialised tensors
};

// Names in the file may have the prefix "mobilebert." (models with pre-training heads). Errors:
// NotFound (a file or tensor is missing), InvalidArgument (malformed JSON or vocabulary, a value or
// shape that does not fit), Unimplemented (an unsupported activation or casing); each names the
// file, the key or tensor, and the remedy.
absl::StatusOr<TlmCheckpoint> ImportMobileBert(const std::string& directory,
                                               const MobileBertImport& options);

}  // namespace withy::engine
