// withy-bench-speculation-figures: what LLMCad's techniques bring one by one, without a service:
// time to verify against rows (its Figure 9), what switching between branches costs (Figure 7), the
// ablation (Figure 15), answers of lossy decoders (Table 4) and energy (Table 5), where the board
// has a meter. Prints tables on stderr and one JSON line last on stdout. Neighbours:
// speculation_decoder.h decodes; speculation.cc measures the service.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/program_flags.h"
#include "base/sensors/energy_meter.h"
#include "base/status.h"
#include "bench/engine/engine_bench.h"
#include "bench/quality/held_out.h"
#include "bench/quality/rouge.h"
#include "bench/samples.h"
#include "bench/service/processes.h"
#include "bench/speculation/model_tokens.h"
#include "bench/speculation/speculation_decoder.h"
#include "bench/speculation/speculation_models.h"
#include "engine/model/bundle.h"

ABSL_FLAG(std::string, model, "", "the target's GGUF file; default: the pocket model");
ABSL_FLAG(std::string, draft, "", "the draft's GGUF file; default: the pocket draft");
ABSL_FLAG(std::string, inflate, "", "published shape that the target is inflated to");
ABSL_FLAG(std::string, inflate_draft, "smollm2-135m",
          "with --inflate: published shape that the draft is inflated to; empty: it stays small");
ABSL_FLAG(bool, streamed, false, "half of what can be streamed of the target's weights is");
ABSL_FLAG(int, prompts, 100, "held-out prompts of ablation and lossy decoders");
ABSL_FLAG(int, tokens, 48, "most tokens of an answer");
ABSL_FLAG(int, rounds, 9, "of timing; the median counts");
ABSL_FLAG(int, threads, 2, "of target and draft");
ABSL_FLAG(std::string, dir, "", "where inflated and packed models are kept; default: nowhere");

namespace withy::bench {
namespace {

constexpr int32_t kDepth = 128;  // tokens before what is timed
constexpr int32_t kMostRows = 256;
constexpr int32_t kBranchTokens = 32;

double MedianMs(int rounds, const std::function<absl::Status()>& run, absl::Status* status) {
  std::vector<double> times;
  for (int round = 0; round <= rounds && status->ok(); ++round) {
    const int64_t started = Clock::Real().SteadyNanos();
    status->Update(run());
    if (round > 0) times.push_back(Millis(Clock::Real().SteadyNanos() - started));
  }
  return times.empty() ? 0 : Summarize(times).median;
}

class Figures {
 public:
  // `directory`: for files that are made.
  Figures(const engine::ModelBundle& target, const engine::ModelBundle& draft, std::string path,
          std::string directory)
      : target_(target),
        draft_(draft),
        path_(std::move(path)),
        directory_(std::move(directory)),
        rounds_(absl::GetFlag(FLAGS_rounds)),
        tokens_(absl::GetFlag(FLAGS_tokens)) {
    for (int32_t i = 0; i < kDepth; ++i) {
      context_.push_back((i * 7919) % target.model->info().vocab_size);
    }
  }

  absl::Status Measure() {
    WITHY_ASSIGN_OR_RETURN(questions_,
                           EncodeAll(target_, corpus::HeldOutSpec(), absl::GetFlag(FLAGS_prompts)));
    WITHY_RETURN_IF_ERROR(Verify());
    WITHY_RETURN_IF_ERROR(Branches());
    WITHY_RETURN_IF_ERROR(Ablate());
    return Lossy();
  }
  nlohmann::json& report() { return report_; }

 private:
  // Figure 9: one pass that verifies several tokens, and as many passes of one.
  absl::Status Verify() {
    ModelTokens model(*target_.model, kDepth + kMostRows);
    WITHY_RETURN_IF_ERROR(model.CatchUp(context_));
    std::vector<int32_t> tokens = context_;
    nlohmann::json by_rows;
    double one_ms = 0;
    std::fprintf(stderr, "rows verified   one pass ms   a pass each ms   ratio   (Figure 9)\n");
    for (const int32_t rows : {1, 2, 4, 6, 8, 10, 16, 32, 64, 128, 256}) {
      while (static_cast<int32_t>(tokens.size()) < kDepth - 1 + rows) {
        tokens.push_back(5 + static_cast<int32_t>(tokens.size()) % 100);
      }
      absl::Status status;
      const double ms = MedianMs(
          rounds_, [&] { return model.Compute(tokens, kDepth - 1).status(); }, &status);
      WITHY_RETURN_IF_ERROR(status);
      if (rows == 1) one_ms = ms;
      std::fprintf(stderr, "%13d %13.3f %16.3f %7.2f\n", rows, ms, rows * one_ms,
                   rows * one_ms / ms);
      by_rows[std::to_string(rows)] = ms;
      if (rows == 10) report_["verify_speedup_at_10"] = rows * one_ms / ms;
    }
    report_["verify_ms_by_rows"] = by_rows;
    return absl::OkStatus();
  }

  // Drafts kBranchTokens tokens behind the context, in one branch or two in turns.
  absl::Status GrowBranches(bool two, int32_t leaves_per_pass) {
    ModelTokens model(*draft_.model, kDepth + kBranchTokens);
    policy::DraftTree tree;
    std::vector<int32_t> ends = two ? std::vector<int32_t>{-1, -1} : std::vector<int32_t>{-1};
    for (int32_t turn = 0; tree.size() < kBranchTokens;) {
      std::vector<int32_t> leaves;
      for (int32_t i = 0; i < leaves_per_pass; ++i, ++turn) {
        int32_t& end = ends[static_cast<size_t>(turn) % ends.size()];
        end = tree.Add(end, 5 + tree.size(), 0.9, {});
        leaves.push_back(end);
      }
      WITHY_RETURN_IF_ERROR(model.ComputeNodes(kDepth, tree, leaves));
    }
    return absl::OkStatus();
  }

  // As engines without a mask do: one sequence, whose end is computed anew for the other branch.
  absl::Status RecomputeBranches() {
    ModelTokens model(*draft_.model, kDepth + kBranchTokens);
    std::vector<int32_t> branch = context_;
    for (int32_t token = 0; token < kBranchTokens; ++token) {
      if (token % 2 == 0) branch.push_back(5 + token);
      WITHY_RETURN_IF_ERROR(model.Compute(branch, kDepth, false).status());
    }
    return absl::OkStatus();
  }

  // Figure 7: the draft grows two branches in turns, a token each.
  absl::Status Branches() {
    absl::Status status;
    const auto time = [&](const std::function<absl::Status()>& grow) {
      return MedianMs(rounds_, grow, &status);
    };
    const double plain = time([&] { return GrowBranches(false, 1); });
    const double masked = time([&] { return GrowBranches(true, 1); });
    const double batched = time([&] { return GrowBranches(true, 2); });
    const double again = time([&] { return RecomputeBranches(); });
    WITHY_RETURN_IF_ERROR(status);
    std::fprintf(stderr,
                 "%d drafted tokens (Figure 7): one branch %.3f ms; two in turns by mask %.3f ms "
                 "(%+.1f %%), two leaves a pass %.3f ms (%+.1f %%), computed anew at each switch "
                 "%.3f ms (%+.1f %%)\n",
                 kBranchTokens, plain, masked, 100 * (masked / plain - 1), batched,
                 100 * (batched / plain - 1), again, 100 * (again / plain - 1));
    report_["branch_switch_overhead"] = {{"mask", masked / plain - 1},
                                         {"mask_two_leaves", batched / plain - 1},
                                         {"recompute", again / plain - 1}};
    return absl::OkStatus();
  }

  struct Sum {
    double ms = 0;
    int64_t tokens = 0, target_passes = 0, drafted = 0, accepted = 0;
    double rouge = 0;
    std::optional<double> joules;
  };

  // All prompts in one way; answers by prompt.
  absl::StatusOr<Sum> Run(engine::Model& target, const DecodeWay& way,
                          std::vector<std::string>* texts) {
    constexpr int32_t kMostTokens = 4096;
    WITHY_ASSIGN_OR_RETURN(const auto decoder, PairDecoder::Create({.target = target,
                                                                    .tokenizer = *target_.tokenizer,
                                                                    .chat = target_.chat,
                                                                    .draft = draft_.model.get()},
                                                                   kMostTokens));
    Sum sum;
    const double joules = Joules();
    for (const Question& question : questions_) {
      WITHY_ASSIGN_OR_RETURN(const DecodedAnswer answer,
                             decoder->Answer(question.messages, tokens_, way));
      sum.ms += answer.ms;
      sum.tokens += answer.decoded;
      sum.target_passes += answer.target_passes;
      sum.drafted += answer.drafted;
      sum.accepted += answer.accepted;
      texts->push_back(target_.tokenizer->Decode(answer.tokens));
    }
    if (meter_ != nullptr) sum.joules = Joules() - joules;
    return sum;
  }

  // Mean over prompts of how much of the target's answer is there; 0..100.
  double RougeOf(const std::vector<std::string>& texts) const {
    double sum = 0;
    for (size_t i = 0; i < texts.size(); ++i) sum += RougeL(truth_[i], texts[i]);
    return 100 * sum / static_cast<double>(std::max<size_t>(texts.size(), 1));
  }

  // Figure 15: techniques added one after the other.
  absl::Status Ablate() {
    const std::vector<std::pair<const char*, DecodeWay>> ways = {
        {"vanilla", {}},
        {"linear_4", {.chain = 4}},
        {"tree", {.tree = true}},
        {"tree_adaptive", {.tree = true, .adaptive = true}},
        {"service", {.speculation = policy::SpeculationMode::kAuto, .windows = true}}};
    std::fprintf(stderr,
                 "way (Figure 15)   ms a token   times as fast   tokens a pass   accepted\n");
    double vanilla_ms = 0;
    for (const auto& [name, way] : ways) {
      std::vector<std::string> texts;
      WITHY_ASSIGN_OR_RETURN(const Sum sum, Run(*target_.model, way, &texts));
      if (truth_.empty()) truth_ = texts;
      if (texts != truth_) return absl::InternalError(absl::StrCat("answers of ", name, " differ"));
      const double ms = sum.ms / static_cast<double>(sum.tokens);
      if (vanilla_ms == 0) vanilla_ms = ms;
      const double tokens_a_pass =
          static_cast<double>(sum.tokens) / static_cast<double>(sum.target_passes);
      const double accepted =
          sum.drafted == 0 ? 0
                           : static_cast<double>(sum.accepted) / static_cast<double>(sum.drafted);
      std::fprintf(stderr, "%-16s %12.3f %15.2f %15.2f %10.2f\n", name, ms, vanilla_ms / ms,
                   tokens_a_pass, accepted);
      report_["ablation"][name] = {{"ms_a_token", ms},
                                   {"speedup", vanilla_ms / ms},
                                   {"tokens_a_pass", tokens_a_pass},
                                   {"accepted_share", accepted}};
      ReportEnergy(name, sum);
    }
    return absl::OkStatus();
  }

  // Table 4: answers of decoders that are not lossless, as Rouge-L with the target's.
  absl::Status Lossy() {
    std::fprintf(stderr, "decoder (Table 4)               Rouge-L   ms a token\n");
    const auto show = [this](const std::string& name, const Sum& sum,
                             const std::vector<std::string>& texts) {
      const double rouge = RougeOf(texts);
      const double ms = sum.ms / static_cast<double>(sum.tokens);
      std::fprintf(stderr, "%-30s %8.1f %12.3f\n", name.c_str(), rouge, ms);
      report_["rouge_l"][name] = rouge;
      ReportEnergy(name, sum);
    };
    std::vector<std::string> texts;
    WITHY_ASSIGN_OR_RETURN(const Sum ours,
                           Run(*target_.model, {.tree = true, .adaptive = true}, &texts));
    show("ours", ours, texts);
    for (const auto& [fallback, rollback] : {std::pair(0.5, 5.0), std::pair(0.8, 2.0)}) {
      texts.clear();
      WITHY_ASSIGN_OR_RETURN(const Sum sum,
                             Run(*target_.model, {.big_little = {fallback, rollback}}, &texts));
      show(absl::StrCat("BLD fallback ", fallback, " rollback ", rollback), sum, texts);
    }
    if (absl::GetFlag(FLAGS_streamed)) return absl::OkStatus();
    for (const engine::GgmlType type : {engine::GgmlType::kQ4_0, engine::GgmlType::kQ4_1}) {
      WITHY_ASSIGN_OR_RETURN(const std::string path, Requantised(path_, type, directory_));
      engine::ModelOptions options;
      options.threads = absl::GetFlag(FLAGS_threads);
      options.cache_dir = directory_;
      WITHY_ASSIGN_OR_RETURN(const auto shards, engine::Model::Open(path, options));
      texts.clear();
      WITHY_ASSIGN_OR_RETURN(const Sum sum, Run(*shards, {}, &texts));
      show(absl::StrCat("STI-like, layers in ", std::string(engine::TypeName(type))), sum, texts);
    }
    return absl::OkStatus();
  }

  double Joules() const {
    return meter_ == nullptr ? 0 : meter_->Joules(Clock::Real().SteadyNanos());
  }
  void ReportEnergy(const std::string& name, const Sum& sum) {
    report_["energy_meter"] = meter_ == nullptr ? "none" : meter_->name();
    if (!sum.joules.has_value()) return;
    report_["joules_a_token"][name] = *sum.joules / static_cast<double>(sum.tokens);
  }

  const engine::ModelBundle& target_;
  const engine::ModelBundle& draft_;
  const std::string path_;
  const std::string directory_;
  const int rounds_;
  const int32_t tokens_;
  std::vector<int32_t> context_;
  std::vector<Question> questions_;
  std::vector<std::string> truth_;  // the target's answers, by prompt
  const std::unique_ptr<EnergyMeter> meter_ = EnergyMeter::Find();  // null: none
  nlohmann::json report_;
};

absl::Status Main() {
  WITHY_RETURN_IF_ERROR(CheckFlag("prompts", absl::GetFlag(FLAGS_prompts), 1, 100'000));
  WITHY_RETURN_IF_ERROR(CheckFlag("tokens", absl::GetFlag(FLAGS_tokens), 1, 1024));
  WITHY_RETURN_IF_ERROR(CheckFlag("rounds", absl::GetFlag(FLAGS_rounds), 1, 1000));
  WITHY_RETURN_IF_ERROR(CheckFlag("threads", absl::GetFlag(FLAGS_threads), 1, 1024));
  WITHY_ASSIGN_OR_RETURN(const TemporaryDirectory temporary,
                         TemporaryDirectory::Create("withy-figures"));
  const std::string asked = absl::GetFlag(FLAGS_dir);
  const std::string directory = asked.empty() ? temporary.path() : asked;
  WITHY_ASSIGN_OR_RETURN(
      const PairFiles paths,
      FindPair(absl::GetFlag(FLAGS_model), absl::GetFlag(FLAGS_draft), absl::GetFlag(FLAGS_inflate),
               absl::GetFlag(FLAGS_inflate_draft), directory));
  engine::ModelOptions options;
  options.threads = absl::GetFlag(FLAGS_threads);
  options.cache_dir = directory;
  WITHY_ASSIGN_OR_RETURN(const engine::ModelBundle draft, engine::OpenBundle(paths.draft, options));
  if (absl::GetFlag(FLAGS_streamed)) {
    WITHY_ASSIGN_OR_RETURN(options.weight_budget_bytes, HalfStreamedBudget(paths.target));
  }
  WITHY_ASSIGN_OR_RETURN(const engine::ModelBundle target,
                         engine::OpenBundle(paths.target, options));
  WITHY_RETURN_IF_ERROR(CheckVocabularies(target, draft, paths));
  Figures figures(target, draft, paths.target, directory);
  WITHY_RETURN_IF_ERROR(figures.Measure());
  figures.report()["draft_bytes_share"] = static_cast<double>(draft.model->info().weight_bytes) /
                                          static_cast<double>(target.model->info().weight_bytes);
  if (figures.report()["energy_meter"] == "none") {
    std::fprintf(stderr, "energy (Table 5): this machine has no meter that can be read\n");
  }
  std::printf("%s\n", figures.report().dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "What each technique of speculation brings, without a service.\n"
      "usage: withy-bench-speculation-figures [--inflate tinyllama-1.1b] [--streamed]",
      argc, argv, withy::bench::Main);
}
