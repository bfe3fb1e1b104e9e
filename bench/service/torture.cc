// withy-bench-torture: random SIGKILLs of random processes under load, and other faults: bits that
// flip in KV files, files that are cut or gone, read errors, a full disk, processes that stand
// still, a worker whose leases were taken meanwhile; and, once, an arena too small for one context.
// No call that returned may be lost, no context may show another's text, and with all KV at 8 bits
// every answer has to be, bit for bit, that of a run that nothing interrupted. Prints one JSON line
// last on stdout; the exit code is 1 if any of this was not so. Neighbours: torture_board.h has the
// service and its apps, faults.cc lets calls of the system fail.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "bench/service/torture_board.h"
#include "bench/service/torture_faults.h"
#include "engine/kv/block.h"

ABSL_FLAG(int, kills, 100, "SIGKILLs to send");
ABSL_FLAG(int, minutes, 0, "end after this time even with fewer kills; 0: no such end");
ABSL_FLAG(int, seed, 0, "of what is killed and when; 0: from the clock");
ABSL_FLAG(int, apps, 4, "apps that call at the same time");
ABSL_FLAG(int, ratio, 100, "store.kv_ratio_percent; answers are compared at 100 only");

namespace withy::bench {
namespace {

namespace fs = std::filesystem;

constexpr int kLongestPauseMs = 300;  // before a fault
constexpr int kLongestStallMs = 400;

struct Faults {
  uint64_t kills = 0;
  uint64_t flipped = 0;      // KV files of which a byte was changed
  uint64_t cut = 0;          // KV files cut or removed
  uint64_t stalled = 0;      // processes that stood still for a while
  uint64_t full_disks = 0;   // times that the disk had no byte left
  uint64_t read_errors = 0;  // rounds of them
  uint64_t unread = 0;       // extents that the store counted as unreadable in those rounds
  uint64_t taken = 0;        // times that a worker woke after another one had taken its leases
};

class Torture {
 public:
  explicit Torture(uint64_t seed) : random_(seed) {}

  absl::Status Run(int kills, absl::Duration limit);
  nlohmann::json Report() const;
  bool Good() const { return board_ != nullptr && board_->Good(); }

 private:
  uint64_t Below(uint64_t limit) { return random_() % limit; }
  void Pause(int most_ms) {
    absl::SleepFor(absl::Milliseconds(static_cast<int64_t>(Below(static_cast<uint64_t>(most_ms)))));
  }
  absl::Status MakeBoard();
  uint64_t calls() const { return board_->ledger().calls(); }
  // One fault, and the restart of what it killed.
  absl::Status Strike();
  absl::Status KillAndRestart(const std::vector<std::string>& names);
  void DamageKv();
  // A process stands still; a worker may wake beside another store than the one that it knew.
  absl::Status Stall();
  void FillDisk();
  // Reads of KV fail until a store that has just begun has counted one.
  absl::Status FailReads();
  absl::Status TakeLeases();

  std::mt19937_64 random_;
  std::unique_ptr<TortureBoard> board_;
  std::unique_ptr<FaultInjector> injector_;  // null: this build has none
  Faults faults_;
};

absl::Status Torture::MakeBoard() {
  WITHY_ASSIGN_OR_RETURN(board_,
                         TortureBoard::Make(absl::GetFlag(FLAGS_apps), absl::GetFlag(FLAGS_ratio)));
  absl::StatusOr<std::unique_ptr<FaultInjector>> injector =
      FaultInjector::Create(board_->directory());
  if (!injector.ok() && !absl::IsNotFound(injector.status())) return injector.status();
  if (injector.ok()) {
    injector_ = *std::move(injector);
    board_->processes().set_environment(injector_->environment());
  }
  return absl::OkStatus();
}

absl::Status Torture::Run(int kills, absl::Duration limit) {
  WITHY_RETURN_IF_ERROR(MakeBoard());
  WITHY_RETURN_IF_ERROR(
      Annotate(TrySmallArena(board_->directory() + "/small"), "an arena too small for a context"));
  WITHY_RETURN_IF_ERROR(board_->StartAll());
  WITHY_RETURN_IF_ERROR(board_->BindApps());
  const absl::Time end = absl::Now() + limit;
  board_->StartApps();
  while (faults_.kills < static_cast<uint64_t>(kills) && absl::Now() < end) {
    const uint64_t before = calls();
    Pause(kLongestPauseMs);
    WITHY_RETURN_IF_ERROR(Strike());
    // Now and then the next fault meets a service that is still starting.
    if (Below(4) > 0) WITHY_RETURN_IF_ERROR(board_->AwaitCalls(before + 1 + Below(12)));
    std::fprintf(stderr, "\r%lu kills, %lu calls ", static_cast<unsigned long>(faults_.kills),
                 static_cast<unsigned long>(calls()));
  }
  WITHY_RETURN_IF_ERROR(board_->AwaitCalls(calls() + 1));
  board_->StopApps();
  std::fprintf(stderr, "\n");
  return absl::OkStatus();
}

absl::Status Torture::Strike() {
  const uint64_t dice = Below(20);
  if (dice == 0) return KillAndRestart(kAllProcesses);
  if (dice == 1) return Stall();
  if (dice == 2 && board_->has_disk()) FillDisk();
  if (dice == 6) return TakeLeases();
  if (dice == 7 && injector_ != nullptr) return FailReads();
  if (dice <= 5) return KillAndRestart({"context_store", "model_worker"});
  return KillAndRestart({kAllProcesses[Below(kAllProcesses.size())]});
}

absl::Status Torture::KillAndRestart(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    board_->processes().Kill(name);
    ++faults_.kills;
  }
  const bool store = std::find(names.begin(), names.end(), "context_store") != names.end();
  if (store && Below(3) == 0) DamageKv();
  for (const std::string& name : names) WITHY_RETURN_IF_ERROR(board_->Start(name));
  return absl::OkStatus();
}

// A file of KV gets another byte somewhere, ends early, or goes.
void Torture::DamageKv() {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(board_->processes().state_dir() + "/kv", error)) {
    if (entry.file_size(error) > 0) files.push_back(entry.path());
  }
  if (files.empty()) return;
  const fs::path& file = files[Below(files.size())];
  const uint64_t bytes = fs::file_size(file, error);
  switch (Below(3)) {
    case 0:
      fs::resize_file(file, Below(bytes), error);
      ++faults_.cut;
      return;
    case 1:
      fs::remove(file, error);
      ++faults_.cut;
      return;
    default: {
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      for (int i = 0; i < 8; ++i) {
        const auto at = static_cast<std::streamoff>(Below(bytes));
        stream.seekg(at);
        const int byte = stream.get();
        stream.seekp(at);
        stream.put(static_cast<char>(byte ^ (1 << Below(8))));
      }
      ++faults_.flipped;
    }
  }
}

absl::Status Torture::Stall() {
  const std::string name =
      Below(2) == 0 ? "model_worker" : kAllProcesses[Below(kAllProcesses.size())];
  board_->processes().Signal(name, SIGSTOP);
  Pause(kLongestStallMs);
  if (name == "model_worker" && Below(2) == 0) {
    WITHY_RETURN_IF_ERROR(KillAndRestart({"context_store"}));
    Pause(kLongestStallMs);
  }
  board_->processes().Signal(name, SIGCONT);
  ++faults_.stalled;
  return absl::OkStatus();
}

void Torture::FillDisk() {
  const std::string path = board_->processes().state_dir() + "/filler";
  std::ofstream filler(path, std::ios::binary);
  const std::string page(4096, 'x');
  while (filler.write(page.data(), static_cast<std::streamsize>(page.size())).flush()) continue;
  Pause(kLongestStallMs);
  fs::remove(path);
  ++faults_.full_disks;
}

absl::Status Torture::FailReads() {
  FaultControl& control = injector_->control();
  control.failing_reads = 1 + static_cast<uint32_t>(Below(20));
  const uint64_t before = control.failed_reads;
  WITHY_RETURN_IF_ERROR(KillAndRestart({"context_store"}));
  const uint64_t called = calls();
  for (int more = 1; control.failed_reads == before && more <= 20; ++more) {
    WITHY_RETURN_IF_ERROR(board_->AwaitCalls(called + static_cast<uint64_t>(more)));
  }
  control.failing_reads = 0;
  if (control.failed_reads == before) return absl::OkStatus();  // nothing had to be read
  WITHY_RETURN_IF_ERROR(board_->AwaitCalls(calls() + 1));
  WITHY_ASSIGN_OR_RETURN(const v1::GetStoreInfoResponse info, AskStore(board_->processes()));
  faults_.unread += info.disk().unread_extents();
  ++faults_.read_errors;
  if (info.disk().unread_extents() > 0) return absl::OkStatus();
  return absl::InternalError("reads of KV have failed, and context_store has not counted it");
}

absl::Status Torture::TakeLeases() {
  board_->processes().Signal("model_worker", SIGSTOP);
  const absl::Status taken = bench::TakeLeases(board_->processes(), board_->directory() + "/other",
                                               board_->directory() + "/target.gguf");
  board_->processes().Signal("model_worker", SIGCONT);
  if (absl::IsUnavailable(taken)) return absl::OkStatus();  // the store was not there
  if (taken.ok()) ++faults_.taken;
  return taken;
}

nlohmann::json Torture::Report() const {
  const TortureLedger::Counts counts =
      board_ == nullptr ? TortureLedger::Counts{} : board_->ledger().counts();
  return {{"kills", faults_.kills},
          {"calls", counts.calls},
          {"lost", counts.lost},
          {"foreign", counts.foreign},
          {"mismatched", counts.mismatched},
          {"failed", counts.failed},
          {"kv_files_flipped", faults_.flipped},
          {"kv_files_cut", faults_.cut},
          {"stalls", faults_.stalled},
          {"full_disks", faults_.full_disks},
          {"read_error_rounds", faults_.read_errors},
          {"unread_extents", faults_.unread},
          {"leases_taken", faults_.taken},
          {"compared", board_ != nullptr && board_->compares()}};
}

absl::Status Main() {
  WITHY_RETURN_IF_ERROR(CheckFlag("kills", absl::GetFlag(FLAGS_kills), 1, 10'000'000));
  WITHY_RETURN_IF_ERROR(CheckFlag("minutes", absl::GetFlag(FLAGS_minutes), 0, 1'000'000));
  WITHY_RETURN_IF_ERROR(CheckFlag("apps", absl::GetFlag(FLAGS_apps), 1, 64));
  WITHY_RETURN_IF_ERROR(CheckFlag("ratio", absl::GetFlag(FLAGS_ratio), 25, 100));
  WITHY_RETURN_IF_ERROR(CheckFlag("seed", absl::GetFlag(FLAGS_seed), 0, INT32_MAX));
  int64_t seed = absl::GetFlag(FLAGS_seed);
  if (seed == 0) seed = absl::ToUnixSeconds(absl::Now()) % INT32_MAX;
  std::fprintf(stderr, "seed %ld\n", static_cast<long>(seed));
  Torture torture(static_cast<uint64_t>(seed));
  const int minutes = absl::GetFlag(FLAGS_minutes);
  const absl::Duration limit = minutes == 0 ? absl::InfiniteDuration() : absl::Minutes(minutes);
  const absl::Time begin = absl::Now();
  const absl::Status status = torture.Run(absl::GetFlag(FLAGS_kills), limit);
  nlohmann::json json = torture.Report();
  json["seed"] = seed;
  json["seconds"] = absl::ToInt64Seconds(absl::Now() - begin);
  std::printf("%s\n", json.dump().c_str());
  std::fflush(stdout);
  WITHY_RETURN_IF_ERROR(status);
  if (torture.Good()) return absl::OkStatus();
  return absl::DataLossError(
      "an answer was lost or wrong, or a process misbehaved: see the line above");
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "Kills processes of the service at random and checks that nothing is lost.\n"
      "usage: withy-bench-torture [--kills N] [--seed S] [--minutes M]",
      argc, argv, withy::bench::Main);
}
