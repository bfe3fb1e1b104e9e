#include "bench/slo/slo_answers.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/fnv1a.h"
#include "base/status.h"
#include "bench/quality/held_out.h"
#include "bench/slo/slo_trace.h"
#include "offline/corpus/generator.h"
#include "offline/tlm/decision_table.h"
#include "offline/tlm/line_file.h"
#include "offline/tlm/prompt_file.h"
#include "offline/tlm/target.h"

namespace withy::bench {
namespace {

using nlohmann::json;

// Prompts of a user's that are answered for each one that a trace asks: some have no answer.
// Choice.
constexpr size_t kSparePrompts = 2;

std::string Digest(const std::string& text) {
  Fnv1a hash;
  hash.AddBytes(text);
  return absl::StrFormat("%016x", hash.value());
}

std::vector<int32_t> Signed(const std::vector<uint32_t>& levels) {
  return {levels.begin(), levels.end()};
}

// Of its words, the share that stays at any prompt level.
uint32_t LeastPercent(const corpus::Prompt& prompt) {
  const std::vector<bool> stays = corpus::ChooseWords(prompt, {}, 1);
  const auto words = static_cast<size_t>(std::count(stays.begin(), stays.end(), true));
  return stays.empty() ? 100 : static_cast<uint32_t>(100 * words / stays.size());
}

absl::Status Count(const engine::ModelBundle& bundle, PromptSet* set) {
  set->facts.clear();
  for (const corpus::Prompt& prompt : set->prompts) {
    WITHY_ASSIGN_OR_RETURN(const Question question, Encode(bundle, prompt.record));
    set->facts.push_back({.tokens = static_cast<int32_t>(question.prompt.size()),
                          .answer_tokens = std::min(static_cast<int32_t>(question.answer.size()),
                                                    static_cast<int32_t>(set->max_tokens)),
                          .text_bytes = prompt.text.size(),
                          .share_without_examples = corpus::ShareWithoutExamples(prompt),
                          .least_percent = LeastPercent(prompt)});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<tlm::Target>> OpenTarget(const std::string& path,
                                                        const engine::ModelOptions& options,
                                                        bool own_answers) {
  return own_answers ? tlm::Target::OpenForOwnAnswers(path, options)
                     : tlm::Target::Open(path, options);
}

json ToJson(const engine::TlmReading& own, const std::vector<LevelLogits>& logits) {
  json line;
  for (const engine::WordScore& word : own.words) line["keep"].push_back(word.keep);
  if (own.words.empty()) line["keep"] = json::array();
  for (const LevelLogits& one : logits) line["logits"].push_back({one.prompt, one.model});
  return line;
}

absl::Status FromJson(const std::string& text, size_t prompt, TlmTable* table) {
  const json line = json::parse(text, nullptr, false);
  if (!line.is_object() || !line.contains("keep") || !line.contains("logits") ||
      line["logits"].empty()) {
    return absl::DataLossError(absl::StrCat("line ", prompt + 2,
                                            " of a table of TLM readings cannot be read: remove "
                                            "the file, and it is made again"));
  }
  table->keep.push_back(line["keep"].get<std::vector<float>>());
  for (size_t slo = 0; slo < table->logits.size(); ++slo) {
    if (slo >= line["logits"].size()) {
      table->logits[slo].emplace_back();
      continue;
    }
    table->logits[slo].push_back({line["logits"][slo][0].get<std::vector<float>>(),
                                  line["logits"][slo][1].get<std::vector<float>>()});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> KeptLines(
    const std::string& name, const std::string& made_of, size_t count,
    const std::function<absl::StatusOr<std::string>(size_t index, int thread)>& make,
    const AnswerOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(options.dir, error);
  if (error) {
    return absl::PermissionDeniedError(absl::StrCat(options.dir, ": ", error.message()));
  }
  const std::string path =
      absl::StrCat(options.dir, "/", name, "-", Digest(made_of).substr(0, 8), ".jsonl");
  WITHY_ASSIGN_OR_RETURN(tlm::LineFile file, tlm::LineFile::Open(path, made_of));
  WITHY_RETURN_IF_ERROR(tlm::FillLines(
      count, options.threads, make,
      [&](size_t done, size_t all) {
        if (options.progress) options.progress(name, done, all);
      },
      &file));
  std::vector<std::string> lines = file.lines();
  lines.resize(count);
  return lines;
}

absl::StatusOr<PromptSet> HeldOutPrompts(const std::string& model, size_t per_app,
                                         int five_shot_percent) {
  WITHY_ASSIGN_OR_RETURN(const engine::ModelBundle bundle, engine::OpenBundle(model, {}));
  corpus::Spec spec = corpus::HeldOutSpec();
  spec.five_shot_percent = five_shot_percent;
  const corpus::Generator generator(spec);
  PromptSet set{.name = absl::StrCat("held-out-", spec.seed, "-five-shot-", five_shot_percent),
                .per_app = per_app,
                .prompts = {},
                .facts = {}};
  for (size_t app = 0; app < kSloApps; ++app) {
    for (size_t i = 0; i < per_app; ++i) {
      set.prompts.push_back(
          corpus::MakePrompt(corpus::FreeExamples(generator.At(RecordIndex(app, i)))));
    }
  }
  WITHY_RETURN_IF_ERROR(Count(bundle, &set));
  return set;
}

absl::StatusOr<PromptSet> OwnPrompts(const std::string& model, const std::string& file,
                                     size_t per_app, const AnswerOptions& options) {
  WITHY_ASSIGN_OR_RETURN(const std::string digest, FileDigest(file));
  WITHY_ASSIGN_OR_RETURN(
      tlm::OwnPrompts own,
      tlm::ReadOwnPrompts(file, static_cast<int64_t>(kSloApps * per_app * kSparePrompts)));
  std::vector<std::unique_ptr<tlm::Target>> targets;
  for (int i = 0; i < options.threads; ++i) {
    WITHY_ASSIGN_OR_RETURN(targets.emplace_back(), OpenTarget(model, {}, /*own_answers=*/true));
  }
  const auto make = [&](size_t index, int thread) -> absl::StatusOr<std::string> {
    auto answer = targets[static_cast<size_t>(thread)]->Answer(own.records[index]);
    if (absl::IsOutOfRange(answer.status())) answer = "";
    if (!answer.ok()) return Annotate(answer.status(), absl::StrCat(file, ", prompt ", index + 1));
    return json(*answer).dump(-1, ' ', false, json::error_handler_t::replace);
  };
  WITHY_ASSIGN_OR_RETURN(
      const std::vector<std::string> lines,
      KeptLines("own-answers",
                absl::StrCat("own answers: model ", targets.front()->info().id, " prompts ", digest,
                             " tokens ", tlm::kOwnAnswerTokens),
                own.records.size(), make, options));
  std::array<std::vector<corpus::Prompt>, kSloApps> apps;
  for (size_t i = 0; i < lines.size(); ++i) {
    const json answer = json::parse(lines[i], nullptr, false);
    if (!answer.is_string()) {
      return absl::DataLossError(absl::StrCat("line ", i + 2,
                                              " of a table of own answers cannot be read: remove "
                                              "the file, and it is made again"));
    }
    own.records[i].answer = answer.get<std::string>();
    std::vector<corpus::Prompt>& app = apps[i % kSloApps];
    if (own.records[i].answer.empty() || app.size() == per_app) continue;
    app.push_back(corpus::MakePrompt(std::move(own.records[i])));
  }
  PromptSet set{.name = "own-" + digest,
                .per_app = per_app,
                .own_answers = true,
                .max_tokens = tlm::kOwnAnswerTokens,
                .prompts = {},
                .facts = {}};
  for (size_t i = 0; i < kSloApps; ++i) {
    if (apps[i].size() < per_app) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": app ", ToAbsl(SloApps()[i].name), " gets ", apps[i].size(),
                       " prompts of the ", per_app, " that the trace asks: give ",
                       kSloApps * per_app, " lines or more, or fewer --requests"));
    }
    std::move(apps[i].begin(), apps[i].end(), std::back_inserter(set.prompts));
  }
  WITHY_ASSIGN_OR_RETURN(const engine::ModelBundle bundle, engine::OpenBundle(model, {}));
  WITHY_RETURN_IF_ERROR(Count(bundle, &set));
  return set;
}

absl::StatusOr<TlmTable> ReadAll(const std::string& tlm_path, const PromptSet& prompts,
                                 std::span<const SloRatio> slos, const AnswerOptions& options) {
  TlmTable table;
  WITHY_ASSIGN_OR_RETURN(table.id, FileDigest(tlm_path));
  std::vector<std::unique_ptr<engine::Tlm>> readers;
  for (int i = 0; i < options.threads; ++i) {
    WITHY_ASSIGN_OR_RETURN(readers.emplace_back(), engine::Tlm::Open(tlm_path, {}));
  }
  const engine::TlmShape& shape = readers.front()->shape();
  table.prompt_levels.assign(shape.prompt_levels.begin(), shape.prompt_levels.end());
  table.model_levels.assign(shape.model_levels.begin(), shape.model_levels.end());
  for (const bool examples : {false, true}) {
    table.pair_accuracy[examples] = shape.PairAccuracies(examples);
  }
  std::string ratios;
  for (const SloRatio& slo : slos) absl::StrAppend(&ratios, " ", slo.ttft, "/", slo.tpot);
  const auto make = [&](size_t index, int thread) -> absl::StatusOr<std::string> {
    engine::Tlm& reader = *readers[static_cast<size_t>(thread)];
    const SloApp& app = SloApps()[index / prompts.per_app];
    engine::TlmReading own;
    std::vector<LevelLogits> logits;
    const size_t asked = index % prompts.per_app < kReadPerApp ? slos.size() : 1;
    for (size_t i = 0; i < asked; ++i) {
      const engine::TlmSlo slo{.ttft_ratio = i == 0 ? app.ttft_ratio : slos[i].ttft,
                               .tpot_ratio = i == 0 ? app.tpot_ratio : slos[i].tpot};
      WITHY_ASSIGN_OR_RETURN(engine::TlmReading reading,
                             reader.Read(prompts.prompts[index].text, slo));
      logits.push_back({reading.prompt_level.logits, reading.model_level.logits});
      if (i == 0) own = std::move(reading);
    }
    return ToJson(own, logits).dump();
  };
  WITHY_ASSIGN_OR_RETURN(
      const std::vector<std::string> lines,
      KeptLines("readings",
                absl::StrCat("readings: logits of TLM ", table.id, " prompts ", prompts.name,
                             " per app ", prompts.per_app, " SLOs", ratios),
                prompts.prompts.size(), make, options));
  table.logits.resize(slos.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    WITHY_RETURN_IF_ERROR(FromJson(lines[i], i, &table));
  }
  return table;
}

std::vector<std::vector<float>> RandomKeep(const PromptSet& prompts, uint64_t seed) {
  std::vector<std::vector<float>> keep;
  corpus::Rng rng(seed);
  for (const corpus::Prompt& prompt : prompts.prompts) {
    std::vector<float>& words = keep.emplace_back();
    for (size_t i = 0; i < prompt.words.size(); ++i) {
      words.push_back(static_cast<float>(rng.Below(1u << 20)) / static_cast<float>(1u << 20));
    }
  }
  return keep;
}

PromptSet Concise(const PromptSet& prompts, const std::vector<std::vector<float>>& keep,
                  int32_t percent, const std::string& model, absl::Status* status) {
  PromptSet concise{.name = absl::StrCat(prompts.name, "-concise-", percent),
                    .per_app = prompts.per_app,
                    .own_answers = prompts.own_answers,
                    .max_tokens = prompts.max_tokens,
                    .prompts = {},
                    .facts = {}};
  for (size_t i = 0; i < prompts.prompts.size(); ++i) {
    const corpus::Prompt& prompt = prompts.prompts[i];
    concise.prompts.push_back(corpus::MakePrompt(
        corpus::KeepWords(prompt, corpus::ChooseWords(prompt, keep[i], percent))));
  }
  auto bundle = engine::OpenBundle(model, {});
  *status = bundle.ok() ? Count(*bundle, &concise) : bundle.status();
  return concise;
}

absl::StatusOr<Answers> JudgeAll(const AnswerModel& model, const PromptSet& prompts,
                                 const std::vector<uint32_t>& prompt_levels,
                                 const std::vector<std::vector<float>>& keep,
                                 const std::string& keep_id, const AnswerOptions& options) {
  engine::ModelOptions model_options;
  model_options.threads = 1;
  model_options.levels = model.instead;
  std::vector<std::unique_ptr<tlm::Target>> targets;
  for (int i = 0; i < options.threads; ++i) {
    WITHY_ASSIGN_OR_RETURN(targets.emplace_back(),
                           OpenTarget(model.path, model_options, prompts.own_answers));
  }
  const engine::ModelInfo& info = targets.front()->info();
  tlm::DecisionSpace space = tlm::MakeSpace(info, Signed(prompt_levels));
  if (!model.levels) space.model_levels.assign(1, 100);
  const auto make = [&](size_t index, int thread) -> absl::StatusOr<std::string> {
    tlm::Target* target = targets[static_cast<size_t>(thread)].get();
    const corpus::Prompt& prompt = prompts.prompts[index];
    if (model.levels) {
      const std::span<const float> scores =
          keep.empty() ? std::span<const float>() : std::span<const float>(keep[index]);
      WITHY_ASSIGN_OR_RETURN(const tlm::DecisionRow row,
                             tlm::Traverse(prompt, scores, space, target));
      return tlm::ToLine(row);
    }
    const auto full = static_cast<int32_t>(target->info().levels.size()) - 1;
    tlm::DecisionRow row;
    for (const uint32_t percent : prompt_levels) {
      const bool whole = keep.empty() || percent == 100;
      const corpus::Record record =
          whole ? prompt.record
                : corpus::KeepWords(prompt, corpus::ChooseWords(prompt, keep[index],
                                                                static_cast<int32_t>(percent)));
      WITHY_ASSIGN_OR_RETURN(const tlm::Judgement judged, target->Judge(record, full));
      row.tokens.push_back(judged.prompt_tokens);
      row.right.push_back(judged.right);
    }
    return tlm::ToLine(row);
  };
  const std::string made_of = absl::StrCat(
      "answers: model ", info.id, " prompts ", prompts.name, " per app ", prompts.per_app,
      " words ", keep_id, " prompt levels ", absl::StrJoin(prompt_levels, ","), " levels ",
      absl::StrJoin(space.model_levels, ","), model.instead.empty() ? "" : " without LoRA");
  WITHY_ASSIGN_OR_RETURN(const std::vector<std::string> lines,
                         KeptLines("answers", made_of, prompts.prompts.size(), make, options));
  Answers answers{.prompt_levels = prompt_levels, .rows = {}};
  for (size_t i = 0; i < lines.size(); ++i) {
    WITHY_ASSIGN_OR_RETURN(
        tlm::DecisionRow row,
        tlm::ParseDecisionRow(lines[i], space, absl::StrCat("answers, line ", i + 2)));
    answers.rows.push_back({std::move(row.tokens), std::move(row.right)});
  }
  return answers;
}

bool RightAt(const Answers& answers, const Family& family, size_t prompt, uint32_t prompt_percent,
             std::span<const uint32_t> model_percents) {
  const std::vector<uint32_t>& levels = answers.prompt_levels;
  const auto above = std::upper_bound(levels.begin(), levels.end(), prompt_percent);
  const auto level = static_cast<size_t>(std::max<ptrdiff_t>(0, above - levels.begin() - 1));
  const std::vector<bool>& right = answers.rows[prompt].right;
  return std::all_of(model_percents.begin(), model_percents.end(), [&](uint32_t percent) {
    for (size_t v = 0; v < family.variants.size(); ++v) {
      if (family.variants[v].percent == percent)
        return static_cast<bool>(right[level * family.variants.size() + v]);
    }
    return false;
  });
}

Answers Beside(const std::vector<Answers>& tables) {
  Answers all = tables.front();
  for (size_t i = 1; i < tables.size(); ++i) {
    for (size_t prompt = 0; prompt < all.rows.size(); ++prompt) {
      all.rows[prompt].right.push_back(tables[i].rows[prompt].right.back());
    }
  }
  return all;
}

}  // namespace withy::bench
