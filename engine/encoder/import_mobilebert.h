// Makes a TLM from a Hugging Face MobileBERT directory: config.json, vocab.txt, model.safetensors.
// A plain MobileBERT gets both towers from its upper layers, fresh heads and orthogonal SLO rows; a
// directory that holds a trained TLM's own tensors ("tlm." before the names of docs/formats-tlm.md)
// keeps them. Neighbours: safetensors.h, checkpoint.h. Source: ElastiLM 3.3.
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
  int32_t shared_layers = -1;  // of the source's; -1: half of them
  int32_t slo_steps = 10;
  std::vector<int32_t> prompt_levels = DefaultLevels();
  std::vector<int32_t> model_levels = DefaultLevels();
  uint64_t seed = 1;  // of what is made fresh
};

// Names in the file may begin with "mobilebert." (a model with pre-training heads) or not. Errors:
// NotFound (a file or tensor is missing), InvalidArgument (malformed JSON, vocabulary, a value or
// shape that does not fit), Unimplemented (an activation or casing that this encoder does not
// compute); each names the file, the key or tensor, and the remedy.
absl::StatusOr<TlmCheckpoint> ImportMobileBert(const std::string& directory,
                                               const MobileBertImport& options);

}  // namespace withy::engine
