#include "bench/speculation/speculation_wall_measure.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/quality/rouge.h"
#include "bench/samples.h"
#include "bench/speculation/speculation_wall_limited.h"
#include "bench/speculation/speculation_wall_pair.h"
#include "engine/model/bundle.h"
#include "engine/weights/packed_file.h"

namespace withy::bench {
namespace {

constexpr int kShortPercent = 94;  // of what fits: 6 % short
constexpr char kAcceptanceWay[] = "line:4";

double Mib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

absl::StatusOr<uint64_t> DataBytes(const std::string& path) {
  if (path.empty()) return uint64_t{0};
  WITHY_ASSIGN_OR_RETURN(const auto file, engine::PackedFile::Open(path));
  return file->data_bytes();
}

}  // namespace

absl::Status Wall::Measure() {
  WITHY_RETURN_IF_ERROR(ReadFiles());
  WITHY_RETURN_IF_ERROR(MeasureSmallPair());
  WITHY_RETURN_IF_ERROR(MeasureProgram());
  for (int round = 0; round < setup_.rounds; ++round) {
    std::fprintf(stderr, "round %d of %d\n", round + 1, setup_.rounds);
    for (const std::string& percent : setup_.budgets) WITHY_RETURN_IF_ERROR(AtBudget(percent));
    if (setup_.cliff) WITHY_RETURN_IF_ERROR(Cliff());
  }
  for (const std::string& percent : setup_.budgets) PrintTable(percent);
  PrintLine();
  if (mismatches_ == 0) return absl::OkStatus();
  return absl::InternalError("answers of lossless ways differ");
}

absl::Status Wall::ReadFiles() {
  WITHY_ASSIGN_OR_RETURN(weights_, DataBytes(setup_.run.packed));
  WITHY_ASSIGN_OR_RETURN(draft_weights_, DataBytes(setup_.run.draft));
  WITHY_ASSIGN_OR_RETURN(const auto file, engine::PackedFile::Open(setup_.run.packed));
  WITHY_ASSIGN_OR_RETURN(tokenizer_, engine::MakeTokenizer(file->metadata()));
  return absl::OkStatus();
}

// Answers and acceptance of the pair before it was inflated, in memory.
absl::Status Wall::MeasureSmallPair() {
  if (setup_.small_target.empty()) return absl::OkStatus();
  engine::ModelOptions options;
  options.threads = setup_.run.threads;
  WITHY_ASSIGN_OR_RETURN(const engine::ModelBundle target,
                         engine::OpenBundle(setup_.small_target, options));
  WITHY_ASSIGN_OR_RETURN(const engine::ModelBundle draft,
                         engine::OpenBundle(setup_.small_draft, options));
  WITHY_ASSIGN_OR_RETURN(const WallWay line, ParseWay(kAcceptanceWay));
  WITHY_ASSIGN_OR_RETURN(std::vector<WallAnswer> answers,
                         AnswerInTurns(target, draft.model.get(), setup_.run, {line}));
  const WallSum sum = SumOf(answers);
  small_acceptance_ = sum.accepted_share();
  for (WallAnswer& one : answers) small_[one.prompt] = std::move(one.answer.tokens);
  std::fprintf(stderr,
               "before inflation: %zu prompts, %.1f tokens an answer, %s accepted to %.3f\n",
               small_.size(), static_cast<double>(sum.tokens) / static_cast<double>(small_.size()),
               kAcceptanceWay, small_acceptance_);
  return absl::OkStatus();
}

// Memory of the program beside the weights: KV, activations, tokenizer, code; and of its decoders
// and trees where it answers prompts.
absl::Status Wall::MeasureProgram() {
  WallRun run = setup_.run;
  run.contestant = "resident";
  WITHY_ASSIGN_OR_RETURN(const WallResult whole, RunLimited(run, kUnlimited));
  program_ = whole.memory_bytes - std::min(weights_, whole.memory_bytes);
  WITHY_RETURN_IF_ERROR(MeasurePairProgram(WallWay::Kind::kPair, &pair_program_));
  WITHY_RETURN_IF_ERROR(MeasurePairProgram(WallWay::Kind::kService, &service_program_));
  std::fprintf(stderr,
               "weights %.1f MiB, draft %.1f MiB (%.1f %%), program beside them %.1f MiB, %.1f MiB "
               "with prompts, %.1f MiB in five processes, disk %.2f GB/s\n",
               Mib(weights_), Mib(draft_weights_),
               100 * static_cast<double>(draft_weights_) / static_cast<double>(weights_),
               Mib(program_), Mib(pair_program_), Mib(service_program_), whole.disk_bytes_s / 1e9);
  return absl::OkStatus();
}

// With every way that takes part and all prompts, while weights are streamed.
absl::Status Wall::MeasurePairProgram(WallWay::Kind kind, uint64_t* program) {
  const bool service = kind == WallWay::Kind::kService;
  WallRun run = setup_.run;
  run.contestant = service ? "service" : "pair";
  run.answer_tokens = std::min(run.answer_tokens, 4);
  run.ways.clear();
  bool draft = false;
  for (const WallWay& way : setup_.ways) {
    if (way.kind != kind) continue;
    run.ways.push_back(way.name);
    draft |= way.uses_draft();
  }
  if (run.ways.empty()) return absl::OkStatus();
  const uint64_t taken = draft ? draft_weights_ : 0;
  WITHY_ASSIGN_OR_RETURN(const uint64_t budget, BudgetOf(setup_.budgets.front()));
  run.budget_bytes = budget - std::min(taken, budget - 1);
  WITHY_ASSIGN_OR_RETURN(const WallResult pair, RunLimited(run, kUnlimited));
  const uint64_t weights = taken + (service ? run.budget_bytes : pair.weights_bytes);
  *program = pair.memory_bytes - std::min(weights, pair.memory_bytes);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Wall::BudgetOf(const std::string& percent) const {
  WITHY_ASSIGN_OR_RETURN(const double share, BudgetShare(percent));
  return static_cast<uint64_t>(static_cast<double>(weights_) * share);
}

// The same for all: 2 %, and room for the window in which the file is loaded and checked.
uint64_t Wall::LimitOf(uint64_t budget, uint64_t program) {
  return budget + budget / 50 + program + (uint64_t{16} << 20);
}

absl::Status Wall::AtBudget(const std::string& percent) {
  round_s_.clear();
  tasks_s_.clear();
  open_s_.clear();
  std::vector<WallWay> drafted, alone, shards, served, served_alone;
  for (const WallWay& way : setup_.ways) {
    switch (way.kind) {
      case WallWay::Kind::kAlone:
        WITHY_RETURN_IF_ERROR(RunAlone(percent, way));
        break;
      case WallWay::Kind::kPair:
        (way.uses_draft() ? drafted : alone).push_back(way);
        break;
      case WallWay::Kind::kShards:
        shards.push_back(way);
        break;
      case WallWay::Kind::kService:
        (way.uses_draft() ? served : served_alone).push_back(way);
        break;
    }
  }
  for (const auto& ways : {alone, drafted, shards, served_alone, served}) {
    if (!ways.empty()) WITHY_RETURN_IF_ERROR(RunPrompts(percent, ways));
  }
  AddRatios("wall", "tree", percent, round_s_, &figures_);
  AddRatios("service", "service", percent, tasks_s_, &figures_);
  if (setup_.run.prompts > 0 && setup_.run.open_prompts > 0) {
    AddRatios("wall_tasks", "tree", percent, tasks_s_, &figures_);
    AddRatios("wall_open", "tree", percent, open_s_, &figures_);
  }
  std::map<std::string, double> alone_s;
  for (const WallWay& way : setup_.ways) {
    if (way.kind == WallWay::Kind::kAlone) alone_s[way.name] = round_s_.at(way.name);
  }
  AddRatios("stream", "stream", percent, alone_s, &figures_);
  return absl::OkStatus();
}

absl::Status Wall::RunAlone(const std::string& percent, const WallWay& way) {
  WITHY_ASSIGN_OR_RETURN(const uint64_t budget, BudgetOf(percent));
  WallRun run = setup_.run;
  run.contestant = way.name;
  run.budget_bytes = budget;
  WITHY_ASSIGN_OR_RETURN(const WallResult result, RunLimited(run, LimitOf(budget)));
  round_s_[way.name] = tasks_s_[way.name] = open_s_[way.name] = result.token_s;
  ways_[percent][way.name].Add("s_token", result.token_s);
  ways_[percent][way.name].Add("tokens_a_pass", 1);
  std::fprintf(stderr, "  %s %% %-18s %8.3f s a token\n", percent.c_str(), way.name.c_str(),
               result.token_s);
  if (way.name != "stream" && way.name != "layers") return absl::OkStatus();
  figures_.Add(absl::StrCat(way.name, "_fraction_of_disk_", percent),
               result.read_bytes_s / result.disk_bytes_s);
  if (way.name != "stream") return absl::OkStatus();
  figures_.Add(absl::StrCat("disk_gb_s_", percent), result.disk_bytes_s / 1e9);
  figures_.Add(absl::StrCat("pass_mib_", percent), Mib(result.pass_bytes));
  const double used = static_cast<double>(result.memory_bytes) - static_cast<double>(program_);
  figures_.Add(absl::StrCat("memory_of_budget_", percent), used / static_cast<double>(budget));
  return absl::OkStatus();
}

// `ways`: of one kind, all with the draft in memory or all without. What the draft takes is of the
// budget.
absl::Status Wall::RunPrompts(const std::string& percent, const std::vector<WallWay>& ways) {
  WITHY_ASSIGN_OR_RETURN(const uint64_t budget, BudgetOf(percent));
  const bool draft = ways.front().uses_draft();
  const uint64_t taken = draft ? draft_weights_ : 0;
  if (taken >= budget) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--budgets ", percent, ": ", budget, " bytes are no more than the draft's weights alone (",
        taken, "): leave ways with a draft out or choose a larger budget"));
  }
  const bool service = ways.front().kind == WallWay::Kind::kService;
  const uint64_t program = service ? service_program_ : pair_program_;
  WallRun run = setup_.run;
  run.contestant = service ? "service" : "pair";
  run.budget_bytes = budget - taken;
  if (!draft) run.draft.clear();
  if (ways.front().kind == WallWay::Kind::kShards) {
    run.packed = setup_.shards;
    run.ways = {"sti"};
  } else {
    run.ways.clear();
    for (const WallWay& way : ways) run.ways.push_back(way.name);
  }
  WITHY_ASSIGN_OR_RETURN(const WallResult result,
                         RunLimited(run, service ? LimitOf(budget, program) : LimitOf(budget)));
  Take(percent, ways, result.answers);
  const double used = static_cast<double>(result.memory_bytes) - static_cast<double>(program);
  for (const WallWay& way : ways) {
    Samples& samples = ways_[percent][way.name];
    samples.Add("memory", used / static_cast<double>(budget));
    samples.Add("pass_mib", Mib(result.pass_bytes));
  }
  return absl::OkStatus();
}

void Wall::Take(const std::string& percent, const std::vector<WallWay>& ways,
                const std::vector<WallAnswer>& answers) {
  std::vector<WallAnswer> tasks, open;
  for (const WallAnswer& one : answers) {
    (one.prompt < setup_.run.prompts ? tasks : open).push_back(one);
  }
  for (const auto& [way, sum] : SumByWay(tasks)) tasks_s_[way] = sum.token_s();
  for (const auto& [way, sum] : SumByWay(open)) open_s_[way] = sum.token_s();
  for (const auto& [way, sum] : SumByWay(answers)) {
    if (ways.front().kind != WallWay::Kind::kService) round_s_[way] = sum.token_s();
    Samples& samples = ways_[percent][way];
    samples.Add("s_token", sum.token_s());
    samples.Add("tokens_a_pass", sum.tokens_a_pass());
    samples.Add("draft_share", sum.draft_ms / sum.ms);
    const double passes = std::max<double>(1, static_cast<double>(sum.passes));
    samples.Add("ahead", static_cast<double>(sum.window_drafted) / passes);
    samples.Add("rows", 1 + static_cast<double>(sum.drafted) / passes);
    if (sum.drafted > 0) samples.Add("accepted", sum.accepted_share());
    std::fprintf(stderr, "  %s %% %-18s %8.3f s a token, %5.2f tokens a pass\n", percent.c_str(),
                 way.c_str(), sum.token_s(), sum.tokens_a_pass());
  }
  for (const WallAnswer& one : answers) {
    const auto way =
        std::find_if(ways.begin(), ways.end(), [&](const WallWay& w) { return w.name == one.way; });
    if (way == ways.end()) continue;
    if (!way->lossless()) {
      lossy_[one.way][one.prompt] = one.answer.tokens;
      continue;
    }
    const auto [first, added] = truth_.try_emplace(one.prompt, one.answer.tokens);
    if (first->second != one.answer.tokens) ++mismatches_;
  }
}

absl::Status Wall::Cliff() {
  WallRun run = setup_.run;
  run.contestant = "resident";
  WITHY_ASSIGN_OR_RETURN(const WallResult fits, RunLimited(run, kUnlimited));
  run.contestant = "stream";
  run.budget_bytes = weights_ * kShortPercent / 100;
  WITHY_ASSIGN_OR_RETURN(const WallResult lacks, RunLimited(run, LimitOf(run.budget_bytes)));
  figures_.Add("resident_s_token", fits.token_s);
  figures_.Add("stream_s_token_94", lacks.token_s);
  figures_.Add("wait_share_94", lacks.wait_share);
  figures_.Add("cliff_6_percent", lacks.token_s / fits.token_s);
  return absl::OkStatus();
}

// Mean over prompts of how much of the target's answer a lossy way gave, 0..100.
double Wall::RougeOf(const std::string& way) const {
  double sum = 0;
  int count = 0;
  for (const auto& [prompt, tokens] : lossy_.at(way)) {
    const auto truth = truth_.find(prompt);
    if (truth == truth_.end()) continue;
    sum += RougeL(tokenizer_->Decode(truth->second), tokenizer_->Decode(tokens));
    ++count;
  }
  return count == 0 ? 0 : 100 * sum / count;
}

int Wall::ChangedByInflation() const {
  int changed = 0;
  for (const auto& [prompt, tokens] : truth_) {
    // Open prompts lead to text without end, in which one rounding changes all that follows.
    if (prompt >= setup_.run.prompts) break;
    const auto small = small_.find(prompt);
    if (small != small_.end() && small->second != tokens) ++changed;
  }
  return changed;
}

void Wall::PrintTable(const std::string& percent) const {
  const auto found = ways_.find(percent);
  if (found == ways_.end()) return;
  const double ours =
      found->second.contains("tree") ? found->second.at("tree").Median("s_token") : 0;
  std::fprintf(stderr,
               "\nbudget %s %%          s a token      low     high   n   of tree's  tokens a pass"
               "  rows a pass  accepted  drafting  ahead  memory  Rouge-L\n",
               percent.c_str());
  for (const WallWay& way : setup_.ways) {
    const Samples& samples = found->second.at(way.name);
    const Spread spread = Summarize(samples.At("s_token"));
    const auto show = [&](const char* key, int width, int digits) {
      if (samples.Has(key)) {
        std::fprintf(stderr, "  %*.*f", width, digits, samples.Median(key));
      } else {
        std::fprintf(stderr, "  %*s", width, "");
      }
    };
    std::fprintf(stderr, "%-20s %10.3f %8.3f %8.3f %3zu", way.name.c_str(), spread.median,
                 spread.low, spread.high, samples.At("s_token").size());
    std::fprintf(stderr, "  %10.2f", ours > 0 ? spread.median / ours : 0);
    show("tokens_a_pass", 13, 2);
    show("rows", 11, 1);
    show("accepted", 8, 2);
    show("draft_share", 8, 2);
    show("ahead", 5, 1);
    show("memory", 6, 3);
    if (lossy_.contains(way.name)) std::fprintf(stderr, "  %7.1f", RougeOf(way.name));
    std::fprintf(stderr, "\n");
  }
}

void Wall::PrintLine() const {
  nlohmann::ordered_json line;
  std::fprintf(stderr, "\n");
  figures_.Print(stderr);
  for (const std::string& key : figures_.keys()) line[key] = figures_.Median(key);
  const auto add = [&line](const char* key, double value) {
    std::fprintf(stderr, "%-36s %10.4f\n", key, value);
    line[key] = value;
  };
  for (const char* const key :
       {"wall_vs_best_linear", "wall_vs_linear_4", "stream_fraction_of_disk"}) {
    const double least = LeastOver(setup_.budgets, key, figures_);
    if (least > 0) add(key, least);
  }
  add("draft_bytes_share", static_cast<double>(draft_weights_) / static_cast<double>(weights_));
  if (!small_.empty()) add("acceptance_before_inflation", small_acceptance_);
  for (const std::string& percent : setup_.budgets) {
    for (const auto& [way, samples] : ways_.at(percent)) {
      line["s_token"][percent][way] = samples.Median("s_token");
      if (!samples.Has("accepted")) continue;
      line["accepted"][percent][way] = samples.Median("accepted");
      if (way == kAcceptanceWay && !line.contains("acceptance_after_inflation")) {
        add("acceptance_after_inflation", samples.Median("accepted"));
      }
    }
  }
  for (const auto& [way, answers] : lossy_) line["rouge_l"][way] = RougeOf(way);
  if (!truth_.empty()) {
    add("prompts", static_cast<double>(truth_.size()));
    add("mismatches", mismatches_);
    if (!small_.empty()) add("changed_by_inflation", ChangedByInflation());
  }
  std::printf("%s\n", line.dump().c_str());
}

}  // namespace withy::bench
