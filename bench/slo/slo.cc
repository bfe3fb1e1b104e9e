// withy-bench-slo: the end-to-end proof. Six apps with their SLOs, traces of Poisson arrivals,
// answers scored against the truth, a late answer is wrong. Ours through the running service in
// real time, and beside it on a simulated board with every baseline. Tables on stderr, one JSON
// object last on stdout. Neighbours: docs/method-slo-bench.md says what is simulated and what is
// real; ./withy bench slo starts the service. Source: ElastiLM section 5.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "bench/slo/slo_contestants.h"
#include "bench/slo/slo_figures.h"
#include "bench/slo/slo_measure.h"
#include "bench/slo/slo_options.h"
#include "bench/slo/slo_replay.h"
#include "bench/slo/slo_report.h"
#include "bench/slo/slo_trace.h"
#include "engine/cpu/thread_pool.h"
#include "engine/weights/packer.h"

ABSL_FLAG(std::string, pocket, "", "elastic GGUF that answers are judged with");
ABSL_FLAG(std::string, model, "", "the same, inflated: what is timed, and what the service serves");
ABSL_FLAG(std::string, tlm, "", "GGUF of the TLM");
ABSL_FLAG(std::string, prompts, "",
          "JSON lines with a user's own prompts, dealt out to the apps in turn, in place of the "
          "corpus's: right is then what the full level of --pocket itself answers");
ABSL_FLAG(std::vector<std::string>, small, {}, "GGUFs of dedicated small models");
ABSL_FLAG(std::string, baselines, "", "directory that withy-baselines wrote; empty: without them");
ABSL_FLAG(std::string, structural, "",
          "elastic GGUF made by another way of structural pruning; empty: --pocket");
ABSL_FLAG(std::string, address, "", "of the running service; empty: simulate only");
ABSL_FLAG(std::vector<std::string>, tokens, {},
          "of six apps bound to it, in the order of the tables, or of one that asks for all");
ABSL_FLAG(std::vector<std::string>, alphas, std::vector<std::string>({"0", "0.25", "-0.25"}),
          "skewness of the traces");
ABSL_FLAG(std::vector<std::string>, real, {},
          "traces that run through the service, by alpha, or all; default: the first of --alphas");
ABSL_FLAG(int, requests, 600, "of a trace");
ABSL_FLAG(double, load, 0.5, "of the full model's capacity that the trace asks for");
ABSL_FLAG(int, five_shot_percent, 100, "of the prompts have five worked examples");
ABSL_FLAG(uint64_t, seed, 1, "of traces");
ABSL_FLAG(std::vector<std::string>, tables, std::vector<std::string>({"grid", "e2e", "speedup"}),
          "further tables: grid, e2e, speedup, concise, steps, tlms, ablation; all; none");
ABSL_FLAG(std::vector<std::string>, tlms, {}, "NAME=FILE.gguf: other TLMs, for --tables=tlms");
ABSL_FLAG(std::string, unordered, "",
          "elastic GGUF with units in random order, for --tables=ablation");
ABSL_FLAG(std::string, fine, "", "elastic GGUF with levels every 5 %, for --tables=steps");
ABSL_FLAG(std::string, calls, "",
          "file of a line for each call of the last trace that runs through the service");
ABSL_FLAG(int, rounds, 9, "interleaved measurements of each time");
ABSL_FLAG(int, threads, 2, "threads");
ABSL_FLAG(std::string, work, "build/bench/slo", "directory of tables and packed models");

namespace withy::bench {
namespace {

using nlohmann::json;

constexpr size_t kServiceProbes = 120;  // idle calls that the service's own times are taken from

SloOptions OptionsFromFlags() {
  SloOptions options{.alphas = absl::GetFlag(FLAGS_alphas),
                     .real = absl::GetFlag(FLAGS_real),
                     .tables = absl::GetFlag(FLAGS_tables),
                     .tlms = absl::GetFlag(FLAGS_tlms),
                     .files = {{"pocket", absl::GetFlag(FLAGS_pocket)},
                               {"model", absl::GetFlag(FLAGS_model)},
                               {"tlm", absl::GetFlag(FLAGS_tlm)},
                               {"prompts", absl::GetFlag(FLAGS_prompts)},
                               {"structural", absl::GetFlag(FLAGS_structural)},
                               {"unordered", absl::GetFlag(FLAGS_unordered)},
                               {"fine", absl::GetFlag(FLAGS_fine)}},
                     .calls = absl::GetFlag(FLAGS_calls),
                     .requests = absl::GetFlag(FLAGS_requests),
                     .rounds = absl::GetFlag(FLAGS_rounds),
                     .threads = absl::GetFlag(FLAGS_threads),
                     .five_shot_percent = absl::GetFlag(FLAGS_five_shot_percent),
                     .load = absl::GetFlag(FLAGS_load)};
  for (const std::string& path : absl::GetFlag(FLAGS_small)) {
    options.files.emplace_back("small", path);
  }
  return options;
}

class Bench {
 public:
  absl::Status Run() {
    WITHY_RETURN_IF_ERROR(CheckOptions(OptionsFromFlags()));
    options_.dir = absl::GetFlag(FLAGS_work);
    options_.threads = absl::GetFlag(FLAGS_threads);
    options_.progress = [](const std::string& what, size_t done, size_t all) {
      std::fprintf(stderr, "\r%s: %zu of %zu%s", what.c_str(), done, all, done == all ? "\n" : "");
    };
    WITHY_RETURN_IF_ERROR(MakePrompts());
    // Answers are judged before anything is timed, so that times and traces follow each other
    // closely; the second time they are only looked up.
    WITHY_RETURN_IF_ERROR(OpenModel().status());
    WITHY_RETURN_IF_ERROR(Contestants::Make(files_, machine_, prompts_, tlm_, options_).status());
    WITHY_RETURN_IF_ERROR(Measure());
    WITHY_ASSIGN_OR_RETURN(contestants_,
                           Contestants::Make(files_, machine_, prompts_, tlm_, options_));
    for (const std::string& text : absl::GetFlag(FLAGS_alphas)) {
      WITHY_RETURN_IF_ERROR(RunTrace(text));
    }
    std::fprintf(stderr, "\n%d requests, load %.2f of the full service\n",
                 absl::GetFlag(FLAGS_requests), absl::GetFlag(FLAGS_load));
    PrintTraces(results_, contestants_->policies());
    json result = json::object();
    const absl::Status tables = Tables(&result);
    AddHeadline(results_, contestants_->policies(), TlmShare(), &result);
    std::printf("%s\n", result.dump().c_str());
    return tables;
  }

 private:
  absl::Status MakePrompts() {
    files_ = {.pocket = absl::GetFlag(FLAGS_pocket),
              .small = absl::GetFlag(FLAGS_small),
              .baselines = absl::GetFlag(FLAGS_baselines),
              .structural = absl::GetFlag(FLAGS_structural)};
    const std::string own = absl::GetFlag(FLAGS_prompts);
    size_t per_app = 1;
    for (const std::string& text : absl::GetFlag(FLAGS_alphas)) {
      double alpha = 0;
      (void)absl::SimpleAtod(text, &alpha);  // checked before
      const auto counts = RequestsByApp(static_cast<size_t>(absl::GetFlag(FLAGS_requests)), alpha);
      per_app = std::max(per_app, *std::max_element(counts.begin(), counts.end()));
    }
    WITHY_ASSIGN_OR_RETURN(
        prompts_,
        own.empty() ? HeldOutPrompts(files_.pocket, per_app, absl::GetFlag(FLAGS_five_shot_percent))
                    : OwnPrompts(files_.pocket, own, per_app, options_));
    const std::vector<std::string> wanted = absl::GetFlag(FLAGS_tables);
    const bool grids = Wanted(wanted, "grid") || Wanted(wanted, "e2e") || Wanted(wanted, "speedup");
    const std::vector<SloRatio> slos = grids ? AllSlos() : std::vector<SloRatio>(1);
    WITHY_ASSIGN_OR_RETURN(tlm_, ReadAll(absl::GetFlag(FLAGS_tlm), prompts_, slos, options_));
    return absl::OkStatus();
  }

  engine::ModelOptions TimedOptions() const {
    engine::ModelOptions model_options;
    model_options.threads = absl::GetFlag(FLAGS_threads);
    model_options.cache_dir = options_.dir + "/packed";
    return model_options;
  }

  absl::StatusOr<std::unique_ptr<engine::Model>> OpenModel() {
    WITHY_ASSIGN_OR_RETURN(std::unique_ptr<engine::Model> model,
                           engine::Model::Open(absl::GetFlag(FLAGS_model), TimedOptions()));
    machine_.info = model->info();
    machine_.levels.resize(machine_.info.levels.size());
    return model;
  }

  absl::Status Measure() {
    const engine::ModelOptions model_options = TimedOptions();
    const int rounds = absl::GetFlag(FLAGS_rounds);
    engine::ThreadPool pool(model_options.threads);
    WITHY_ASSIGN_OR_RETURN(
        const std::string packed,
        engine::EnsurePacked(absl::GetFlag(FLAGS_model), model_options.cache_dir, pool, nullptr));
    WITHY_ASSIGN_OR_RETURN(machine_.switching, MeasureSwitch(packed, model_options, rounds));
    WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Model> model, OpenModel());
    WITHY_ASSIGN_OR_RETURN(machine_.levels, MeasureVariants(*model, rounds));
    WITHY_ASSIGN_OR_RETURN(
        const std::unique_ptr<engine::Tlm> tlm,
        engine::Tlm::Open(absl::GetFlag(FLAGS_tlm), {.threads = model_options.threads}));
    BoardFacts& board = machine_.board;
    WITHY_ASSIGN_OR_RETURN(board.tlm, MeasureTlm(*tlm, prompts_.prompts.front().text, rounds));
    board.full = machine_.levels.back();
    board.cost = CalibratedCost(board.full);
    if (!service_.address.empty()) {
      WITHY_ASSIGN_OR_RETURN(service_times_, MeasureService(service_, prompts_, kServiceProbes));
      board.overhead_ms = service_times_.OverheadMs();
    }
    PrintMachine();
    return absl::OkStatus();
  }

  void PrintMachine() const {
    std::fprintf(stderr, "%s, %d threads; prefill of 128 rows, decode step, by level:\n",
                 machine_.info.name.c_str(), absl::GetFlag(FLAGS_threads));
    for (size_t i = 0; i < machine_.levels.size(); ++i) {
      const VariantTimes& times = machine_.levels[i];
      std::fprintf(stderr, "%5d %% %9.1f ms %9.2f ms\n", machine_.info.levels[i].percent,
                   times.PassMs(128, 0), times.PassMs(1, 128));
    }
    const double bytes = static_cast<double>(machine_.info.levels.back().weight_bytes);
    std::fprintf(stderr,
                 "reading 1 kB with the TLM %.2f ms; copying the full level %.1f ms, loading it "
                 "%.1f ms; the service adds %.2f ms to a call\n",
                 machine_.board.tlm.Ms(1024), machine_.switching.copy_ms_per_byte * bytes,
                 machine_.switching.load_ms_per_byte * bytes, machine_.board.overhead_ms);
    if (!service_.address.empty()) Tell("before the traces", service_times_);
  }

  std::vector<SloCall> CallsOf(double alpha) const {
    const auto requests = static_cast<size_t>(absl::GetFlag(FLAGS_requests));
    const uint64_t seed = absl::GetFlag(FLAGS_seed);
    std::vector<TraceRequest> trace = DrawRequests(requests, alpha, seed);
    double busy_ms = 0;
    for (const TraceRequest& request : trace) {
      const PromptFacts& prompt = prompts_.facts[prompts_.Index(request.app, request.prompt)];
      busy_ms += IdleFull(machine_.board, prompt).end_to_end_ms;
    }
    SetArrivals(busy_ms / static_cast<double>(requests) / absl::GetFlag(FLAGS_load), seed, &trace);
    std::vector<SloCall> calls;
    for (const TraceRequest& request : trace) {
      SloCall& call = calls.emplace_back();
      call.prompt = prompts_.Index(request.app, request.prompt);
      call.app = request.app;
      call.arrival_ms = request.arrival_ms;
      call.max_tokens = prompts_.max_tokens;
      call.slo.ttft_ratio = SloApps()[request.app].ttft_ratio;
      call.slo.tpot_ratio = SloApps()[request.app].tpot_ratio;
    }
    return calls;
  }

  absl::Status RunTrace(const std::string& text) {
    double alpha = 0;
    (void)absl::SimpleAtod(text, &alpha);  // checked before
    TraceResult& result = results_.emplace_back();
    result.alpha = text;
    const std::vector<SloCall> calls = CallsOf(alpha);
    if (alpha == 0 || trace_.empty()) trace_ = calls;
    const uint64_t seed = absl::GetFlag(FLAGS_seed);
    for (const Policy& policy : contestants_->policies()) {
      const std::vector<SloOutcome> outcomes =
          RunBoard(machine_.board, policy, prompts_.facts, calls, seed);
      result.simulated.push_back(ScoreOf(outcomes));
      if (result.ours_by_app.empty()) {
        result.ours_by_app = ScoresByApp(outcomes, calls, prompts_.per_app);
      }
    }
    if (service_.address.empty() || !RunsForReal(text)) return absl::OkStatus();
    return RunReal(calls, &result);
  }

  static bool RunsForReal(const std::string& alpha) {
    const std::vector<std::string> real = absl::GetFlag(FLAGS_real);
    return real.empty() ? alpha == absl::GetFlag(FLAGS_alphas).front() : Wanted(real, alpha);
  }

  // A line a call: what the caller saw, what the service said, and what was allowed.
  void WriteCalls(const std::vector<SloCall>& calls, const std::vector<policy::Latency>& full,
                  const std::vector<ReplayOutcome>& outcomes) const {
    std::ofstream out(absl::GetFlag(FLAGS_calls));
    for (size_t i = 0; i < calls.size(); ++i) {
      const SloCall& call = calls[i];
      const ReplayOutcome& outcome = outcomes[i];
      const PromptFacts& prompt = prompts_.facts[call.prompt];
      const policy::Latency& idle = full[i];
      const v1::Decision& decision = outcome.decision;
      const auto latency = [](const v1::Latency& of) {
        return json({{"ttft_ms", of.ttft_ms()}, {"tpot_ms", of.tpot_ms()}});
      };
      out << json({{"app", SloApps()[call.prompt / prompts_.per_app].name},
                   {"arrival_ms", call.arrival_ms},
                   {"prompt_tokens", prompt.tokens},
                   {"answer_tokens", prompt.answer_tokens},
                   {"idle_ttft_ms", idle.ttft_ms},
                   {"idle_tpot_ms", idle.tpot_ms},
                   {"tokens", outcome.tokens},
                   {"ttft_ms", outcome.caller.ttft_ms},
                   {"tpot_ms", outcome.caller.tpot_ms},
                   {"met", outcome.caller.met},
                   {"right", outcome.caller.right},
                   {"prompt_percent", outcome.caller.prompt_percent},
                   {"model_percent", outcome.caller.model_percent},
                   {"fell", outcome.caller.fell},
                   {"reason", v1::DecisionReason_Name(decision.reason())},
                   {"explanation", decision.explanation()},
                   {"predicted", latency(decision.predicted())},
                   {"full_model", latency(decision.full_model())},
                   {"by_service", latency(outcome.by_service.measured())},
                   {"met_by_service", outcome.by_service.slo_met()},
                   {"queue_ms", outcome.by_service.queue_ms()},
                   {"load_ms", outcome.by_service.load_ms()},
                   {"tlm_ms", outcome.by_service.tlm_ms()},
                   {"prefill_ms", outcome.by_service.prefill_ms()}})
                 .dump()
          << "\n";
    }
    if (!out.flush()) {
      std::fprintf(stderr, "%s cannot be written\n", absl::GetFlag(FLAGS_calls).c_str());
    }
  }

  absl::Status RunReal(const std::vector<SloCall>& calls, TraceResult* result) {
    std::vector<ReplayOutcome> outcomes =
        Replay(service_, prompts_, calls, [&](size_t done, size_t all) {
          options_.progress("alpha " + result->alpha + " through the service", done, all);
        });
    WITHY_ASSIGN_OR_RETURN(const ServiceTimes after,
                           MeasureService(service_, prompts_, kServiceProbes));
    Tell("after the trace", after);
    std::vector<policy::Latency> full;
    for (size_t i = 0; i < outcomes.size(); ++i) {
      full.push_back(
          IdleBetween(service_times_, after, prompts_.facts[calls[i].prompt], outcomes[i].tokens));
      Judge(calls[i], full[i], &outcomes[i]);
      if (prompts_.own_answers) JudgeByTable(calls[i], &outcomes[i]);
    }
    service_times_ = after;  // before the next trace
    if (!absl::GetFlag(FLAGS_calls).empty()) WriteCalls(calls, full, outcomes);
    std::vector<SloOutcome> seen;
    double read = 0;
    for (size_t i = 0; i < outcomes.size(); ++i) {
      const ReplayOutcome& outcome = outcomes[i];
      seen.push_back(outcome.caller);
      result->real_met_by_service += !outcome.failed && outcome.by_service.slo_met() ? 1 : 0;
      result->failed += outcome.failed ? 1 : 0;
      if (outcome.caller.tlm_ms <= 0) continue;
      read += 1;
      result->real_tlm_share += outcome.caller.tlm_ms / full[i].ttft_ms;
    }
    result->ran = true;
    result->real = ScoreOf(seen);
    result->real_by_app = ScoresByApp(seen, calls, prompts_.per_app);
    result->real_met_by_service /= std::max<double>(1, static_cast<double>(outcomes.size()));
    result->real_tlm_share /= std::max(1.0, read);
    return absl::OkStatus();
  }

  // An answer that is cut off cannot be compared with the model's own as a text.
  void JudgeByTable(const SloCall& call, ReplayOutcome* outcome) const {
    const Policy& ours = contestants_->ours();
    outcome->caller.right =
        !outcome->failed && RightAt(*ours.answers, *ours.family, call.prompt,
                                    outcome->caller.prompt_percent, outcome->model_percents);
  }

  // For the shortest and the longest prompt, and two lengths of answers.
  void Tell(const char* when, const ServiceTimes& times) const {
    constexpr uint32_t kShortAnswer = 4;
    constexpr uint32_t kLongAnswer = 16;
    const auto shorter = [](const PromptFacts& a, const PromptFacts& b) {
      return a.tokens < b.tokens;
    };
    const auto [brief, longest] =
        std::minmax_element(prompts_.facts.begin(), prompts_.facts.end(), shorter);
    const policy::Latency first = times.Idle(*brief, kShortAnswer);
    const policy::Latency last = times.Idle(*longest, kLongAnswer);
    std::fprintf(stderr,
                 "the full model through the service, %s: TTFT %.1f ms for %d tokens and %.1f ms "
                 "for %d; TPOT %.2f ms for %u tokens and %.2f ms for %u\n",
                 when, first.ttft_ms, brief->tokens, last.ttft_ms, longest->tokens, first.tpot_ms,
                 kShortAnswer, last.tpot_ms, kLongAnswer);
  }

  // One that fails is told and left out, so that the figures of the traces are not lost with it.
  // Errors: INTERNAL naming those.
  absl::Status Tables(json* tables) {
    const FigureInputs in{.files = files_,
                          .tlm_path = absl::GetFlag(FLAGS_tlm),
                          .machine = &machine_,
                          .prompts = &prompts_,
                          .tlm = &tlm_,
                          .contestants = contestants_.get(),
                          .options = options_,
                          .trace = trace_,
                          .other_tlms = absl::GetFlag(FLAGS_tlms),
                          .unordered = absl::GetFlag(FLAGS_unordered),
                          .fine = absl::GetFlag(FLAGS_fine),
                          .seed = absl::GetFlag(FLAGS_seed)};
    struct Table {
      const char* name;
      const char* key;
      std::function<absl::StatusOr<json>(const FigureInputs&)> make;
    };
    const Table all[] = {{"grid", "grid", GridFigure},
                         {"e2e", "end_to_end", EndToEndFigure},
                         {"speedup", "speedup", SpeedUpFigure},
                         {"concise", "concise", ConciseFigure},
                         {"steps", "steps", StepsFigure},
                         {"tlms", "tlms", TlmFigure},
                         {"ablation", "ablation", AblationFigure}};
    std::vector<std::string> missing;
    for (const Table& table : all) {
      if (!Wanted(absl::GetFlag(FLAGS_tables), table.name)) continue;
      // --tables=all means those that there are files for.
      if (table.name == std::string_view("tlms") && in.other_tlms.empty()) continue;
      absl::StatusOr<json> made = table.make(in);
      if (made.ok()) {
        (*tables)[table.key] = *std::move(made);
        continue;
      }
      missing.push_back(table.name);
      std::fprintf(stderr, "\ntable %s: %s\n", table.name, made.status().ToString().c_str());
    }
    if (missing.empty()) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("not made, for the errors above: the table ", absl::StrJoin(missing, ", ")));
  }

  // Over all prompts, each read once.
  double TlmShare() const {
    double sum = 0;
    for (const PromptFacts& prompt : prompts_.facts) {
      sum += machine_.board.tlm.Ms(prompt.text_bytes) / IdleFull(machine_.board, prompt).ttft_ms;
    }
    return sum / static_cast<double>(prompts_.facts.size());
  }

  ContestantFiles files_;
  AnswerOptions options_;
  ServiceAddress service_{absl::GetFlag(FLAGS_address), absl::GetFlag(FLAGS_tokens)};
  PromptSet prompts_;
  TlmTable tlm_;
  Machine machine_;
  ServiceTimes service_times_;
  std::unique_ptr<Contestants> contestants_;
  std::vector<SloCall> trace_;  // alpha = 0
  std::vector<TraceResult> results_;
};

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "The end-to-end proof; ./withy bench slo starts the service.\n"
      "usage: withy-bench-slo --pocket ELASTIC.gguf --model INFLATED.gguf --tlm TLM.gguf "
      "[--address unix:PATH --tokens TOKEN,…]",
      argc, argv, [] { return withy::bench::Bench().Run(); },
      [] {
        return !(absl::GetFlag(FLAGS_pocket).empty() || absl::GetFlag(FLAGS_model).empty() ||
                 absl::GetFlag(FLAGS_tlm).empty() ||
                 absl::GetFlag(FLAGS_address).empty() != absl::GetFlag(FLAGS_tokens).empty() ||
                 absl::GetFlag(FLAGS_alphas).empty());
      });
}
