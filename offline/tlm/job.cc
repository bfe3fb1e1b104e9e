#include "offline/tlm/job.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/status.h"
#include "engine/encoder/import_mobilebert.h"
#include "engine/encoder/prune.h"
#include "engine/encoder/tlm.h"
#include "engine/gguf/reader.h"
#include "offline/corpus/generator.h"
#include "offline/corpus/prompt.h"
#include "offline/tlm/line_file.h"
#include "offline/tlm/prompt_file.h"
#include "offline/tlm/score_labels.h"
#include "offline/tlm/stages.h"
#include "offline/tlm/target.h"
#include "offline/tlm/wordpiece_learner.h"

namespace withy::tlm {
namespace {

constexpr int32_t kSloSteps = 10;
constexpr float kFreshGain = 2.5f;      // MakeTlmCheckpoint's deviation suits wider models
constexpr size_t kMaxTextBytes = 2560;  // longer prompts are rare in the model's training

// Records like the model's training data with another seed; half of them have five worked examples,
// as ElastiLM's prompts do.
corpus::Spec PromptSpec(uint64_t seed) {
  corpus::Spec spec = corpus::TrainSpec();
  spec.seed += 7000 + seed;
  spec.five_shot_percent = 50;
  spec.few_shot_percent = 20;
  return spec;
}

// Digest of an optional file, or of a directory's weights; empty without one.
absl::StatusOr<std::string> DigestIfGiven(const std::string& path) {
  if (path.empty()) return std::string();
  return FileDigest(std::filesystem::is_directory(path) ? path + "/model.safetensors" : path);
}

std::string AnswerLine(const std::string& answer) {
  return nlohmann::json({{"answer", answer}})
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<std::string> ParseAnswerLine(const std::string& line, const std::string& where) {
  const nlohmann::json parsed = nlohmann::json::parse(line, nullptr, false);
  if (parsed.is_object() && parsed.contains("answer") && parsed["answer"].is_string()) {
    return parsed["answer"].get<std::string>();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": is no answer; remove the file, and it will be rebuilt"));
}

class Job {
 public:
  explicit Job(const JobOptions& options)
      : options_(options), generator_(PromptSpec(options.seed)) {}

  absl::Status Run() {
    WITHY_ASSIGN_OR_RETURN(labels_digest_, DigestIfGiven(options_.labels));
    WITHY_ASSIGN_OR_RETURN(from_digest_, DigestIfGiven(options_.from));
    if (!options_.prompts.empty()) WITHY_RETURN_IF_ERROR(ReadPrompts());
    UseThreads(options_.threads);
    WITHY_RETURN_IF_ERROR(OpenTargets());
    std::error_code error;
    std::filesystem::create_directories(options_.run, error);
    if (error) {
      return absl::PermissionDeniedError(absl::StrCat(options_.run, ": ", error.message()));
    }
    WITHY_RETURN_IF_ERROR(Begin());
    if (!options_.prompts.empty()) WITHY_RETURN_IF_ERROR(AnswerPrompts());
    if (options_.score) WITHY_RETURN_IF_ERROR(ScoreStage());
    if (!std::filesystem::exists(Path("score.gguf"))) {
      return absl::NotFoundError(
          absl::StrCat(Path("score.gguf"),
                       ": the score head is trained first; run --stage=score or --stage=all"));
    }
    if (options_.decision) WITHY_RETURN_IF_ERROR(DecisionStage());
    const std::string last = options_.decision ? "decision.gguf" : "score.gguf";
    WITHY_ASSIGN_OR_RETURN(const engine::TlmCheckpoint tlm, engine::ReadTlm(Path(last)));
    WITHY_RETURN_IF_ERROR(engine::WriteTlm(tlm, options_.type, options_.out));
    Say(absl::StrCat(options_.out, ": written",
                     options_.decision ? "" : "; its decision head is not trained yet"));
    return absl::OkStatus();
  }

 private:
  std::string Path(const std::string& name) const { return options_.run + "/" + name; }
  void Say(const std::string& line) const {
    if (options_.say) options_.say(line);
  }
  void Show(const std::string& what, int64_t done, int64_t all) const {
    if (options_.progress) options_.progress(what, done, all);
  }

  // One model per thread: there are many small records.
  absl::Status OpenTargets() {
    for (int i = 0; i < options_.threads; ++i) {
      engine::ModelOptions model_options = options_.model_options;
      model_options.threads = 1;
      WITHY_ASSIGN_OR_RETURN(targets_.emplace_back(),
                             options_.prompts.empty()
                                 ? Target::Open(options_.model, model_options)
                                 : Target::OpenForOwnAnswers(options_.model, model_options));
    }
    space_ = MakeSpace(targets_[0]->info(), engine::DefaultLevels());
    if (space_.model_levels.size() == 1) {
      Say(absl::StrCat(options_.model, " has no levels: prompts are all there is to decide on"));
    }
    return absl::OkStatus();
  }

  // Creates start.gguf, the TLM before training.
  absl::Status Begin() {
    const std::string made_of =
        absl::StrCat("start: levels ", absl::StrJoin(space_.model_levels, ","), " seed ",
                     options_.seed, " from ", from_digest_, " width ", options_.size.width,
                     " shared ", options_.size.shared_layers, of_prompts_);
    WITHY_RETURN_IF_ERROR(LineFile::Open(Path("start.made-of"), made_of).status());
    if (std::filesystem::exists(Path("start.gguf"))) return absl::OkStatus();
    WITHY_ASSIGN_OR_RETURN(
        const engine::TlmCheckpoint tlm,
        options_.from.empty() ? Fresh() : OpenTlmToStartFrom(options_.from, space_, options_.seed));
    int64_t parameters = 0;
    for (const engine::TlmTensor& tensor : tlm.tensors) parameters += tensor.spec.elements();
    Say(absl::StrCat("TLM: ", parameters, " parameters, vocabulary of ", tlm.vocab.size()));
    return engine::WriteTlm(tlm, engine::GgmlType::kF32, Path("start.gguf"));
  }

  absl::StatusOr<engine::TlmCheckpoint> Fresh() const {
    WITHY_ASSIGN_OR_RETURN(
        const engine::WordPieceVocab vocab,
        options_.prompts.empty()
            ? LearnPocketVocab(options_.run, options_.vocab_records, kSloSteps)
            : LearnVocabOf(std::span(own_).first(TrainedOn(own_.size())), options_.run, kSloSteps));
    WITHY_ASSIGN_OR_RETURN(
        engine::TlmCheckpoint tlm,
        engine::MakeTlmCheckpoint(PocketTlmShape(vocab.size(), space_.model_levels, options_.size),
                                  vocab, options_.seed));
    for (engine::TlmTensor& tensor : tlm.tensors) {
      const engine::TensorRole role = tensor.spec.role;
      if (role == engine::TensorRole::kBias || role == engine::TensorRole::kScale) continue;
      for (float& value : tensor.values) value *= kFreshGain;
    }
    return tlm;
  }

  absl::StatusOr<std::unique_ptr<engine::Tokenizer>> TlmTokenizer() const {
    WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(Path("start.gguf")));
    return engine::MakeTokenizer(file);
  }

  absl::Status ReadPrompts() {
    WITHY_ASSIGN_OR_RETURN(const std::string digest, FileDigest(options_.prompts));
    of_prompts_ = absl::StrCat(" prompts ", digest, " ", options_.records);
    WITHY_ASSIGN_OR_RETURN(OwnPrompts prompts, ReadOwnPrompts(options_.prompts, options_.records));
    own_ = std::move(prompts.records);
    if (prompts.too_long > 0) {
      Say(absl::StrCat(options_.prompts, ": ", prompts.too_long, " prompts of more than ",
                       kMaxOwnPromptBytes, " bytes are left out"));
    }
    return absl::OkStatus();
  }

  // What the full model answers to each prompt: what all pairs of levels are held against. Prompts
  // to which it has nothing to say, or that its window has no room for, are left out.
  absl::Status AnswerPrompts() {
    WITHY_ASSIGN_OR_RETURN(LineFile file,
                           LineFile::Open(Path("answers.jsonl"),
                                          absl::StrCat("answers: model ", targets_[0]->info().id,
                                                       " tokens ", kOwnAnswerTokens, of_prompts_)));
    WITHY_RETURN_IF_ERROR(FillLines(
        own_.size(), options_.threads,
        [&](size_t index, int thread) -> absl::StatusOr<std::string> {
          const auto answer = targets_[static_cast<size_t>(thread)]->Answer(own_[index]);
          if (absl::IsOutOfRange(answer.status())) return AnswerLine("");
          if (!answer.ok()) return Annotate(answer.status(), PromptName(index));
          return AnswerLine(*answer);
        },
        [&](size_t done, size_t all) {
          Show("the model's own answers", static_cast<int64_t>(done), static_cast<int64_t>(all));
        },
        &file));
    std::vector<corpus::Record> answered;
    for (size_t i = 0; i < own_.size(); ++i) {
      WITHY_ASSIGN_OR_RETURN(
          own_[i].answer,
          ParseAnswerLine(file.lines()[i], absl::StrCat(Path("answers.jsonl"), ", line ", i + 2)));
      if (!own_[i].answer.empty()) answered.push_back(std::move(own_[i]));
    }
    Say(absl::StrCat(answered.size(), " of ", own_.size(), " prompts have an answer"));
    own_ = std::move(answered);
    if (own_.size() >= kFewestPrompts) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(options_.prompts, ": only ", own_.size(),
                                                   " prompts have an answer; at least ",
                                                   kFewestPrompts, " are needed, better hundreds"));
  }

  std::string PromptName(size_t index) const {
    return absl::StrCat(options_.prompts, ", prompt ", index + 1);
  }

  // The n-th prompt of the run; skips prompts of the corpus that are too long.
  corpus::Prompt PromptAt(size_t n) const {
    if (!options_.prompts.empty()) return corpus::MakePrompt(own_[n]);
    const auto at = [&](uint64_t index) {
      return corpus::MakePrompt(corpus::FreeExamples(generator_.At(index)));
    };
    corpus::Prompt prompt = at(n);
    for (uint64_t again = 1; prompt.text.size() > kMaxTextBytes; ++again) {
      prompt = at(n + again * 1000003);
    }
    return prompt;
  }

  size_t Count() const {
    return options_.prompts.empty() ? static_cast<size_t>(options_.records) : own_.size();
  }
  // The rest is for evaluation.
  size_t TrainedOn(size_t count) const { return count - count / 10; }

  absl::StatusOr<std::vector<ScoreExample>> ScoreExamples() {
    if (!options_.labels.empty()) return ReadScoreExamples(options_.labels);
    WITHY_ASSIGN_OR_RETURN(
        LineFile file, LineFile::Open(Path("score_labels.jsonl"),
                                      absl::StrCat("score labels: model ", targets_[0]->info().id,
                                                   " seed ", options_.seed, " variants ",
                                                   options_.max_variants, of_prompts_)));
    WITHY_RETURN_IF_ERROR(FillLines(
        Count(), options_.threads,
        [&](size_t index, int thread) -> absl::StatusOr<std::string> {
          WITHY_ASSIGN_OR_RETURN(const ScoreExample example,
                                 LabelByLoss(PromptAt(index), options_.max_variants,
                                             targets_[static_cast<size_t>(thread)].get()));
          return ToLine(example);
        },
        [&](size_t done, size_t all) {
          Show("loss of dropped words", static_cast<int64_t>(done), static_cast<int64_t>(all));
        },
        &file));
    std::vector<ScoreExample> examples;
    for (size_t i = 0; i < Count(); ++i) {
      WITHY_ASSIGN_OR_RETURN(
          examples.emplace_back(),
          ParseScoreExample(file.lines()[i],
                            absl::StrCat(Path("score_labels.jsonl"), ", line ", i + 2)));
    }
    return examples;
  }

  StageOptions Options(const std::string& stage, int64_t steps) const {
    StageOptions stage_options;
    stage_options.steps = steps;
    stage_options.batch = options_.batch;
    stage_options.rate = options_.rate;
    stage_options.seed = options_.seed;
    stage_options.train_bottom = options_.from.empty();
    stage_options.progress_file = Path(stage + ".pt");
    stage_options.report = [this, stage, steps, mean = 0.0](int64_t step, double loss) mutable {
      mean = mean == 0.0 ? loss : 0.98 * mean + 0.02 * loss;
      if (step % 10 == 0 || step == steps) {
        Show(absl::StrFormat("%s head, loss %.4f", stage, mean), step, steps);
      }
      return true;
    };
    return stage_options;
  }

  // Inputs of a trained file in addition to the previous file.
  std::string MadeOf(const std::string& from, int64_t steps) const {
    return absl::StrCat(from, " records ", options_.records, " steps ", steps, " batch ",
                        options_.batch, " rate ", options_.rate, " seed ", options_.seed,
                        of_prompts_);
  }

  absl::Status ScoreStage() {
    const std::string labels =
        options_.labels.empty() ? "model " + targets_[0]->info().id : "labels " + labels_digest_;
    WITHY_RETURN_IF_ERROR(
        LineFile::Open(Path("score.made-of"), MadeOf("score: " + labels, options_.score_steps))
            .status());
    if (std::filesystem::exists(Path("score.gguf"))) return absl::OkStatus();
    WITHY_ASSIGN_OR_RETURN(const std::vector<ScoreExample> examples, ScoreExamples());
    WITHY_ASSIGN_OR_RETURN(engine::TlmCheckpoint tlm, engine::ReadTlm(Path("start.gguf")));
    WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Tokenizer> tokenizer, TlmTokenizer());
    const std::span<const ScoreExample> all(examples);
    const size_t trained = TrainedOn(all.size());
    WITHY_RETURN_IF_ERROR(
        TrainScore(*tokenizer, all.first(trained), Options("score", options_.score_steps), &tlm));
    if (trained < all.size()) {
      WITHY_ASSIGN_OR_RETURN(const double correlation,
                             RankCorrelation(*tokenizer, all.subspan(trained), tlm));
      Say(absl::StrFormat("score head: rank correlation with labels not trained on %.3f",
                          correlation));
    }
    return engine::WriteTlm(tlm, engine::GgmlType::kF32, Path("score.gguf"));
  }

  absl::StatusOr<std::vector<DecisionExample>> DecisionExamples() {
    WITHY_ASSIGN_OR_RETURN(const std::string digest, FileDigest(Path("score.gguf")));
    WITHY_ASSIGN_OR_RETURN(
        LineFile file,
        LineFile::Open(Path("decision_table.jsonl"),
                       absl::StrCat("decision table: model ", targets_[0]->info().id, " scores ",
                                    digest, " seed ", options_.seed, " levels ",
                                    absl::StrJoin(space_.model_levels, ","), of_prompts_)));
    std::vector<std::unique_ptr<engine::Tlm>> scorers;
    for (int i = 0; i < options_.threads; ++i) {
      WITHY_ASSIGN_OR_RETURN(scorers.emplace_back(),
                             engine::Tlm::Open(Path("score.gguf"), engine::TlmOptions{}));
    }
    WITHY_RETURN_IF_ERROR(FillLines(
        Count(), options_.threads,
        [&](size_t index, int thread) -> absl::StatusOr<std::string> {
          const auto at = static_cast<size_t>(thread);
          const corpus::Prompt prompt = PromptAt(index);
          // One middle SLO for all: the table serves every SLO.
          WITHY_ASSIGN_OR_RETURN(
              const engine::TlmReading reading,
              scorers[at]->Read(prompt.text, {.ttft_ratio = 0.5, .tpot_ratio = 0.5}));
          std::vector<float> keep;
          for (const engine::WordScore& word : reading.words) keep.push_back(word.keep);
          WITHY_ASSIGN_OR_RETURN(const DecisionRow row,
                                 Traverse(prompt, keep, space_, targets_[at].get()));
          return ToLine(row);
        },
        [&](size_t done, size_t all) {
          Show("right answers per level pair", static_cast<int64_t>(done),
               static_cast<int64_t>(all));
        },
        &file));
    std::vector<DecisionExample> examples;
    for (size_t i = 0; i < Count(); ++i) {
      DecisionExample& example = examples.emplace_back();
      const corpus::Prompt prompt = PromptAt(i);
      example.text = prompt.text;
      example.mostly_examples = corpus::ShareWithoutExamples(prompt) < engine::kMostlyExamples;
      WITHY_ASSIGN_OR_RETURN(
          example.row,
          ParseDecisionRow(file.lines()[i], space_,
                           absl::StrCat(Path("decision_table.jsonl"), ", line ", i + 2)));
    }
    return examples;
  }

  absl::Status DecisionStage() {
    WITHY_ASSIGN_OR_RETURN(const std::string digest, FileDigest(Path("score.gguf")));
    std::string from = absl::StrCat("decision: scores ", digest);
    // Labels from the model's own loss depend on the model; those of a file do not.
    if (!options_.labels.empty()) absl::StrAppend(&from, " model ", targets_[0]->info().id);
    WITHY_RETURN_IF_ERROR(
        LineFile::Open(Path("decision.made-of"), MadeOf(from, options_.decision_steps)).status());
    if (std::filesystem::exists(Path("decision.gguf"))) return absl::OkStatus();
    WITHY_ASSIGN_OR_RETURN(const std::vector<DecisionExample> examples, DecisionExamples());
    WITHY_ASSIGN_OR_RETURN(engine::TlmCheckpoint tlm, engine::ReadTlm(Path("score.gguf")));
    WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Tokenizer> tokenizer, TlmTokenizer());
    const std::span<const DecisionExample> all(examples);
    const size_t trained = TrainedOn(all.size());
    const std::vector<double> mean_right = MeanRightOf(all.first(trained));
    // The score head has learnt which words matter in its training prompts. The accuracy of their
    // shortened forms does not apply to other prompts.
    const auto judging = trained < all.size() ? all.subspan(trained) : all;
    tlm.shape.pair_accuracy = Expected("other prompts", judging, false);
    tlm.shape.pair_accuracy_examples = Expected("prompts of examples", judging, true);
    tlm.shape.model_id = targets_[0]->info().id;
    WITHY_RETURN_IF_ERROR(TrainDecision(*tokenizer, space_, all.first(trained), mean_right,
                                        Options("decision", options_.decision_steps), &tlm));
    if (trained < all.size()) {
      WITHY_ASSIGN_OR_RETURN(
          const DecisionScores s,
          ScoreDecisions(*tokenizer, space_, all.subspan(trained), mean_right, tlm));
      Say(
          absl::StrFormat("right answers over the SLO grid, prompts not trained on: TLM %.3f, one "
                          "pair an SLO %.3f, "
                          "random %.3f, oracle %.3f, full model %.3f",
                          s.tlm, s.fixed, s.random, s.oracle, s.full));
    }
    return engine::WriteTlm(tlm, engine::GgmlType::kF32, Path("decision.gguf"));
  }

  std::vector<double> MeanRightOf(std::span<const DecisionExample> examples) const {
    std::vector<DecisionRow> rows;
    for (const DecisionExample& example : examples) rows.push_back(example.row);
    return MeanRight(space_, rows);
  }

  // Share of prompts of one kind that each pair answers correctly; empty if there are none.
  std::vector<float> Expected(const std::string& kind, std::span<const DecisionExample> judging,
                              bool mostly_examples) const {
    std::vector<DecisionExample> chosen;
    std::copy_if(judging.begin(), judging.end(), std::back_inserter(chosen),
                 [&](const auto& example) { return example.mostly_examples == mostly_examples; });
    if (chosen.empty()) return {};
    const std::vector<double> mean_right = MeanRightOf(chosen);
    SayTable(absl::StrCat(chosen.size(), " ", kind), mean_right);
    return {mean_right.begin(), mean_right.end()};
  }

  void SayTable(const std::string& prompts, const std::vector<double>& mean_right) const {
    Say(absl::StrCat("share of right answers, ", prompts,
                     " not trained on: a line a prompt level, a column a model level ",
                     absl::StrJoin(space_.model_levels, " ")));
    const size_t models = space_.model_levels.size();
    for (size_t p = 0; p < space_.prompt_levels.size(); ++p) {
      std::string line = absl::StrFormat("%4d %%:", space_.prompt_levels[p]);
      for (size_t m = 0; m < models; ++m) {
        line += absl::StrFormat(" %.3f", mean_right[p * models + m]);
      }
      Say(line);
    }
  }

  const JobOptions& options_;
  const corpus::Generator generator_;
  std::string labels_digest_, from_digest_;  // empty: no such file
  std::string of_prompts_;                   // identifies own prompts; empty: those of the corpus
  std::vector<corpus::Record> own_;          // prompts, with the model's answers once it gave them
  std::vector<std::unique_ptr<Target>> targets_;
  DecisionSpace space_;
};

}  // namespace

absl::StatusOr<engine::TlmCheckpoint> OpenTlmToStartFrom(const std::string& path,
                                                         const DecisionSpace& space,
                                                         uint64_t seed) {
  if (std::filesystem::is_directory(path)) {
    return engine::ImportMobileBert(path, {.slo_steps = kSloSteps,
                                           .prompt_levels = space.prompt_levels,
                                           .model_levels = space.model_levels,
                                           .seed = seed});
  }
  WITHY_ASSIGN_OR_RETURN(engine::TlmCheckpoint tlm, engine::ReadTlm(path));
  if (tlm.shape.model_levels != space.model_levels ||
      tlm.shape.prompt_levels != space.prompt_levels) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": decides among model levels ", absl::StrJoin(tlm.shape.model_levels, ","),
        " and prompt levels ", absl::StrJoin(tlm.shape.prompt_levels, ","), "; the model has ",
        absl::StrJoin(space.model_levels, ","), " and prompts ",
        absl::StrJoin(space.prompt_levels, ","), ": begin with a TLM of these levels"));
  }
  return tlm;
}

absl::Status RunJob(const JobOptions& options) { return Job(options).Run(); }

}  // namespace withy::tlm
