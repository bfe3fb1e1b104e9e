// withy-bench-wall: the memory wall. A model whose weights do not fit into a budget decodes in a
// memory cgroup: streamed by withy, paged by the kernel from a mapped file (the same engine), and
// streamed in whole layers with nothing kept (StdPL of LLMCad). Every contestant is a process of
// its own under the same limit. Prints a table on stderr and one JSON line last on stdout.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "bench/engine_bench.h"
#include "bench/memory_cgroup.h"
#include "bench/speculation_wall_run.h"
#include "engine/cpu/thread_pool.h"
#include "engine/weights/packed_file.h"
#include "engine/weights/packer.h"

ABSL_FLAG(std::string, model, "", "GGUF or packed file; a GGUF is packed first");
ABSL_FLAG(std::string, cache_dir, "", "directory of packed files; default as the engine's");
ABSL_FLAG(std::vector<std::string>, budgets, std::vector<std::string>({"45", "25"}),
          "budgets in per cent of the weights");
ABSL_FLAG(int, tokens, 8, "decoded tokens of a run");
ABSL_FLAG(int, runs, 3, "interleaved runs of each contestant");
ABSL_FLAG(int, threads, 2, "compute threads");
ABSL_FLAG(std::string, contestant, "",
          "run one contestant in this process: resident, mmap, withy, layers");
ABSL_FLAG(uint64_t, budget_bytes, 0, "of --contestant");
ABSL_FLAG(std::string, cgroup, "", "of --contestant: where its memory is read");

namespace withy::bench {
namespace {

constexpr uint64_t kUnlimited = uint64_t{1} << 50;
constexpr int kShortPercent = 94;  // of what fits: 6 % short

// Pages that another group has read would be free of charge.
absl::Status DropFromCache(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError(absl::StrCat("open ", path));
  fdatasync(fd.get());
  posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  return absl::OkStatus();
}

// Runs this program as one contestant in a memory cgroup with a limit.
absl::StatusOr<WallResult> RunLimited(const WallRun& run, uint64_t limit_bytes) {
  WITHY_RETURN_IF_ERROR(DropFromCache(run.packed));
  WITHY_ASSIGN_OR_RETURN(const MemoryCgroup cgroup, MemoryCgroup::Create("withy-wall"));
  WITHY_RETURN_IF_ERROR(cgroup.SetLimit(limit_bytes));
  std::array<int, 2> fds{};
  if (pipe2(fds.data(), O_CLOEXEC) != 0) return ErrnoError("make a pipe");
  const std::vector<std::string> command = {
      "/proc/self/exe",
      absl::StrCat("--model=", run.packed),
      absl::StrCat("--contestant=", run.contestant),
      absl::StrCat("--budget_bytes=", run.budget_bytes),
      absl::StrCat("--tokens=", run.tokens),
      absl::StrCat("--threads=", run.threads),
      absl::StrCat("--cgroup=", cgroup.directory()),
  };
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int pid = fork();
  if (pid < 0) return ErrnoError("start a contestant");
  if (pid == 0) {
    dup2(fds[1], STDOUT_FILENO);
    if (!cgroup.Add(getpid()).ok()) _exit(126);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(fds[1]);
  std::string output;
  std::array<char, 4096> buffer{};
  for (ssize_t n; (n = read(fds[0], buffer.data(), buffer.size())) > 0;) {
    output.append(buffer.data(), static_cast<size_t>(n));
  }
  close(fds[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return absl::InternalError(absl::StrCat(run.contestant, " ended with status ", status,
                                            " under a limit of ", limit_bytes, " bytes"));
  }
  return ParseWallResult(output);
}

// Samples by key, in the order of their first measurement.
class Samples {
 public:
  void Add(const std::string& key, double sample) {
    if (!samples_.contains(key)) order_.push_back(key);
    samples_[key].push_back(sample);
  }
  double Median(const std::string& key) const { return Summarize(samples_.at(key)).median; }
  void Print(const std::map<std::string, double>& more) const {
    nlohmann::ordered_json line;
    std::fprintf(stderr, "%-36s %10s %10s %10s %4s\n", "", "median", "low", "high", "n");
    for (const std::string& key : order_) {
      const Spread spread = Summarize(samples_.at(key));
      std::fprintf(stderr, "%-36s %10.4f %10.4f %10.4f %4zu\n", key.c_str(), spread.median,
                   spread.low, spread.high, samples_.at(key).size());
      line[key] = spread.median;
    }
    for (const auto& [key, value] : more) {
      std::fprintf(stderr, "%-36s %10.4f\n", key.c_str(), value);
      line[key] = value;
    }
    std::printf("%s\n", line.dump().c_str());
  }

 private:
  std::map<std::string, std::vector<double>> samples_;
  std::vector<std::string> order_;
};

class Wall {
 public:
  explicit Wall(WallRun run) : run_(std::move(run)) {}

  absl::Status Measure(const std::vector<std::string>& budgets, int runs) {
    WITHY_ASSIGN_OR_RETURN(const auto file, engine::PackedFile::Open(run_.packed));
    weights_ = file->data_bytes();
    WITHY_RETURN_IF_ERROR(MeasureProgram());
    for (int i = 0; i < runs; ++i) {
      std::fprintf(stderr, "run %d of %d\n", i + 1, runs);
      for (const std::string& percent : budgets) {
        double number = 0;
        if (!absl::SimpleAtod(percent, &number) || number <= 0 || number > 100) {
          return absl::InvalidArgumentError(
              absl::StrCat("--budgets ", percent, ": is no per cent"));
        }
        WITHY_RETURN_IF_ERROR(
            AtBudget(percent, static_cast<uint64_t>(static_cast<double>(weights_) * number / 100)));
      }
      WITHY_RETURN_IF_ERROR(Cliff());
    }
    Print(budgets);
    return absl::OkStatus();
  }

 private:
  // Memory of the program beside the weights: KV, activations, tokenizer, code.
  absl::Status MeasureProgram() {
    WITHY_ASSIGN_OR_RETURN(const WallResult whole, Run("resident", 0, kUnlimited));
    program_ = whole.memory_bytes > weights_ ? whole.memory_bytes - weights_ : 0;
    std::fprintf(stderr, "weights %.1f MiB, program beside them %.1f MiB, disk %.2f GB/s\n",
                 static_cast<double>(weights_) / (1 << 20),
                 static_cast<double>(program_) / (1 << 20), whole.disk_bytes_s / 1e9);
    return absl::OkStatus();
  }

  absl::StatusOr<WallResult> Run(const std::string& contestant, uint64_t budget, uint64_t limit) {
    WallRun run = run_;
    run.contestant = contestant;
    run.budget_bytes = budget;
    return RunLimited(run, limit);
  }

  absl::Status AtBudget(const std::string& percent, uint64_t budget) {
    // 2 %, and room for the window in which the file is loaded and checked.
    const uint64_t limit = budget + budget / 50 + program_ + (uint64_t{16} << 20);
    for (const std::string contestant : {"withy", "mmap", "layers"}) {
      WITHY_ASSIGN_OR_RETURN(const WallResult result, Run(contestant, budget, limit));
      samples_.Add(absl::StrCat(contestant, "_s_token_", percent), result.token_s);
      if (contestant == "mmap") continue;
      samples_.Add(absl::StrCat(contestant, "_fraction_of_disk_", percent),
                   result.read_bytes_s / result.disk_bytes_s);
      if (contestant == "layers") continue;
      samples_.Add(absl::StrCat("disk_gb_s_", percent), result.disk_bytes_s / 1e9);
      samples_.Add(absl::StrCat("pass_mib_", percent),
                   static_cast<double>(result.pass_bytes) / (1 << 20));
      const double used = static_cast<double>(result.memory_bytes) - static_cast<double>(program_);
      samples_.Add(absl::StrCat("memory_of_budget_", percent), used / static_cast<double>(budget));
    }
    return absl::OkStatus();
  }

  absl::Status Cliff() {
    const uint64_t budget = weights_ * kShortPercent / 100;
    WITHY_ASSIGN_OR_RETURN(const WallResult fits, Run("resident", 0, kUnlimited));
    WITHY_ASSIGN_OR_RETURN(const WallResult lacks, Run("withy", budget, kUnlimited));
    samples_.Add("resident_s_token", fits.token_s);
    samples_.Add("withy_s_token_94", lacks.token_s);
    samples_.Add("wait_share_94", lacks.wait_share);
    samples_.Add("cliff_6_percent", lacks.token_s / fits.token_s);
    return absl::OkStatus();
  }

  void Print(const std::vector<std::string>& budgets) const {
    std::map<std::string, double> more;
    double least = 1e9;
    for (const std::string& percent : budgets) {
      const double ours = samples_.Median("withy_s_token_" + percent);
      more["stream_vs_mmap_" + percent] = samples_.Median("mmap_s_token_" + percent) / ours;
      more["stream_vs_layers_" + percent] = samples_.Median("layers_s_token_" + percent) / ours;
      least = std::min(least, samples_.Median("withy_fraction_of_disk_" + percent));
    }
    more["stream_fraction_of_disk"] = least;
    samples_.Print(more);
  }

  const WallRun run_;
  uint64_t weights_ = 0;
  uint64_t program_ = 0;
  Samples samples_;
};

absl::Status Main() {
  WITHY_RETURN_IF_ERROR(CheckFlag("tokens", absl::GetFlag(FLAGS_tokens), 1, 1000));
  WITHY_RETURN_IF_ERROR(CheckFlag("runs", absl::GetFlag(FLAGS_runs), 1, 100));
  WITHY_RETURN_IF_ERROR(CheckFlag("threads", absl::GetFlag(FLAGS_threads), 1, 256));
  WallRun run{.packed = absl::GetFlag(FLAGS_model),
              .contestant = absl::GetFlag(FLAGS_contestant),
              .budget_bytes = absl::GetFlag(FLAGS_budget_bytes),
              .threads = absl::GetFlag(FLAGS_threads),
              .tokens = absl::GetFlag(FLAGS_tokens),
              .cgroup = absl::GetFlag(FLAGS_cgroup)};
  if (!run.contestant.empty()) {
    WITHY_ASSIGN_OR_RETURN(const WallResult result, RunContestant(run));
    std::printf("%s\n", ToJson(result).c_str());
    return absl::OkStatus();
  }
  if (run.packed.empty()) return absl::InvalidArgumentError("--model is missing");
  if (!engine::PackedFile::LooksPacked(run.packed)) {
    engine::ThreadPool pool(run.threads);
    WITHY_ASSIGN_OR_RETURN(
        run.packed, engine::EnsurePacked(run.packed, absl::GetFlag(FLAGS_cache_dir), pool,
                                         [](double done, std::string_view) {
                                           std::fprintf(stderr, "\rpacking %3.0f %%", 100 * done);
                                         }));
    std::fprintf(stderr, "\n");
  }
  return Wall(run).Measure(absl::GetFlag(FLAGS_budgets), absl::GetFlag(FLAGS_runs));
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  withy::ParseProgramFlags(
      "usage: withy-bench-wall --model=FILE\n"
      "Decodes a model under a memory budget: streamed, paged by the kernel, and in whole layers. "
      "Needs root for memory cgroups.",
      argc, argv);
  const absl::Status status = withy::bench::Main();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
