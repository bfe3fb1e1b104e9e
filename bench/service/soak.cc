// withy-bench-soak: hours of work of four apps as fast as they can be answered, and what memory and
// descriptors the five processes have before and behind it. Prints one JSON line last on stdout;
// the exit code is 1 if an answer is lost or wrong. Neighbour: torture_board.h has the service and
// its apps, whose contexts come and go.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "bench/samples.h"
#include "bench/service/processes.h"
#include "bench/service/torture_board.h"

ABSL_FLAG(int, calls, 11520,
          "calls between both looks; by default eight hours of four apps that "
          "each call every ten seconds");
ABSL_FLAG(int, warm_up, 3000, "calls before the first look: caches and pools are filled by them");

namespace withy::bench {
namespace {

namespace fs = std::filesystem;

constexpr int kSoakApps = 4;
// A look is the median of so many, some calls apart: what calls have in hand comes and goes.
constexpr int kLooks = 15;
constexpr uint64_t kCallsBetweenLooks = 20;

struct Footprint {
  double anonymous_kib = 0;  // RssAnon: memory that is not of files and not shared
  double descriptors = 0;
};

double AnonymousKib(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    double kib = 0;
    if (words.size() == 3 && words[0] == "RssAnon:" && absl::SimpleAtod(words[1], &kib)) return kib;
  }
  return 0;
}

double Descriptors(pid_t pid) {
  std::error_code error;
  return static_cast<double>(
      std::distance(fs::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), error), {}));
}

absl::StatusOr<std::map<std::string, Footprint>> Look(TortureBoard& board) {
  std::map<std::string, std::vector<double>> memory, descriptors;
  for (int i = 0; i < kLooks; ++i) {
    WITHY_RETURN_IF_ERROR(board.AwaitCalls(board.ledger().calls() + kCallsBetweenLooks));
    for (const std::string& process : kAllProcesses) {
      const pid_t pid = board.processes().pid(process);
      memory[process].push_back(AnonymousKib(pid));
      descriptors[process].push_back(Descriptors(pid));
    }
  }
  std::map<std::string, Footprint> footprints;
  for (const std::string& process : kAllProcesses) {
    footprints[process] = {Summarize(memory[process]).median,
                           Summarize(descriptors[process]).median};
  }
  return footprints;
}

absl::Status Main() {
  WITHY_RETURN_IF_ERROR(CheckFlag("calls", absl::GetFlag(FLAGS_calls), 1, 100'000'000));
  WITHY_RETURN_IF_ERROR(CheckFlag("warm_up", absl::GetFlag(FLAGS_warm_up), 1, 100'000'000));
  const absl::Time begin = absl::Now();
  WITHY_ASSIGN_OR_RETURN(const auto board, TortureBoard::Make(kSoakApps, /*ratio=*/100));
  int ended = 0;
  board->set_on_ended([&](const std::string& how) {
    ++ended;
    std::fprintf(stderr, "ended by itself: %s\n", how.c_str());
  });
  WITHY_RETURN_IF_ERROR(board->StartAll());
  WITHY_RETURN_IF_ERROR(board->BindApps());
  board->StartApps();
  WITHY_RETURN_IF_ERROR(board->AwaitCalls(static_cast<uint64_t>(absl::GetFlag(FLAGS_warm_up))));
  WITHY_ASSIGN_OR_RETURN(auto before, Look(*board));
  WITHY_RETURN_IF_ERROR(board->AwaitCalls(board->ledger().calls() +
                                          static_cast<uint64_t>(absl::GetFlag(FLAGS_calls))));
  WITHY_ASSIGN_OR_RETURN(auto after, Look(*board));
  board->StopApps();
  double rss_growth = 0;
  double fd_growth = 0;
  nlohmann::json processes;
  for (const std::string& process : kAllProcesses) {
    const Footprint& was = before[process];
    const Footprint& is = after[process];
    rss_growth = std::max(rss_growth, 100 * (is.anonymous_kib / was.anonymous_kib - 1));
    fd_growth = std::max(fd_growth, is.descriptors - was.descriptors);
    processes[process] = {{"rss_kib", {was.anonymous_kib, is.anonymous_kib}},
                          {"fds", {was.descriptors, is.descriptors}}};
  }
  const TortureLedger::Counts counts = board->ledger().counts();
  const nlohmann::json json = {
      {"calls", counts.calls},        {"rss_growth_percent", rss_growth},
      {"fd_growth", fd_growth},       {"processes", processes},
      {"ended_by_themselves", ended}, {"lost", counts.lost},
      {"foreign", counts.foreign},    {"mismatched", counts.mismatched},
      {"failed", counts.failed},      {"seconds", absl::ToInt64Seconds(absl::Now() - begin)}};
  std::printf("%s\n", json.dump().c_str());
  if (board->Good() && ended == 0) return absl::OkStatus();
  return absl::DataLossError(
      "an answer was lost or wrong, or a process misbehaved: see the line above");
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "Measures what hours of work leave behind in memory and descriptors.\n"
      "usage: withy-bench-soak [--calls N] [--warm_up N]",
      argc, argv, withy::bench::Main);
}
