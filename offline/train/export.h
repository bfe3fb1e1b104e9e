// Writes a trained model as a GGUF file for any runtime of the "llama" architecture. Neighbours:
// engine/gguf writes the file, vocab/ its tokenizer.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "engine/gguf/types.h"
#include "offline/train/model.h"
#include "offline/vocab/bpe_trainer.h"

namespace withy::train {

// Matrices in `type` (F32 or Q8_0), norms in F32. `name` is general.name. Errors: InvalidArgument
// for another type or a weight that is not finite; of the file system, naming `path`.
absl::Status ExportGguf(const Model& model, const vocab::BpeVocabulary& vocabulary,
                        const std::string& name, engine::GgmlType type, const std::string& path);

}  // namespace withy::train
