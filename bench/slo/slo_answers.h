// Which prompts each contestant answers right: asked once, kept in files, looked up by every trace.
// Greedy answers are the same whenever they are given (ARCHITECTURE.md), so a table serves all.
// Neighbours: offline/tlm judges answers and shortens prompts, as the service does;
// slo_policy.h has the tables' form.
//
// Files grow line by line and survive a kill; each is named after what it was made of, so that
// another model or TLM begins another file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/slo/slo_policy.h"
#include "engine/encoder/tlm.h"
#include "engine/model/model.h"
#include "offline/corpus/prompt.h"

namespace withy::bench {

// An SLO as the TLM reads it. Index 0 of a list of them stands for each app's own.
struct SloRatio {
  double ttft = 1;
  double tpot = 1;
};

struct AnswerOptions {
  std::string dir;  // of the files and of packed models
  int threads = 2;  // each judges with a model of its own
  std::function<void(const std::string& what, size_t done, size_t all)> progress;
};

// The prompts of the benchmark: `per_app` of each app, app after app.
struct PromptSet {
  std::string name;  // tells sets apart in file names
  size_t per_app = 0;
  bool own_answers = false;  // what is right is what the full model answers (tlm/target.h)
  uint32_t max_tokens = policy::kUsualAnswerTokens;  // of an answer
  std::vector<corpus::Prompt> prompts;
  std::vector<PromptFacts> facts;  // as the pocket model's tokenizer counts

  size_t Index(size_t app, size_t prompt) const { return app * per_app + prompt; }
};

// The corpus's held-out prompts, so many per cent of them with five worked examples (ElastiLM
// section 5.1: all). Errors: as engine::OpenBundle.
absl::StatusOr<PromptSet> HeldOutPrompts(const std::string& model, size_t per_app,
                                         int five_shot_percent);

// A user's prompts (tlm/prompt_file.h), line after line to the next app, with what the full level
// of the model at `model` answers to them; prompts without an answer are left out. Errors:
// INVALID_ARGUMENT if an app gets fewer than `per_app`; as tlm::ReadOwnPrompts and Target::Answer;
// from the disk.
absl::StatusOr<PromptSet> OwnPrompts(const std::string& model, const std::string& file,
                                     size_t per_app, const AnswerOptions& options);

// What a TLM says of every prompt.
struct TlmTable {
  std::string id;  // changes with the TLM's file
  std::vector<uint32_t> prompt_levels;
  std::vector<uint32_t> model_levels;
  PairAccuracy pair_accuracy;
  std::vector<std::vector<float>> keep;          // [prompt][word], read under the app's own SLO
  std::vector<std::vector<LevelLogits>> logits;  // [slo][prompt]; empty: not read
};

// Prompts of an app, from the first, that are read under every SLO; the others under the app's own
// only, for reading takes its time.
inline constexpr size_t kReadPerApp = 50;

// Errors: as engine::Tlm::Open and Read; from the disk.
absl::StatusOr<TlmTable> ReadAll(const std::string& tlm_path, const PromptSet& prompts,
                                 std::span<const SloRatio> slos, const AnswerOptions& options);

// Words in random order, for what the score head is worth: [prompt][word].
std::vector<std::vector<float>> RandomKeep(const PromptSet& prompts, uint64_t seed);

// The same prompts with `percent` of their words left, by `keep`: as a caller would write who has
// already said it briefly (ElastiLM section 5.5, concise prompts).
PromptSet Concise(const PromptSet& prompts, const std::vector<std::vector<float>>& keep,
                  int32_t percent, const std::string& model, absl::Status* status);

// What answers.
struct AnswerModel {
  std::string path;
  bool levels = true;                      // all levels of the file; false: the full one only
  std::vector<engine::LevelSpec> instead;  // of the file's own levels, without LoRA
};

// Every prompt at every pair of levels. `prompt_levels`: ascending, the last 100. `keep_id` names
// `keep` in the file. `keep` may be empty where prompts stay whole. Errors: as tlm::Target::Open
// and Judge; from the disk.
absl::StatusOr<Answers> JudgeAll(const AnswerModel& model, const PromptSet& prompts,
                                 const std::vector<uint32_t>& prompt_levels,
                                 const std::vector<std::vector<float>>& keep,
                                 const std::string& keep_id, const AnswerOptions& options);

// Whether the answer at each of these model levels, to the prompt at this level, is right by the
// table. A prompt level that the table lacks is judged as the next lower one that it has; a model
// level that it lacks is wrong.
bool RightAt(const Answers& answers, const Family& family, size_t prompt, uint32_t prompt_percent,
             std::span<const uint32_t> model_percents);

// Several tables over whole prompts side by side, in the order of a family's variants.
Answers Beside(const std::vector<Answers>& tables);

// Fills a file of lines named after `made_of` and gives the lines: line i is make(i, thread).
absl::StatusOr<std::vector<std::string>> KeptLines(
    const std::string& name, const std::string& made_of, size_t count,
    const std::function<absl::StatusOr<std::string>(size_t index, int thread)>& make,
    const AnswerOptions& options);

}  // namespace withy::bench
