// Models that run passes one after the other, and what the spans say of them: those that a worker
// records, without a service. Neighbours: telemetry/ records and reads spans,
// engine/session/kernel_spans.h names kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/study/study.h"
#include "engine/model/model.h"
#include "engine/model/program.h"
#include "engine/model/scratch_kv.h"
#include "engine/sampling/sampler.h"
#include "engine/session/kernel_spans.h"
#include "engine/tokenizer/tokenizer.h"
#include "telemetry/reader.h"
#include "telemetry/recorder.h"

namespace withy::cli {

// Rows of a pass at most, so that it is computed in one piece and an operation occurs once in it
// for each time that it stands in the program.
inline constexpr int32_t kMostPassRows = 128;

// One operation of a pass.
struct OpTime {
  engine::OpKind op = engine::OpKind::kEmbed;
  int32_t layer = 0;   // the number of layers: outside them
  double wall_us = 0;  // from the first thread's begin to the last one's end
  double busy_us = 0;  // sum over threads
};

struct PassTimes {
  double wall_us = 0;
  double embedding_us = 0;  // part of wall_us
  double busy_us = 0;       // sum over threads and operations
  std::vector<OpTime> ops;  // in the order in which they were computed
  double WallOf(engine::OpKind op) const;
};

// What picking a token took; its parts are not in `rest_us`.
struct PickParts {
  double softmax_us = 0;
  double copy_us = 0;
  double rest_us = 0;
  double Whole() const { return softmax_us + copy_us + rest_us; }
};

// Passes and picks since the last Collect, in order.
struct RunTimes {
  std::vector<PassTimes> passes;
  std::vector<PickParts> picks;
};

// Rings of this process in a directory of their own, which is removed at the end. Not thread-safe.
class SpanLog {
 public:
  struct Seen {
    std::string name;
    telemetry::Span span;  // times of steady_clock
  };
  // Errors: as Recorder::Open and Reader::Open.
  static absl::StatusOr<std::unique_ptr<SpanLog>> Open(const std::string& directory);
  ~SpanLog();
  SpanLog(const SpanLog&) = delete;
  SpanLog& operator=(const SpanLog&) = delete;

  telemetry::Recorder& recorder() { return *recorder_; }
  // Number of the next pass or pick, unique in the log. Empties the rings now and then.
  uint32_t NextNumber();
  // The spans since the last call; waits for those of threads that are still about to record their
  // last one. Errors: DATA_LOSS (spans were dropped, or the processor's counter jumped: what was
  // measured is not whole).
  absl::StatusOr<std::vector<Seen>> Take();

 private:
  explicit SpanLog(std::string directory) : directory_(std::move(directory)) {}
  void Drain();

  const std::string directory_;
  std::unique_ptr<telemetry::Recorder> recorder_;
  std::unique_ptr<telemetry::Reader> reader_;
  uint32_t numbers_ = 0;
  std::vector<Seen> seen_;
  absl::Status problem_;
  uint64_t dropped_ = 0;
};

// A model at all its levels, with a context in ordinary memory. Not thread-safe.
class ProfiledModel {
 public:
  // `log` must outlive it. A file in the options' scratch_dir is packed there. Errors: as
  // engine::Model::Open and engine::MakeTokenizer.
  static absl::StatusOr<std::unique_ptr<ProfiledModel>> Open(const std::string& path,
                                                             const StudyOptions& options,
                                                             SpanLog& log);

  // Room for a context of `tokens` tokens. Errors: INVALID_ARGUMENT naming the model's window.
  absl::Status Reserve(int32_t tokens);
  // Computes tokens at positions first, first + 1, ... in passes of at most kMostPassRows rows.
  // `level`: index into info().levels, -1 for the full one. The last row's logits are logits().
  absl::Status Run(std::span<const int32_t> tokens, int32_t first, int32_t level,
                   telemetry::Phase phase);
  // Picks the token at `position` from logits(), as a worker does.
  absl::StatusOr<int32_t> Pick(engine::Sampler& sampler, int32_t position,
                               std::span<const int32_t> history);
  // What the passes and picks since the last call took. Errors: as SpanLog::Take.
  absl::StatusOr<RunTimes> Collect();

  // Whether passes that begin from now on record their kernels and embeddings; they do at first.
  // Off for passes that are not made by Run, whose spans nobody collects.
  void WatchKernels(bool on) { kernels_->Watch(on); }

  std::span<float> logits() { return logits_; }
  const engine::ModelInfo& info() const { return model_->info(); }
  engine::Model& model() { return *model_; }
  const engine::Tokenizer& tokenizer() const { return *tokenizer_; }
  const std::string& path() const { return path_; }
  // The file's name for the model, or the file's stem where several of a study have the same.
  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }

  // `count` tokens of `text`, repeated as often as needed.
  std::vector<int32_t> Tokens(std::string_view text, int32_t count) const;

 private:
  explicit ProfiledModel(SpanLog& log) : log_(log) {}

  SpanLog& log_;
  std::string path_;
  std::string name_;
  const std::atomic<bool>* stop_ = nullptr;
  std::unique_ptr<engine::KernelSpans> kernels_;
  std::unique_ptr<engine::Model> model_;
  std::unique_ptr<engine::Tokenizer> tokenizer_;
  std::unique_ptr<engine::ScratchKv> kv_;
  int32_t reserved_ = 0;
  std::vector<float> logits_;
  std::vector<uint32_t> passes_, picks_;  // numbers since the last Collect
};

// A model at one of its levels: what the studies compare.
struct Subject {
  ProfiledModel* model = nullptr;
  int32_t level = -1;
  std::string name;       // "smollm2-135m, level 60 %"
  double parameters = 0;  // multiplied for each token, without the embedding
  std::string quantisation;
};

// All models of the options, and their levels if those are wanted.
struct Subjects {
  std::unique_ptr<SpanLog> log;
  std::vector<std::unique_ptr<ProfiledModel>> models;
  std::vector<Subject> all;
};
absl::StatusOr<Subjects> OpenSubjects(const StudyOptions& options);

// CANCELLED once the options' `stop` is true.
absl::Status CheckStop(const StudyOptions& options);
// Tells the options' progress, if anybody listens.
void Tell(const StudyOptions& options, double done, std::string_view what);

// The text that passes compute: the options', or the project's own.
std::string_view StudyText(const StudyOptions& options);

}  // namespace withy::cli
