// Where an elasticizing run gets its text: what the model writes itself, the project's corpus, or a
// file; with the whole model's probabilities if levels learn from them. Neighbours: job.cc uses it,
// teacher.h, batches.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "offline/elastic/text/batches.h"
#include "offline/elastic/text/teacher.h"
#include "offline/elastic/work.h"

namespace withy::elastic {

// Names of JobOptions::text beside a file's path.
inline constexpr char kOwnText[] = "own";
inline constexpr char kCorpusText[] = "corpus";

struct TextSourceOptions {
  std::string model;
  std::string text = kOwnText;
  bool taught = true;     // with the teacher's probabilities
  std::string cache_dir;  // for the teacher's packed model; empty: the user's cache
  int threads = 1;
};

// Not thread-safe.
class TextSource {
 public:
  // Errors: as Teacher::Open.
  static absl::StatusOr<std::unique_ptr<TextSource>> Open(TextSourceOptions options);

  // Whether reading takes so long that it is planned as a stage of the run.
  bool slow() const { return teacher_ != nullptr; }
  // Batches that are made at once.
  int64_t AtOnce(const BatchOptions& batches) const;

  // options.count batches, or as many full ones as a text file has. `cost_s`: cost of one batch,
  // for the checkpointer, whose state holds the batches made so far. `flag`: what set the count,
  // for messages. Errors: as ReadBatches and Teacher, and from saving.
  absl::StatusOr<std::vector<Batch>> Read(const engine::GgufFile& file, const std::string& flag,
                                          const BatchOptions& options, double cost_s,
                                          Checkpointer checkpointer);

 private:
  explicit TextSource(TextSourceOptions options) : options_(std::move(options)) {}

  TextSourceOptions options_;
  std::unique_ptr<Teacher> teacher_;  // null: neither writes nor labels
};

}  // namespace withy::elastic
