#include "bench/slo/slo_contestants.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "bench/slo/slo_sparse.h"
#include "engine/gguf/reader.h"
#include "engine/weights/shape.h"

namespace withy::bench {
namespace {

// Shares of the neurons that contextual sparsity may take, per cent; dense is answered by the
// elastic table's full level just as well, but one table is simpler than two.
const std::vector<uint32_t> kDensities = {20, 30, 45, 60, 75, 90, 100};
const std::vector<uint32_t> kWhole = {100};

bool AllZero(std::span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

std::vector<policy::LevelCost> CostsOf(const engine::ModelInfo& info) {
  std::vector<policy::LevelCost> costs;
  for (const engine::LevelInfo& level : info.levels) {
    costs.push_back({static_cast<uint32_t>(level.percent), static_cast<double>(level.weight_bytes),
                     static_cast<double>(level.flops_per_token)});
  }
  return costs;
}

std::vector<uint32_t> PercentsOf(const engine::ModelInfo& info) {
  std::vector<uint32_t> percents;
  for (const engine::LevelInfo& level : info.levels)
    percents.push_back(static_cast<uint32_t>(level.percent));
  return percents;
}

// METHOD-LEVEL.gguf in a directory, by level.
std::map<uint32_t, std::string> FilesOf(const std::string& method, const std::string& directory) {
  std::map<uint32_t, std::string> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string stem = entry.path().stem().string();
    uint32_t percent = 0;
    if (entry.path().extension() != ".gguf" || !absl::StartsWith(stem, method + "-")) continue;
    if (absl::SimpleAtoi(stem.substr(method.size() + 1), &percent) && percent < 100)
      found[percent] = entry.path().string();
  }
  return found;
}

PairAccuracy MeanRight(const Answers& answers, const std::vector<PromptFacts>& facts) {
  PairAccuracy mean;
  std::array<float, 2> count{};
  for (size_t prompt = 0; prompt < answers.rows.size(); ++prompt) {
    const std::vector<bool>& right = answers.rows[prompt].right;
    const bool examples = facts[prompt].mostly_examples();
    mean[examples].resize(right.size());
    for (size_t i = 0; i < right.size(); ++i) mean[examples][i] += right[i] ? 1.0f : 0.0f;
    ++count[examples];
  }
  for (const bool examples : {false, true}) {
    for (float& share : mean[examples]) share /= count[examples];
  }
  return mean;
}

}  // namespace

policy::LevelShare ShareOfParts(const engine::ModelInfo& info, double attention, double neurons) {
  const engine::LevelInfo& full = info.levels.back();
  const double head = 2.0 * info.vocab_size * info.d_model;
  const double head_share = head / static_cast<double>(full.flops_per_token);
  const double attention_size = 2.0 * info.d_model * info.head_dim * (info.heads + info.kv_heads);
  const double neurons_size = 3.0 * info.d_model * info.d_ff;
  const double layers =
      (attention * attention_size + neurons * neurons_size) / (attention_size + neurons_size);
  const double share = head_share + (1 - head_share) * layers;
  return {share, share};
}

absl::StatusOr<PartsUsed> UsedParts(const std::string& path) {
  WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(path));
  WITHY_ASSIGN_OR_RETURN(const engine::ModelShape shape, engine::ReadShape(file));
  PartsUsed used{0, 0};
  for (int32_t i = 0; i < shape.layers; ++i) {
    WITHY_ASSIGN_OR_RETURN(const engine::TensorInfo* out,
                           file.GetTensor(absl::StrCat("blk.", i, ".attn_output.weight")));
    WITHY_ASSIGN_OR_RETURN(const engine::TensorInfo* down,
                           file.GetTensor(absl::StrCat("blk.", i, ".ffn_down.weight")));
    used.attention += AllZero(file.Data(*out)) ? 0 : 1.0 / shape.layers;
    used.neurons += AllZero(file.Data(*down)) ? 0 : 1.0 / shape.layers;
  }
  return used;
}

absl::StatusOr<std::unique_ptr<Contestants>> Contestants::Make(const ContestantFiles& files,
                                                               const Machine& machine,
                                                               const PromptSet& prompts,
                                                               const TlmTable& tlm,
                                                               const AnswerOptions& options) {
  std::unique_ptr<Contestants> made(new Contestants(files, machine, prompts, tlm, options));
  WITHY_RETURN_IF_ERROR(made->AddElastic());
  WITHY_RETURN_IF_ERROR(made->AddStructural());
  WITHY_RETURN_IF_ERROR(made->AddFiles("layer_dropping", /*swaps=*/false, /*reference=*/false));
  WITHY_RETURN_IF_ERROR(made->AddSmall());
  WITHY_RETURN_IF_ERROR(made->AddSparse());
  WITHY_RETURN_IF_ERROR(made->AddFiles("layer_merging", /*swaps=*/true, /*reference=*/true));
  WITHY_RETURN_IF_ERROR(made->AddFiles("attention_dropping", /*swaps=*/false, /*reference=*/true));
  made->AddPublished();
  made->AddReferences();
  return made;
}

const Policy* Contestants::Find(const std::string& name) const {
  for (const Policy& policy : policies_) {
    if (policy.name == name) return &policy;
  }
  return nullptr;
}

// Who chooses knows how often each of its settings is right: ours from training, the others from
// these very prompts; as published, nobody does.
void Contestants::Add(Policy policy) {
  if (policy.pair_accuracy == PairAccuracy{} && !policy.as_published) {
    policy.pair_accuracy = MeanRight(*policy.answers, prompts_.facts);
  }
  policies_.push_back(std::move(policy));
}

// The baselines once more, each with the largest setting that is predicted in time.
void Contestants::AddPublished() {
  const std::vector<Policy> all = policies_;
  for (Policy policy : all) {
    if (policy.reference || policy.as_published || policy.name == ours().name) continue;
    policy.name += ", as published";
    policy.pair_accuracy = {};
    policy.reference = policy.as_published = true;
    Add(std::move(policy));
  }
}

Family Contestants::ElasticFamily(const std::string& name, double copy_ms_per_byte) const {
  Family family{.name = name, .variants = {}};
  const std::vector<policy::LevelCost> costs = CostsOf(machine_.info);
  for (size_t i = 0; i < costs.size(); ++i) {
    family.variants.push_back({.percent = costs[i].percent,
                               .times = machine_.levels[i],
                               .switch_ms = costs[i].weight_bytes * copy_ms_per_byte});
  }
  return family;
}

Variant Contestants::FullVariant(double switch_ms) const {
  return {.percent = 100, .times = machine_.levels.back(), .switch_ms = switch_ms};
}

double Contestants::LoadMs(const policy::LevelShare& share) const {
  return machine_.switching.load_ms_per_byte * share.decode *
         static_cast<double>(machine_.info.levels.back().weight_bytes);
}

// Ours, and what is left of it when one dimension is taken away or chance decides.
absl::Status Contestants::AddElastic() {
  const std::vector<uint32_t> levels = PercentsOf(machine_.info);
  if (levels.size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(files_.pocket,
                     " has no levels: make an elastic file with `./withy elasticize --model "
                     "build/pocket/withy-pocket-f32.gguf --out build/pocket/elastic.gguf` and name "
                     "it by --pocket"));
  }
  if (tlm_.model_levels != levels) {
    return absl::InvalidArgumentError(
        absl::StrCat("the TLM decides among model levels ", absl::StrJoin(tlm_.model_levels, ","),
                     ", the model has ", absl::StrJoin(levels, ","),
                     ": train one for this model with `./withy train tlm --model ", files_.pocket,
                     " --out build/pocket/tlm.gguf` and name it by --tlm"));
  }
  WITHY_ASSIGN_OR_RETURN(Answers answers,
                         JudgeAll({.path = files_.pocket, .levels = true, .instead = {}}, prompts_,
                                  tlm_.prompt_levels, tlm_.keep, "by TLM " + tlm_.id, options_));
  const Family* family = &families_.emplace_back(ElasticFamily("elastic", 0));
  const Answers* table = &tables_.emplace_back(std::move(answers));
  Policy policy{.name = "ours", .family = family, .answers = table};
  policy.logits = &tlm_.logits;
  policy.pair_accuracy = tlm_.pair_accuracy;
  policy.shortens = true;
  policy.leaves_examples_out = true;
  policy.drops_level = true;
  policy.audits = true;
  policy.minds_others = true;
  Add(policy);
  policy = {.name = "prompt pruning",
            .rule = Rule::kModelByTpot,
            .family = family,
            .answers = table,
            .shortens = true};
  Add(policy);
  Add({.name = "model pruning", .family = family, .answers = table});
  Add({.name = "random feasible",
       .rule = Rule::kRandom,
       .family = family,
       .answers = table,
       .shortens = true,
       .as_published = true});
  return absl::OkStatus();
}

// A level of its own layout in memory: its bytes are copied at each switch.
absl::Status Contestants::AddStructural() {
  const Answers* table = ours().answers;
  if (!files_.structural.empty()) {
    WITHY_ASSIGN_OR_RETURN(Answers answers,
                           JudgeAll({.path = files_.structural, .levels = true, .instead = {}},
                                    prompts_, kWhole, {}, "whole", options_));
    if (answers.rows.front().right.size() != machine_.info.levels.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(files_.structural, " has other levels than ", files_.pocket));
    }
    table = &tables_.emplace_back(std::move(answers));
  }
  const Family* family =
      &families_.emplace_back(ElasticFamily("structural", machine_.switching.copy_ms_per_byte));
  Add({.name = "structural pruning", .family = family, .answers = table});
  return absl::OkStatus();
}

// Plain files METHOD-LEVEL.gguf and the model itself.
absl::Status Contestants::AddFiles(const std::string& method, bool swaps, bool reference) {
  if (files_.baselines.empty()) return absl::OkStatus();
  const std::map<uint32_t, std::string> files = FilesOf(method, files_.baselines);
  if (files.empty() && reference) return absl::OkStatus();
  if (files.empty()) {
    return absl::NotFoundError(absl::StrCat(
        files_.baselines, "/", method,
        "-*.gguf: not there; make them with `./withy train comparisons --model "
        "build/pocket/withy-pocket-f32.gguf`, which writes build/comparisons/baselines, or leave "
        "them out with --baselines ''"));
  }
  Family family{.name = method, .variants = {}};
  std::vector<Answers> tables;
  const AnswerModel whole{.path = files_.pocket, .levels = false, .instead = {}};
  for (const auto& [percent, path] : files) {
    WITHY_ASSIGN_OR_RETURN(tables.emplace_back(),
                           JudgeAll({.path = path, .levels = false, .instead = {}}, prompts_,
                                    kWhole, {}, "whole", options_));
    WITHY_ASSIGN_OR_RETURN(const PartsUsed used, UsedParts(path));
    const policy::LevelShare share = ShareOfParts(machine_.info, used.attention, used.neurons);
    family.variants.push_back({.percent = percent,
                               .times = ScaledTimes(machine_.levels.back(), share),
                               .switch_ms = swaps ? LoadMs(share) : 0});
  }
  WITHY_ASSIGN_OR_RETURN(tables.emplace_back(),
                         JudgeAll(whole, prompts_, kWhole, {}, "whole", options_));
  family.variants.push_back(FullVariant(swaps ? LoadMs({}) : 0));
  std::string name = method;
  std::replace(name.begin(), name.end(), '_', ' ');
  Policy policy{.name = name,
                .family = &families_.emplace_back(std::move(family)),
                .answers = &tables_.emplace_back(Beside(tables))};
  policy.reference = reference;
  Add(policy);
  return absl::OkStatus();
}

// A model for each speed: one of them in memory, the others on the disk.
absl::Status Contestants::AddSmall() {
  if (files_.small.empty()) return absl::OkStatus();
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Model> pocket,
                         engine::Model::Open(files_.pocket, {}));
  const engine::LevelInfo& full = pocket->info().levels.back();
  std::map<uint32_t, std::pair<Variant, Answers>> models;
  for (const std::string& path : files_.small) {
    WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Model> model,
                           engine::Model::Open(path, {}));
    const engine::LevelInfo& level = model->info().levels.back();
    const policy::LevelShare share{
        static_cast<double>(level.flops_per_token) / static_cast<double>(full.flops_per_token),
        static_cast<double>(level.weight_bytes) / static_cast<double>(full.weight_bytes)};
    if (share.decode >= 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": a dedicated small model has to be smaller than ", files_.pocket));
    }
    const auto percent =
        std::clamp(static_cast<uint32_t>(std::lround(100 * share.decode)), 1u, 99u);
    WITHY_ASSIGN_OR_RETURN(Answers answers, JudgeAll({.path = path, .levels = false, .instead = {}},
                                                     prompts_, kWhole, {}, "whole", options_));
    auto& [variant, judged] = models[percent];
    variant = {.percent = percent,
               .times = ScaledTimes(machine_.levels.back(), share),
               .switch_ms = LoadMs(share)};
    judged = std::move(answers);
  }
  Family family{.name = "dedicated", .variants = {}};
  std::vector<Answers> tables;
  for (auto& [percent, model] : models) {
    family.variants.push_back(model.first);
    tables.push_back(std::move(model.second));
  }
  WITHY_ASSIGN_OR_RETURN(tables.emplace_back(),
                         JudgeAll({.path = files_.pocket, .levels = false, .instead = {}}, prompts_,
                                  kWhole, {}, "whole", options_));
  family.variants.push_back(FullVariant(LoadMs({})));
  Add({.name = "dedicated models",
       .family = &families_.emplace_back(std::move(family)),
       .answers = &tables_.emplace_back(Beside(tables))});
  return absl::OkStatus();
}

// The prompt is shortened by our scores and computed with the full model; decoding takes part of
// the neurons.
absl::Status Contestants::AddSparse() {
  if (prompts_.own_answers) return absl::OkStatus();  // JudgeAllSparse asks for the whole answer
  WITHY_ASSIGN_OR_RETURN(Answers answers,
                         JudgeAllSparse(files_.pocket, prompts_, tlm_.prompt_levels, kDensities,
                                        tlm_.keep, "by TLM " + tlm_.id, options_));
  Family family{.name = "contextual sparsity", .variants = {}};
  for (const uint32_t density : kDensities) {
    policy::LevelShare share = ShareOfParts(machine_.info, 1, density / 100.0);
    share.prefill = 1;
    family.variants.push_back(
        {.percent = density, .times = ScaledTimes(machine_.levels.back(), share), .switch_ms = 0});
  }
  Policy policy{.name = "compression + sparsity",
                .family = &families_.emplace_back(std::move(family)),
                .answers = &tables_.emplace_back(std::move(answers))};
  policy.shortens = true;
  Add(policy);
  return absl::OkStatus();
}

void Contestants::AddReferences() {
  Add({.name = "model pruning that minds others",
       .family = ours().family,
       .answers = ours().answers,
       .minds_others = true,
       .reference = true});
  Policy full = ours();
  full.name = "full model";
  full.rule = Rule::kFull;
  full.logits = nullptr;
  full.drops_level = false;
  full.reference = true;
  Add(full);
  Policy oracle = full;
  oracle.name = "oracle";
  oracle.rule = Rule::kOracle;
  oracle.shortens = true;
  Add(oracle);
}

}  // namespace withy::bench
