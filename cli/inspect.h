// What a GGUF file holds and whether withy can serve it, by asking what the workers ask
// (engine/model/bundle.h).
// Neighbour: models.cc prints it. Reads no tensor bytes, but those of a TLM, which is opened.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/encoder/shape.h"
#include "engine/weights/levels.h"
#include "engine/weights/shape.h"

namespace withy::cli {

struct TypeShare {
  std::string type;
  uint64_t tensors = 0;
  uint64_t bytes = 0;
};

struct Inspection {
  std::string path;
  uint64_t file_bytes = 0;
  uint32_t gguf_version = 0;
  std::string architecture;
  std::string name;
  uint64_t parameters = 0;
  uint64_t packed_bytes = 0;          // 0 when it cannot be packed
  engine::ModelShape shape;           // empty when it cannot be read
  engine::LevelTable levels;          // the full model left out; empty for a plain model
  std::vector<uint64_t> level_bytes;  // [levels.levels] read for one token, as the file stores them
  std::vector<int64_t> anchors;       // layers by importance; empty where the file does not say
  std::string tokenizer;              // "gpt2", "llama"
  int32_t vocabulary = 0;
  std::string chat_template;
  std::optional<engine::TlmShape> tlm;  // set: a TLM, for orchestrator.tlm_path
  std::vector<TypeShare> types;         // most bytes first
  std::vector<std::string> problems;    // why it cannot be served; empty: it can
};

// Errors: of opening the file; what is wrong inside a readable file is in `problems`.
absl::StatusOr<Inspection> Inspect(const std::string& path, std::string_view chat_template);

std::string InspectionText(const Inspection& inspection);
std::string InspectionJson(const Inspection& inspection);

// "1.1 B", "9.8 M"
std::string Count(uint64_t count);

}  // namespace withy::cli
