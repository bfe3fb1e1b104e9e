// The tables of slo_figures.h that need answers of their own.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "bench/slo/slo_figures.h"
#include "bench/slo/slo_measure.h"
#include "engine/gguf/reader.h"
#include "engine/weights/levels.h"
#include "engine/weights/shape.h"

namespace withy::bench {
namespace {

using nlohmann::json;

constexpr int32_t kConcisePercent = 85;  // the paper drops about 15 %
constexpr int kTlmRounds = 5;

// Ours with other answers, on the latency model alone.
Policy Alone(const FigureInputs& in, const Answers* answers, const Family* family) {
  Policy policy = in.contestants->ours();
  policy.answers = answers;
  policy.family = family;
  policy.logits = nullptr;
  policy.pair_accuracy = {};
  return policy;
}

Policy Oracle(Policy policy) {
  policy.rule = Rule::kOracle;
  policy.drops_level = false;
  return policy;
}

std::vector<uint32_t> EveryFive() {
  std::vector<uint32_t> levels;
  for (uint32_t percent = 20; percent <= 100; percent += 5) levels.push_back(percent);
  return levels;
}

double Between(double low, double high, double at) { return low + at * (high - low); }

// A level between two measured ones, in proportion.
Variant Interpolate(const Family& family, uint32_t percent) {
  size_t upper = 1;
  while (upper + 1 < family.variants.size() && family.variants[upper].percent < percent) ++upper;
  const Variant& low = family.variants[upper - 1];
  const Variant& high = family.variants[upper];
  const double at = (static_cast<double>(percent) - low.percent) /
                    (static_cast<double>(high.percent) - low.percent);
  Variant between = low;
  between.percent = percent;
  for (size_t i = 0; i < kPassRows.size(); ++i) {
    between.times.pass_ms[i] = Between(low.times.pass_ms[i], high.times.pass_ms[i], at);
  }
  between.times.prefill_depth_us =
      Between(low.times.prefill_depth_us, high.times.prefill_depth_us, at);
  between.times.decode_depth_us =
      Between(low.times.decode_depth_us, high.times.decode_depth_us, at);
  return between;
}

Family EveryFive(const Family& family) {
  Family fine{.name = family.name, .variants = {}};
  for (const uint32_t percent : EveryFive()) fine.variants.push_back(Interpolate(family, percent));
  return fine;
}

// The file's own levels, which the engine then takes without their LoRA.
absl::StatusOr<std::vector<engine::LevelSpec>> LevelsOf(const std::string& path) {
  WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(path));
  WITHY_ASSIGN_OR_RETURN(const engine::ModelShape shape, engine::ReadShape(file));
  WITHY_ASSIGN_OR_RETURN(engine::LevelTable table, engine::ReadLevels(file, shape));
  return std::move(table.levels);
}

}  // namespace

absl::StatusOr<json> ConciseFigure(const FigureInputs& in) {
  absl::Status counted;
  const PromptSet concise =
      Concise(*in.prompts, in.tlm->keep, kConcisePercent, in.files.pocket, &counted);
  WITHY_RETURN_IF_ERROR(counted);
  const std::vector<SloRatio> own(1);
  WITHY_ASSIGN_OR_RETURN(const TlmTable tlm, ReadAll(in.tlm_path, concise, own, in.options));
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<Contestants> contestants,
                         Contestants::Make(in.files, *in.machine, concise, tlm, in.options));
  std::fprintf(stderr,
               "\nPrompts of which the caller has left %d %%, trace of alpha = 0, simulated\n",
               kConcisePercent);
  std::vector<Variation> variations;
  for (const Policy& policy : contestants->policies()) variations.push_back({policy.name, policy});
  return RunVariations(in, concise, variations);
}

absl::StatusOr<json> StepsFigure(const FigureInputs& in) {
  const Policy& ours = in.contestants->ours();
  const std::string path = in.fine.empty() ? in.files.pocket : in.fine;
  WITHY_ASSIGN_OR_RETURN(const Answers answers,
                         JudgeAll({.path = path, .levels = true, .instead = {}}, *in.prompts,
                                  EveryFive(), in.tlm->keep, "by TLM " + in.tlm->id, in.options));
  const Family family = in.fine.empty() ? *ours.family : EveryFive(*ours.family);
  if (answers.rows.front().right.size() != EveryFive().size() * family.variants.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": must have the levels 20, 25 .. 95 (--levels of withy-elasticize)"));
  }
  std::fprintf(stderr, "\nSteps of levels, trace of alpha = 0, simulated\n");
  const std::string fine = in.fine.empty() ? "prompt 5 %, model 10 %" : "prompt 5 %, model 5 %";
  const Policy coarse_policy = Alone(in, ours.answers, ours.family);
  const Policy fine_policy = Alone(in, &answers, &family);
  return RunVariations(in, *in.prompts,
                       {{"10 %, latency model alone", coarse_policy},
                        {fine + ", latency model alone", fine_policy},
                        {"10 %, oracle", Oracle(coarse_policy)},
                        {fine + ", oracle", Oracle(fine_policy)}});
}

absl::StatusOr<json> TlmFigure(const FigureInputs& in) {
  std::deque<TlmTable> tables;
  std::deque<Answers> answers;
  std::deque<BoardFacts> boards;
  std::vector<Variation> variations = {{"the TLM given", in.contestants->ours()}};
  const std::vector<SloRatio> own(1);
  for (const std::string& text : in.other_tlms) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
    if (parts.second.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--tlms: \"", text, "\" is not NAME=FILE.gguf"));
    }
    WITHY_ASSIGN_OR_RETURN(tables.emplace_back(),
                           ReadAll(parts.second, *in.prompts, own, in.options));
    const TlmTable& table = tables.back();
    if (table.prompt_levels != in.tlm->prompt_levels ||
        table.model_levels != in.tlm->model_levels) {
      return absl::InvalidArgumentError(
          absl::StrCat(parts.second, ": decides among other levels than ", in.tlm_path));
    }
    WITHY_ASSIGN_OR_RETURN(
        answers.emplace_back(),
        JudgeAll({.path = in.files.pocket, .levels = true, .instead = {}}, *in.prompts,
                 table.prompt_levels, table.keep, "by TLM " + table.id, in.options));
    WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Tlm> tlm,
                           engine::Tlm::Open(parts.second, {.threads = in.options.threads}));
    BoardFacts& board = boards.emplace_back(in.machine->board);
    WITHY_ASSIGN_OR_RETURN(board.tlm,
                           MeasureTlm(*tlm, in.prompts->prompts.front().text, kTlmRounds));
    Policy policy = in.contestants->ours();
    policy.answers = &answers.back();
    policy.logits = &table.logits;
    policy.pair_accuracy = table.pair_accuracy;
    variations.push_back({parts.first, policy, &board});
  }
  std::fprintf(stderr, "\nOther TLMs, trace of alpha = 0, simulated\n");
  return RunVariations(in, *in.prompts, variations);
}

absl::StatusOr<json> AblationFigure(const FigureInputs& in) {
  const Policy& ours = in.contestants->ours();
  std::vector<Variation> variations = {{"ours", ours}};
  const auto judge = [&](const AnswerModel& model, const std::vector<std::vector<float>>& keep,
                         const std::string& keep_id) {
    return JudgeAll(model, *in.prompts, in.tlm->prompt_levels, keep, keep_id, in.options);
  };
  const std::string by_tlm = "by TLM " + in.tlm->id;
  Answers unordered;
  if (!in.unordered.empty()) {
    WITHY_ASSIGN_OR_RETURN(unordered, judge({.path = in.unordered, .levels = true, .instead = {}},
                                            in.tlm->keep, by_tlm));
    Policy policy = ours;
    policy.answers = &unordered;
    variations.push_back({"without reordering", policy});
  }
  WITHY_ASSIGN_OR_RETURN(std::vector<engine::LevelSpec> levels, LevelsOf(in.files.pocket));
  WITHY_ASSIGN_OR_RETURN(
      const Answers bare,
      judge({.path = in.files.pocket, .levels = true, .instead = std::move(levels)}, in.tlm->keep,
            by_tlm));
  Policy without_lora = ours;
  without_lora.answers = &bare;
  variations.push_back({"without LoRA", without_lora});
  WITHY_ASSIGN_OR_RETURN(const Answers random_words,
                         judge({.path = in.files.pocket, .levels = true, .instead = {}},
                               RandomKeep(*in.prompts, in.seed), absl::StrCat("random ", in.seed)));
  Policy without_scores = ours;
  without_scores.answers = &random_words;
  variations.push_back({"without score head: random words", without_scores});
  variations.push_back(
      {"without decision head: latency model alone", Alone(in, ours.answers, ours.family)});
  Policy random = Alone(in, ours.answers, ours.family);
  random.rule = Rule::kRandom;
  variations.push_back({"without decision head: random feasible pair", random});
  std::fprintf(stderr, "\nWithout one part, trace of alpha = 0, simulated%s\n",
               in.unordered.empty()
                   ? "; without reordering needs --unordered FILE.gguf (./withy elasticize --order "
                     "random)"
                   : "");
  return RunVariations(in, *in.prompts, variations);
}

}  // namespace withy::bench
