// Describes a GGUF file and whether withy can serve it, with the workers' own checks
// (engine/model/bundle.h). Neighbour: models.cc prints it. Reads no tensor bytes, except those of a
// TLM, which it opens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/encoder/shape.h"
#include "engine/model/bundle.h"
#include "engine/weights/levels.h"
#include "engine/weights/shape.h"

namespace withy::cli {

struct TypeShare {
  std::string type;
  std::string packed_as;  // "q8, exactly"; empty if it cannot be packed
  uint64_t tensors = 0;
  uint64_t bytes = 0;
};

struct Inspection {
  std::string path;
  uint64_t parts = 1;       // files
  uint64_t file_bytes = 0;  // of all parts
  uint32_t gguf_version = 0;
  std::string architecture;
  std::string name;
  uint64_t parameters = 0;
  uint64_t packed_bytes = 0;            // 0 if it cannot be packed
  uint64_t least_budget_bytes = 0;      // of model.weight_budget_bytes; 0 if it cannot be packed
  uint64_t half_budget_read_bytes = 0;  // read for a pass at a budget of half of the weights
  engine::ModelShape shape;             // empty if it cannot be read
  engine::LevelTable levels;            // without the full model; empty for a plain model
  std::vector<uint64_t> level_bytes;  // [levels.levels] bytes read per token, as stored in the file
  std::vector<int64_t> anchors;       // layers by importance; empty if not in the file
  std::string tokenizer;              // "gpt2", "llama"
  int32_t vocabulary = 0;
  std::string chat_template;            // the format's name
  bool executes_template = false;       // the file's own template is executed
  engine::TextNotes text;               // what the file does not say of its text
  std::string sample_chat;              // a short chat, as the model would get it
  std::optional<engine::TlmShape> tlm;  // set: the file is a TLM, for orchestrator.tlm_path
  // Set: the file is a draft head, for model.head_path; a string of what it fits.
  std::optional<std::string> head;
  std::vector<TypeShare> types;       // most bytes first
  std::vector<std::string> problems;  // reasons why it cannot be served; empty: it can
};

// Errors: of opening the file. Problems inside a readable file are listed in `problems`.
absl::StatusOr<Inspection> Inspect(const std::string& path, const engine::TextOptions& text);

std::string InspectionText(const Inspection& inspection);
std::string InspectionJson(const Inspection& inspection);

// "1.1 B", "9.8 M"
std::string Count(uint64_t count);

}  // namespace withy::cli
