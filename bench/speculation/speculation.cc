// withy-bench-speculation: starts services of five processes and shows that speculation changes no
// token (greedy and sampled, each source, several sizes of trees, calls beside each other), and how
// much faster it decodes in memory: the pocket pair or other files with --model and --draft, and a
// general model with --real by kind of prompt. Prints a table on stderr and one JSON line last on
// stdout. Neighbours: speculation_service.h runs the service, speculation_prompts.h has the prompts
// of the general model.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "bench/samples.h"
#include "bench/service/own_service.h"
#include "bench/service/prompt_wire.h"
#include "bench/speculation/speculation_models.h"
#include "bench/speculation/speculation_prompts.h"
#include "offline/corpus/generator.h"

ABSL_FLAG(std::string, model, "", "the target's GGUF file; default: the pocket model");
ABSL_FLAG(std::string, draft, "", "the draft's GGUF file; default: the pocket draft");
ABSL_FLAG(std::string, real, "", "GGUF file of a general model, for the prompts by kind");
ABSL_FLAG(std::string, head, "",
          "GGUF file of a draft head of --real, or without --real of --model: one more source");
ABSL_FLAG(std::string, inflate, "", "published shape that the target is inflated to");
ABSL_FLAG(std::string, inflate_draft, "smollm2-135m",
          "with --inflate: published shape that the draft is inflated to; empty: it stays small");
ABSL_FLAG(int, prompts, 1000, "held-out prompts that are compared; 0: none");
ABSL_FLAG(int, answer_tokens, 64, "most tokens of an answer");
ABSL_FLAG(bool, streamed, true, "answers are compared with half of the weights streamed, too");
ABSL_FLAG(int, timed, 200, "held-out prompts that are timed; 0: none");
ABSL_FLAG(
    int, windows, 0,
    "held-out prompts with long answers that are timed with half of the weights streamed, with "
    "and without drafts in the windows; 0: none");
ABSL_FLAG(int, rounds, 3, "of timing; the median counts");
ABSL_FLAG(int, callers, 4, "calls at once when answers are compared");
ABSL_FLAG(int, real_tokens, 128, "of an answer of the general model");
ABSL_FLAG(int, threads, 2, "of target and draft");
ABSL_FLAG(std::string, packed_dir, "", "where packed models are kept between runs");

namespace withy::bench {
namespace {

using Sources = std::vector<std::pair<const char*, v1::Speculation>>;

// Whether the draft head is of the general model, or else of the pair's target.
bool HasHead(bool real) {
  return !absl::GetFlag(FLAGS_head).empty() && absl::GetFlag(FLAGS_real).empty() != real;
}

Sources SourcesOfPair() {
  Sources sources = {{"lookup", v1::SPECULATION_LOOKUP},
                     {"prefix", v1::SPECULATION_PREFIX},
                     {"draft", v1::SPECULATION_DRAFT},
                     {"auto", v1::SPECULATION_AUTO}};
  if (HasHead(/*real=*/false)) sources.emplace_back("head", v1::SPECULATION_HEAD);
  return sources;
}

struct Compared {
  int prompts = 0;  // prompt, sampling, source and tree size
  int mismatches = 0;
  uint64_t drafted = 0;
  uint64_t accepted = 0;
};

v1::GenerateRequest RequestFor(int index) {
  v1::GenerateRequest request;
  static const corpus::Generator generator(corpus::HeldOutSpec());
  FillPrompt(generator.At(static_cast<uint64_t>(index)), request.mutable_prompt());
  request.mutable_limits()->set_max_tokens(
      static_cast<uint32_t>(absl::GetFlag(FLAGS_answer_tokens)));
  v1::Sampling& sampling = *request.mutable_sampling();
  sampling.set_temperature(0);
  if (index % 2 == 1) {
    sampling.set_temperature(index % 4 == 1 ? 0.7f : 1.3f);
    sampling.set_top_p(index % 3 == 0 ? 0.9f : 1.0f);
    sampling.set_repetition_penalty(index % 5 == 0 ? 1.2f : 1.0f);
    sampling.set_repetition_window(64);
    sampling.set_seed(static_cast<uint64_t>(index));
  }
  return request;
}

// The pair that is measured; set once.
PairFiles& ThePair() {
  static PairFiles pair;
  return pair;
}

// How the service is set up, beside its models.
struct Setup {
  std::string target = ThePair().target;
  bool has_head = HasHead(/*real=*/false);
  int tree_rows = 0;                 // 0: the default
  bool always = false;               // verifies all that is drafted
  uint64_t weight_budget_bytes = 0;  // of the target; 0: all weights stay in memory
  bool windows = true;               // drafts while a pass waits for weights
};

absl::StatusOr<std::unique_ptr<OwnService>> Start(const Setup& setup) {
  const std::string threads = absl::StrCat("threads: ", absl::GetFlag(FLAGS_threads));
  std::string target = absl::StrCat(threads, " path: \"", setup.target, "\"");
  if (setup.has_head) {
    absl::StrAppend(&target, " head_path: \"", absl::GetFlag(FLAGS_head), "\"");
  }
  if (setup.tree_rows > 0) absl::StrAppend(&target, " tree_rows: ", setup.tree_rows);
  if (setup.weight_budget_bytes > 0) {
    absl::StrAppend(&target, " weight_budget_bytes: ", setup.weight_budget_bytes);
  }
  if (!setup.windows) absl::StrAppend(&target, " speculation_windows_off: true");
  std::map<std::string, std::string> programs;
  if (setup.always) programs["model_worker"] = "withy-bench-always-worker";
  return OwnService::Start(
      {.orchestrator = "probe_off: true",
       .model = target,
       .draft = absl::StrCat(threads, " idle_upgrade_s: 0 path: \"", ThePair().draft, "\""),
       .packed_dir = absl::GetFlag(FLAGS_packed_dir),
       .programs = programs});
}

// Asks all prompts, several at once; by prompt.
absl::StatusOr<std::vector<ServedAnswer>> AskAll(OwnService& service, int count,
                                                 v1::Speculation speculation) {
  std::vector<ServedAnswer> answers(static_cast<size_t>(count));
  std::vector<absl::Status> statuses(static_cast<size_t>(absl::GetFlag(FLAGS_callers)));
  std::vector<std::thread> callers;
  for (size_t caller = 0; caller < statuses.size(); ++caller) {
    callers.emplace_back([&, caller] {
      for (size_t i = caller; i < answers.size(); i += statuses.size()) {
        v1::GenerateRequest request = RequestFor(static_cast<int>(i));
        request.set_speculation(speculation);
        auto answer = service.Ask(request);
        if (!answer.ok()) {
          statuses[caller] = answer.status();
          return;
        }
        answers[i] = *std::move(answer);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const absl::Status& status : statuses) WITHY_RETURN_IF_ERROR(status);
  return answers;
}

void Add(const std::vector<ServedAnswer>& plain, const std::vector<ServedAnswer>& drafted,
         Compared* sum) {
  for (size_t i = 0; i < plain.size(); ++i) {
    ++sum->prompts;
    if (plain[i].tokens != drafted[i].tokens ||
        plain[i].finished.text() != drafted[i].finished.text()) {
      ++sum->mismatches;
      std::fprintf(stderr, "prompt %zu: \"%s\" instead of \"%s\"\n", i,
                   drafted[i].finished.text().c_str(), plain[i].finished.text().c_str());
    }
    for (const v1::SourceReport& source : drafted[i].finished.speculation().sources()) {
      sum->drafted += source.drafted_tokens();
      sum->accepted += source.accepted_tokens();
    }
  }
}

double Share(uint64_t part, uint64_t all) {
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

// One way to verify: how large trees are, and whether weights are streamed.
struct Verification {
  int tree_rows = 0;
  uint64_t weight_budget_bytes = 0;
  int prompts = 0;  // of all
};

// Every source; `plain` is asked for once.
absl::Status CompareSources(const Verification& way, std::vector<ServedAnswer>* plain,
                            Compared* all, nlohmann::json* accepted) {
  Setup options;
  options.tree_rows = way.tree_rows;
  options.weight_budget_bytes = way.weight_budget_bytes;
  options.always = true;
  WITHY_ASSIGN_OR_RETURN(const auto service, Start(options));
  if (plain->empty()) {
    WITHY_ASSIGN_OR_RETURN(*plain, AskAll(*service, way.prompts, v1::SPECULATION_OFF));
  }
  const std::vector<ServedAnswer> expected(plain->begin(), plain->begin() + way.prompts);
  const char* const place = way.weight_budget_bytes > 0 ? "streamed" : "resident";
  for (const auto& [name, source] : SourcesOfPair()) {
    Compared one;
    WITHY_ASSIGN_OR_RETURN(const auto answers, AskAll(*service, way.prompts, source));
    Add(expected, answers, &one);
    WITHY_RETURN_IF_ERROR(service->ChangeApp());
    std::fprintf(stderr,
                 "%s, %-8s trees of %3d rows: %5d prompts, %d mismatches, %.2f of %llu drafted "
                 "tokens accepted\n",
                 place, name, way.tree_rows, one.prompts, one.mismatches,
                 Share(one.accepted, one.drafted), static_cast<unsigned long long>(one.drafted));
    if (accepted != nullptr) (*accepted)[name] = Share(one.accepted, one.drafted);
    all->prompts += one.prompts;
    all->mismatches += one.mismatches;
  }
  return absl::OkStatus();
}

// Every source with trees of several sizes, resident and streamed, verified whatever they cost.
absl::Status CompareAnswers(nlohmann::json* report) {
  const int count = absl::GetFlag(FLAGS_prompts);
  if (count == 0) return absl::OkStatus();
  constexpr int kTreeRows = 17;
  Compared all, streamed;
  nlohmann::json accepted;
  std::vector<ServedAnswer> plain;
  // Trees of this size see all prompts, those of other sizes a share.
  WITHY_RETURN_IF_ERROR(
      CompareSources({.tree_rows = kTreeRows, .prompts = count}, &plain, &all, &accepted));
  for (const int rows : {4, 256}) {
    WITHY_RETURN_IF_ERROR(CompareSources({.tree_rows = rows, .prompts = std::max(1, count / 4)},
                                         &plain, &all, nullptr));
  }
  if (absl::GetFlag(FLAGS_streamed)) {
    Verification way{.tree_rows = kTreeRows, .prompts = count};
    WITHY_ASSIGN_OR_RETURN(way.weight_budget_bytes, HalfStreamedBudget(ThePair().target));
    WITHY_RETURN_IF_ERROR(CompareSources(way, &plain, &streamed, nullptr));
  }
  (*report)["prompts"] = count;
  (*report)["comparisons"] = all.prompts + streamed.prompts;
  (*report)["comparisons_streamed"] = streamed.prompts;
  (*report)["mismatches"] = all.mismatches + streamed.mismatches;
  (*report)["accepted_share"] = accepted;
  return absl::OkStatus();
}

// Times some requests with each setting, in turns; returns the median over rounds of the ratio of
// plain decoding time to that of each of `settings`.
absl::StatusOr<std::map<std::string, double>> Speedups(
    OwnService& service, const std::vector<v1::GenerateRequest>& requests,
    const std::vector<std::pair<const char*, v1::Speculation>>& settings) {
  std::map<std::string, std::vector<double>> ratios;
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    // What earlier rounds said must not be looked up.
    WITHY_RETURN_IF_ERROR(service.ChangeApp());
    for (const auto& [name, speculation] : settings) {
      WITHY_RETURN_IF_ERROR(service.ChangeApp());
      double with = 0, without = 0;
      for (size_t i = 0; i < requests.size(); ++i) {
        v1::GenerateRequest request = requests[i];
        // Plain and drafted take turns, the first of them, too.
        for (const bool drafted : {i % 2 == 0, i % 2 != 0}) {
          request.set_speculation(drafted ? speculation : v1::SPECULATION_OFF);
          WITHY_ASSIGN_OR_RETURN(const ServedAnswer answer, service.Ask(request));
          (drafted ? with : without) += answer.decode_ms;
        }
      }
      if (with > 0) ratios[name].push_back(without / with);
    }
  }
  std::map<std::string, double> medians;
  for (const auto& [name, values] : ratios) medians[name] = Summarize(values).median;
  return medians;
}

v1::GenerateRequest GreedyPrompt(int index) {
  v1::GenerateRequest request = RequestFor(index);
  request.mutable_sampling()->set_temperature(0);
  return request;
}

// Of ten prompts the one with the longest answer: most answers of the corpus have a few tokens.
int LongestOfTen(int group) {
  const corpus::Generator generator(corpus::HeldOutSpec());
  int longest = 10 * group;
  for (int i = longest; i < 10 * (group + 1); ++i) {
    const auto length = [&](int at) {
      return generator.At(static_cast<uint64_t>(at)).answer.size();
    };
    if (length(i) > length(longest)) longest = i;
  }
  return longest;
}

absl::Status TimeResident(nlohmann::json* report, double* worst) {
  const int count = absl::GetFlag(FLAGS_timed);
  if (count == 0) return absl::OkStatus();
  WITHY_ASSIGN_OR_RETURN(const auto service, Start({}));
  std::vector<v1::GenerateRequest> held_out, noise, long_answers;
  for (int i = 0; i < count; ++i) {
    v1::GenerateRequest request = GreedyPrompt(2 * i);
    held_out.push_back(request);
    if (i % 4 == 0) long_answers.push_back(GreedyPrompt(LongestOfTen(i / 4)));
    // At this temperature no draft is of use.
    request.mutable_sampling()->set_temperature(3);
    request.mutable_sampling()->set_seed(static_cast<uint64_t>(i));
    if (noise.size() < static_cast<size_t>(count) / 4 + 1) noise.push_back(request);
  }
  WITHY_ASSIGN_OR_RETURN(const auto speedups, Speedups(*service, held_out, SourcesOfPair()));
  WITHY_ASSIGN_OR_RETURN(const auto longest, Speedups(*service, long_answers, SourcesOfPair()));
  WITHY_ASSIGN_OR_RETURN(const auto useless, Speedups(*service, noise, SourcesOfPair()));
  nlohmann::json by_source, by_useless, by_longest;
  for (const auto& [name, value] : speedups) {
    std::fprintf(stderr,
                 "held-out prompts, %-8s %5.2f times as fast; long answers %5.2f; useless drafts "
                 "%5.3f\n",
                 name.c_str(), value, longest.at(name), useless.at(name));
    by_source[name] = value;
    by_useless[name] = useless.at(name);
    by_longest[name] = longest.at(name);
    *worst = std::min({*worst, value, useless.at(name), longest.at(name)});
  }
  (*report)["long_answers_speedup_by_source"] = by_longest;
  (*report)["resident_speedup"] = by_source.value("auto", 0.0);
  (*report)["resident_speedup_by_source"] = by_source;
  (*report)["useless_speedup_by_source"] = by_useless;
  return absl::OkStatus();
}

// The target's weights half streamed, drafted by the low level and by the draft model with and
// without windows: two services, which take turns.
absl::Status TimeWindows(nlohmann::json* report) {
  const int count = absl::GetFlag(FLAGS_windows);
  if (count == 0) return absl::OkStatus();
  struct Way {
    const char* name;
    bool windows;
    v1::Speculation speculation;
    double ms = 0;
    double tokens = 0;
    double passes = 0;
    double drafted = 0;  // in windows
    double kept = 0;
  };
  std::vector<Way> ways = {{"plain", false, v1::SPECULATION_OFF},
                           {"prefix", false, v1::SPECULATION_PREFIX},
                           {"prefix_windows", true, v1::SPECULATION_PREFIX},
                           {"draft", false, v1::SPECULATION_DRAFT},
                           {"draft_windows", true, v1::SPECULATION_DRAFT}};
  Setup options;
  WITHY_ASSIGN_OR_RETURN(options.weight_budget_bytes, HalfStreamedBudget(options.target));
  std::map<bool, std::unique_ptr<OwnService>> services;
  for (const bool windows : {false, true}) {
    options.windows = windows;
    WITHY_ASSIGN_OR_RETURN(services[windows], Start(options));
  }
  int mismatches = 0;
  for (int i = 0; i < count; ++i) {
    std::vector<int32_t> expected;
    for (size_t turn = 0; turn < ways.size(); ++turn) {
      // "plain" is first, so that the others are compared with it.
      Way& way = ways[turn == 0 ? 0 : 1 + (turn + static_cast<size_t>(i)) % (ways.size() - 1)];
      v1::GenerateRequest request = GreedyPrompt(LongestOfTen(i));
      request.set_speculation(way.speculation);
      WITHY_ASSIGN_OR_RETURN(const ServedAnswer answer, services[way.windows]->Ask(request));
      if (turn == 0) expected = answer.tokens;
      mismatches += answer.tokens == expected ? 0 : 1;
      way.ms += answer.decode_ms;
      way.tokens += static_cast<double>(answer.tokens.size()) - 1;
      way.passes += answer.finished.speculation().target_passes();
      way.drafted += answer.finished.speculation().window_drafted_tokens();
      way.kept += answer.finished.speculation().window_kept_tokens();
    }
  }
  for (const Way& way : ways) {
    const double rate = 1e3 * way.tokens / way.ms;
    std::fprintf(
        stderr,
        "half of the weights streamed, %-14s %6.2f tokens/s; a pass has %.2f tokens, and %.2f are "
        "drafted in its windows, of which %.2f stay\n",
        way.name, rate, way.tokens / way.passes, way.drafted / way.passes, way.kept / way.passes);
    (*report)["streamed_tokens_per_s"][way.name] = rate;
  }
  const auto gain = [&](size_t with, size_t without) {
    return (ways[without].ms / ways[without].tokens) / (ways[with].ms / ways[with].tokens);
  };
  (*report)["windows_speedup"] = gain(2, 1);
  (*report)["draft_windows_speedup"] = gain(4, 3);
  (*report)["mismatches"] = report->value("mismatches", 0) + mismatches;
  return absl::OkStatus();
}

absl::Status TimeReal(nlohmann::json* report, double* worst) {
  Setup options;
  options.target = absl::GetFlag(FLAGS_real);
  options.has_head = HasHead(/*real=*/true);
  if (options.target.empty()) return absl::OkStatus();
  WITHY_ASSIGN_OR_RETURN(const auto service, Start(options));
  Sources sources = {{"auto", v1::SPECULATION_AUTO}};
  if (options.has_head) sources.emplace_back("head", v1::SPECULATION_HEAD);
  nlohmann::json by_kind, by_head;
  double sum = 0;
  for (const PromptKind& kind : SpeculationPrompts()) {
    std::vector<v1::GenerateRequest> requests;
    for (const std::string& prompt : kind.prompts) {
      requests.push_back(
          GreedyRequest(prompt, static_cast<uint32_t>(absl::GetFlag(FLAGS_real_tokens))));
    }
    WITHY_ASSIGN_OR_RETURN(const auto speedups, Speedups(*service, requests, sources));
    const double speedup = speedups.at("auto");
    std::fprintf(stderr, "%-12s %5.2f times as fast\n", std::string(kind.name).c_str(), speedup);
    by_kind[std::string(kind.name)] = speedup;
    sum += speedup;
    *worst = std::min(*worst, speedup);
    if (!options.has_head) continue;
    by_head[std::string(kind.name)] = speedups.at("head");
    std::fprintf(stderr, "%-12s %5.2f times as fast by the draft head alone\n",
                 std::string(kind.name).c_str(), speedups.at("head"));
    *worst = std::min(*worst, speedups.at("head"));
  }
  (*report)["real_speedup_by_kind"] = by_kind;
  if (options.has_head) (*report)["real_head_speedup_by_kind"] = by_head;
  (*report)["real_speedup_mean"] = sum / static_cast<double>(SpeculationPrompts().size());
  return absl::OkStatus();
}

absl::Status Main() {
  WITHY_RETURN_IF_ERROR(CheckFlag("answer_tokens", absl::GetFlag(FLAGS_answer_tokens), 1, 1024));
  WITHY_ASSIGN_OR_RETURN(const TemporaryDirectory temporary,
                         TemporaryDirectory::Create("withy-inflated"));
  const std::string packed_dir = absl::GetFlag(FLAGS_packed_dir);
  WITHY_ASSIGN_OR_RETURN(ThePair(),
                         FindPair(absl::GetFlag(FLAGS_model), absl::GetFlag(FLAGS_draft),
                                  absl::GetFlag(FLAGS_inflate), absl::GetFlag(FLAGS_inflate_draft),
                                  packed_dir.empty() ? temporary.path() : packed_dir));
  nlohmann::json report;
  double worst = 1e9;
  WITHY_RETURN_IF_ERROR(CompareAnswers(&report));
  WITHY_RETURN_IF_ERROR(TimeResident(&report, &worst));
  WITHY_RETURN_IF_ERROR(TimeWindows(&report));
  WITHY_RETURN_IF_ERROR(TimeReal(&report, &worst));
  if (worst < 1e9) report["resident_worst"] = worst;
  std::printf("%s\n", report.dump().c_str());
  if (report.value("mismatches", 0) == 0) return absl::OkStatus();
  return absl::InternalError("answers differ with speculation");
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "Whether speculation changes answers, and how much faster it makes them.\n"
      "usage: withy-bench-speculation [--real FILE.gguf] [--model FILE.gguf --draft FILE.gguf] "
      "[--inflate SHAPE]",
      argc, argv, withy::bench::Main);
}
