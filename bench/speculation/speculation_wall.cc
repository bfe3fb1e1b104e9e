// withy-bench-wall: the memory wall. A model whose weights do not fit into a budget decodes in a
// memory cgroup: with token trees, with one token a pass, and as others do it
// (speculation_wall_figures.h lists the ways). Every contestant is a process of its own under the
// same limit. Prints tables on stderr and one JSON line last on stdout. Neighbours:
// speculation_wall_measure.h compares, speculation_wall_run.h is a contestant.
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "base/program_flags.h"
#include "base/progress_line.h"
#include "base/status.h"
#include "bench/speculation/speculation_models.h"
#include "bench/speculation/speculation_wall_measure.h"
#include "engine/cpu/thread_pool.h"
#include "engine/weights/packed_file.h"
#include "engine/weights/packer.h"

ABSL_FLAG(std::string, model, "",
          "the target, a GGUF or packed file; default: the pocket model in the shape of --inflate");
ABSL_FLAG(std::string, draft, "",
          "the draft; default: the pocket draft in that of --inflate_draft");
ABSL_FLAG(std::string, inflate, "llama3.2-3b",
          "without --model: published shape that the target is inflated to");
ABSL_FLAG(std::string, inflate_draft, "",
          "likewise of the draft; default: the smallest with 10 % of the target's bytes");
ABSL_FLAG(std::string, dir, "",
          "directory of inflated and packed files, which are made if they are not there; default: "
          "as the engine's");
ABSL_FLAG(std::vector<std::string>, ways,
          std::vector<std::string>({"stream", "mmap", "layers", "tree", "line:2", "line:4",
                                    "line:8", "line:16", "line:32", "single", "sti"}),
          "what is compared; see bench/speculation/speculation_wall_figures.h");
ABSL_FLAG(std::vector<std::string>, budgets, std::vector<std::string>({"45", "25"}),
          "budgets in per cent of the weights");
ABSL_FLAG(int, prompts, 6, "held-out prompts of the ways that answer");
ABSL_FLAG(std::string, prompt_file, "",
          "JSON lines with prompts of your own, {\"prompt\": \"...\"} or {\"messages\": [...]}, in "
          "place of held-out ones: of a general model");
ABSL_FLAG(int, open_prompts, 1,
          "further ones behind which the model goes on to --answer_tokens, beyond the end of its "
          "answer");
ABSL_FLAG(int, answer_tokens, 32, "most tokens of an answer");
ABSL_FLAG(int, tokens, 4, "decoded tokens of stream, mmap, layers and peer");
ABSL_FLAG(int, rounds, 3, "in each of which every way has a turn");
ABSL_FLAG(int, threads, 2, "compute threads");
ABSL_FLAG(bool, cliff, true, "measures 6 % short of memory, too");
ABSL_FLAG(bool, make, false, "makes the files, and measures nothing");
ABSL_FLAG(std::string, peer, "", "a llama-bench program; adds the way \"peer\"");
ABSL_FLAG(std::string, contestant, "",
          "run one contestant in this process: resident, mmap, stream, layers, peer, pair or "
          "service");
ABSL_FLAG(uint64_t, budget_bytes, 0, "of --contestant");
ABSL_FLAG(std::string, gguf, "", "of --contestant=peer");
ABSL_FLAG(std::string, cgroup, "", "of --contestant: where its memory is read");

namespace withy::bench {
namespace {

// A smaller draft would do less work than one of a real pair does.
std::string DraftShape(const std::string& target_shape) {
  return target_shape == "llama3.2-3b" ? "smollm2-360m" : "smollm2-135m";
}

absl::StatusOr<PairFiles> FindFiles(const std::string& directory) {
  const PairFiles given{absl::GetFlag(FLAGS_model), absl::GetFlag(FLAGS_draft)};
  if (!given.target.empty()) return given;
  const std::string shape = absl::GetFlag(FLAGS_inflate);
  std::string draft_shape = absl::GetFlag(FLAGS_inflate_draft);
  if (draft_shape.empty()) draft_shape = DraftShape(shape);
  if (!given.draft.empty()) draft_shape.clear();
  return FindPair("", given.draft, shape, draft_shape, directory);
}

absl::StatusOr<std::string> Packed(const std::string& path, const std::string& directory) {
  if (path.empty() || engine::PackedFile::LooksPacked(path)) return path;
  engine::ThreadPool pool(absl::GetFlag(FLAGS_threads));
  StepProgress line;
  return engine::EnsurePacked(path, directory, pool, [&](double done, std::string_view) {
    line.Show("pack", "packing " + path, std::lround(1000 * done), 1000);
  });
}

WallRun RunOfFlags() {
  return {.packed = absl::GetFlag(FLAGS_model),
          .contestant = absl::GetFlag(FLAGS_contestant),
          .budget_bytes = absl::GetFlag(FLAGS_budget_bytes),
          .threads = absl::GetFlag(FLAGS_threads),
          .tokens = absl::GetFlag(FLAGS_tokens),
          .cgroup = absl::GetFlag(FLAGS_cgroup),
          .gguf = absl::GetFlag(FLAGS_gguf),
          .program = absl::GetFlag(FLAGS_peer),
          .draft = absl::GetFlag(FLAGS_draft),
          .ways = absl::GetFlag(FLAGS_ways),
          .prompt_file = absl::GetFlag(FLAGS_prompt_file),
          .prompts = absl::GetFlag(FLAGS_prompts),
          .open_prompts = absl::GetFlag(FLAGS_open_prompts),
          .answer_tokens = absl::GetFlag(FLAGS_answer_tokens)};
}

absl::StatusOr<std::vector<WallWay>> Ways() {
  std::vector<WallWay> ways;
  std::vector<std::string> names = absl::GetFlag(FLAGS_ways);
  if (!absl::GetFlag(FLAGS_peer).empty()) names.emplace_back("peer");
  for (const std::string& name : names) {
    WITHY_ASSIGN_OR_RETURN(WallWay way, ParseWay(name));
    if (name == "peer" && absl::GetFlag(FLAGS_peer).empty()) {
      return absl::InvalidArgumentError("--ways peer: needs --peer LLAMA_BENCH");
    }
    ways.push_back(std::move(way));
  }
  return ways;
}

absl::StatusOr<WallSetup> SetUp() {
  std::string directory = absl::GetFlag(FLAGS_dir);
  if (directory.empty()) directory = engine::DefaultCacheDir(PocketFile(kPocketTarget));
  WallSetup setup;
  setup.run = RunOfFlags();
  setup.budgets = absl::GetFlag(FLAGS_budgets);
  setup.rounds = absl::GetFlag(FLAGS_rounds);
  setup.cliff = absl::GetFlag(FLAGS_cliff);
  for (const std::string& percent : setup.budgets) {
    WITHY_RETURN_IF_ERROR(BudgetShare(percent).status());
  }
  WITHY_ASSIGN_OR_RETURN(setup.ways, Ways());
  WITHY_ASSIGN_OR_RETURN(const PairFiles files, FindFiles(directory));
  WITHY_ASSIGN_OR_RETURN(setup.run.packed, Packed(files.target, directory));
  WITHY_ASSIGN_OR_RETURN(setup.run.draft, Packed(files.draft, directory));
  for (const WallWay& way : setup.ways) {
    const bool any_source = way.kind == WallWay::Kind::kService &&
                            way.decode.speculation == policy::SpeculationMode::kAuto;
    if (way.uses_draft() && !any_source && files.draft.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--ways ", way.name, ": needs a draft model, --draft FILE"));
    }
    if (way.name == "peer") {
      if (engine::PackedFile::LooksPacked(files.target)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "--peer: ", files.target, " is a packed file; give the GGUF that it is of"));
      }
      setup.run.gguf = files.target;
    }
    if (way.kind != WallWay::Kind::kShards) continue;
    WITHY_ASSIGN_OR_RETURN(const std::string shards,
                           Requantised(files.target, engine::GgmlType::kQ4_0, directory));
    WITHY_ASSIGN_OR_RETURN(setup.shards, Packed(shards, directory));
  }
  if (absl::GetFlag(FLAGS_model).empty() && absl::GetFlag(FLAGS_draft).empty()) {
    setup.small_target = PocketFile(kPocketTarget);
    setup.small_draft = PocketFile(kPocketDraft);
  }
  return setup;
}

absl::Status Main() {
  WITHY_RETURN_IF_ERROR(CheckFlag("tokens", absl::GetFlag(FLAGS_tokens), 1, 1000));
  WITHY_RETURN_IF_ERROR(CheckFlag("rounds", absl::GetFlag(FLAGS_rounds), 1, 100));
  WITHY_RETURN_IF_ERROR(CheckFlag("threads", absl::GetFlag(FLAGS_threads), 1, 256));
  WITHY_RETURN_IF_ERROR(CheckFlag("prompts", absl::GetFlag(FLAGS_prompts), 0, 10'000));
  WITHY_RETURN_IF_ERROR(CheckFlag("open_prompts", absl::GetFlag(FLAGS_open_prompts), 0, 10'000));
  if (absl::GetFlag(FLAGS_prompts) + absl::GetFlag(FLAGS_open_prompts) == 0) {
    return absl::InvalidArgumentError("--prompts and --open_prompts are 0: nothing is asked");
  }
  WITHY_RETURN_IF_ERROR(CheckFlag("answer_tokens", absl::GetFlag(FLAGS_answer_tokens), 1, 1000));
  if (!absl::GetFlag(FLAGS_contestant).empty()) {
    WITHY_ASSIGN_OR_RETURN(const WallResult result, RunContestant(RunOfFlags()));
    std::printf("%s\n", ToJson(result).c_str());
    return absl::OkStatus();
  }
  WITHY_ASSIGN_OR_RETURN(WallSetup setup, SetUp());
  if (absl::GetFlag(FLAGS_make)) return absl::OkStatus();
  return Wall(std::move(setup)).Measure();
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "usage: withy-bench-wall [--inflate=SHAPE | --model=FILE --draft=FILE] [--ways=WAY,WAY]\n"
      "Decodes a model under a memory budget in several ways. Needs root for memory cgroups.",
      argc, argv, withy::bench::Main);
}
