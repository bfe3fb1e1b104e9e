// withy-bench-torture: random SIGKILLs of random processes under load, and other faults: bits that
// flip in KV files, files that are cut or gone, read errors, a full disk, processes that stand
// still, a worker whose leases were taken meanwhile; and, once, an arena too small for one context.
// No call that returned may be lost, no context may show another's text, and with all KV at 8 bits
// every answer has to be, bit for bit, that of a run that nothing interrupted. Prints one JSON line
// last on stdout; the exit code is 1 if any of this was not so. Neighbours: torture_client.h has
// the apps, processes.h the processes.
#include <sys/mount.h>
#include <unistd.h>

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
#include "bench/service/processes.h"
#include "bench/service/torture_client.h"
#include "bench/service/torture_faults.h"
#include "engine/kv/block.h"
#include "engine/model/synth.h"

ABSL_FLAG(int, kills, 100, "SIGKILLs to send");
ABSL_FLAG(int, minutes, 0, "end after this time even with fewer kills; 0: no such end");
ABSL_FLAG(int, seed, 0, "of what is killed and when; 0: from the clock");
ABSL_FLAG(int, apps, 4, "apps that call at the same time");
ABSL_FLAG(int, ratio, 100, "store.kv_ratio_percent; answers are compared at 100 only");

namespace withy::bench {
namespace {

namespace fs = std::filesystem;

// Holds three fifths of what the apps' contexts take, so that KV leaves it and is read back.
constexpr uint64_t kArenaBytes = 5 << 18;
constexpr absl::Duration kServing = absl::Seconds(60);
constexpr absl::Duration kStuck = absl::Seconds(120);  // no call returned for so long
constexpr absl::Duration kPoll = absl::Milliseconds(2);
constexpr int kLongestPauseMs = 300;  // before a fault
constexpr int kLongestStallMs = 400;
constexpr const char* kDiskMegabytes = "size=256m";

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
  ~Torture() {
    apps_.clear();
    processes_ = nullptr;
    if (mounted_) umount2((directory_.path() + "/state").c_str(), MNT_DETACH);
  }

  absl::Status Run(int kills, absl::Duration limit);
  nlohmann::json Report() const;
  bool Good() const;

 private:
  uint64_t Below(uint64_t limit) { return random_() % limit; }
  void Pause(int most_ms) {
    absl::SleepFor(absl::Milliseconds(static_cast<int64_t>(Below(static_cast<uint64_t>(most_ms)))));
  }
  absl::Status MakeBoard();
  absl::Status WriteModel(const std::string& name, uint64_t seed);
  absl::Status StartAll();
  absl::Status RecordAnswers();
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
  // Errors: DEADLINE_EXCEEDED: the service does not come back.
  absl::Status AwaitCalls(uint64_t calls);

  std::mt19937_64 random_;
  TemporaryDirectory directory_;
  bool mounted_ = false;  // the state is on a small disk of its own
  std::unique_ptr<Processes> processes_;
  std::vector<std::unique_ptr<TortureApp>> apps_;
  TortureAnswers expected_;
  TortureLedger ledger_;
  std::unique_ptr<FaultInjector> injector_;  // null: this build has none
  Faults faults_;
};

absl::Status Torture::WriteModel(const std::string& name, uint64_t seed) {
  WITHY_ASSIGN_OR_RETURN(engine::SynthShape shape, engine::FindSynthShape("tiny"));
  shape.context_length = 2048;
  WITHY_ASSIGN_OR_RETURN(const engine::GgmlType type, engine::FindSynthType("q8_0"));
  return engine::WriteSynthModel(shape, type, seed,
                                 absl::StrCat(directory_.path(), "/", name, ".gguf"));
}

absl::Status Torture::MakeBoard() {
  WITHY_ASSIGN_OR_RETURN(directory_, TemporaryDirectory::Create("withy-torture"));
  const std::string& dir = directory_.path();
  WITHY_RETURN_IF_ERROR(WriteModel("target", 1));
  WITHY_RETURN_IF_ERROR(WriteModel("draft", 2));
  const std::string config = absl::StrCat(
      "log_level: \"warn\"\norchestrator { tlm_path: \"off\" audit_off: true probe_off: true }\n",
      "model { path: \"", dir, "/target.gguf\" threads: 2 idle_upgrade_s: 0 }\n",
      "draft { path: \"", dir, "/draft.gguf\" threads: 1 }\n", "store { arena_bytes: ", kArenaBytes,
      " kv_ratio_percent: ", absl::GetFlag(FLAGS_ratio), " kv_disk_bytes: 67108864 }\n",
      "profiler { metrics_listen: \"off\" }\n");
  WITHY_ASSIGN_OR_RETURN(Processes processes, Processes::Create(dir, config));
  processes_ = std::make_unique<Processes>(std::move(processes));
  absl::StatusOr<std::unique_ptr<FaultInjector>> injector = FaultInjector::Create(dir);
  if (!injector.ok() && !absl::IsNotFound(injector.status())) return injector.status();
  if (injector.ok()) {
    injector_ = *std::move(injector);
    processes_->set_environment(injector_->environment());
  }
  fs::create_directory(processes_->state_dir());
  // Only where this user may mount; else no disk is filled.
  mounted_ =
      mount("withy-torture", processes_->state_dir().c_str(), "tmpfs", 0, kDiskMegabytes) == 0;
  fs::permissions(processes_->state_dir(), fs::perms::owner_all);
  return absl::OkStatus();
}

absl::Status Torture::StartAll() {
  for (const std::string& name : kAllProcesses) WITHY_RETURN_IF_ERROR(processes_->Start(name));
  const std::string address = "unix:" + processes_->run_dir() + "/withy.sock";
  for (int app = 0; app < absl::GetFlag(FLAGS_apps); ++app) {
    WITHY_ASSIGN_OR_RETURN(apps_.emplace_back(), TortureApp::Create(address, app));
  }
  return absl::OkStatus();
}

// What each script is answered without interruption. The model may still be opening.
absl::Status Torture::RecordAnswers() {
  const absl::Time end = absl::Now() + kServing;
  for (int app = 0; app < absl::GetFlag(FLAGS_apps); ++app) {
    for (int script = 0; script < kTortureScripts; ++script) {
      absl::StatusOr<std::vector<std::string>> answers;
      do {
        answers = apps_[static_cast<size_t>(app)]->Record(script);
        if (!answers.ok()) absl::SleepFor(absl::Milliseconds(50));
      } while (absl::IsUnavailable(answers.status()) && absl::Now() < end);
      if (!answers.ok()) {
        return Annotate(answers.status(), absl::StrCat("the uninterrupted run (model_worker: ",
                                                       processes_->LogTail("model_worker"), ")"));
      }
      if (absl::GetFlag(FLAGS_ratio) == 100) expected_[{app, script}] = *std::move(answers);
    }
  }
  return absl::OkStatus();
}

absl::Status Torture::Run(int kills, absl::Duration limit) {
  WITHY_RETURN_IF_ERROR(MakeBoard());
  WITHY_RETURN_IF_ERROR(
      Annotate(TrySmallArena(directory_.path() + "/small"), "an arena too small for a context"));
  WITHY_RETURN_IF_ERROR(StartAll());
  WITHY_RETURN_IF_ERROR(RecordAnswers());
  const absl::Time end = absl::Now() + limit;
  for (const auto& app : apps_) app->Start(expected_, ledger_);
  while (faults_.kills < static_cast<uint64_t>(kills) && absl::Now() < end) {
    const uint64_t calls = ledger_.calls();
    Pause(kLongestPauseMs);
    WITHY_RETURN_IF_ERROR(Strike());
    // Now and then the next fault meets a service that is still starting.
    if (Below(4) > 0) WITHY_RETURN_IF_ERROR(AwaitCalls(calls + 1 + Below(12)));
    std::fprintf(stderr, "\r%lu kills, %lu calls ", static_cast<unsigned long>(faults_.kills),
                 static_cast<unsigned long>(ledger_.calls()));
  }
  WITHY_RETURN_IF_ERROR(AwaitCalls(ledger_.calls() + 1));
  for (const auto& app : apps_) app->Stop();
  std::fprintf(stderr, "\n");
  return absl::OkStatus();
}

absl::Status Torture::Strike() {
  const uint64_t dice = Below(20);
  if (dice == 0) return KillAndRestart(kAllProcesses);
  if (dice == 1) return Stall();
  if (dice == 2 && mounted_) FillDisk();
  if (dice == 6) return TakeLeases();
  if (dice == 7 && injector_ != nullptr) return FailReads();
  if (dice <= 5) return KillAndRestart({"context_store", "model_worker"});
  return KillAndRestart({kAllProcesses[Below(kAllProcesses.size())]});
}

absl::Status Torture::KillAndRestart(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    processes_->Kill(name);
    ++faults_.kills;
  }
  const bool store = std::find(names.begin(), names.end(), "context_store") != names.end();
  if (store && Below(3) == 0) DamageKv();
  for (const std::string& name : names) WITHY_RETURN_IF_ERROR(processes_->Start(name));
  return absl::OkStatus();
}

// A file of KV gets another byte somewhere, ends early, or goes.
void Torture::DamageKv() {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(processes_->state_dir() + "/kv", error)) {
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
  processes_->Signal(name, SIGSTOP);
  Pause(kLongestStallMs);
  if (name == "model_worker" && Below(2) == 0) {
    WITHY_RETURN_IF_ERROR(KillAndRestart({"context_store"}));
    Pause(kLongestStallMs);
  }
  processes_->Signal(name, SIGCONT);
  ++faults_.stalled;
  return absl::OkStatus();
}

void Torture::FillDisk() {
  const std::string path = processes_->state_dir() + "/filler";
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
  const uint64_t calls = ledger_.calls();
  for (int more = 1; control.failed_reads == before && more <= 20; ++more) {
    WITHY_RETURN_IF_ERROR(AwaitCalls(calls + static_cast<uint64_t>(more)));
  }
  control.failing_reads = 0;
  if (control.failed_reads == before) return absl::OkStatus();  // nothing had to be read
  WITHY_RETURN_IF_ERROR(AwaitCalls(ledger_.calls() + 1));
  WITHY_ASSIGN_OR_RETURN(const v1::GetStoreInfoResponse info, AskStore(*processes_));
  faults_.unread += info.disk().unread_extents();
  ++faults_.read_errors;
  if (info.disk().unread_extents() > 0) return absl::OkStatus();
  return absl::InternalError("reads of KV have failed, and context_store has not counted it");
}

absl::Status Torture::TakeLeases() {
  processes_->Signal("model_worker", SIGSTOP);
  const absl::Status taken = bench::TakeLeases(*processes_, directory_.path() + "/other",
                                               directory_.path() + "/target.gguf");
  processes_->Signal("model_worker", SIGCONT);
  if (absl::IsUnavailable(taken)) return absl::OkStatus();  // the store was not there
  if (taken.ok()) ++faults_.taken;
  return taken;
}

absl::Status Torture::AwaitCalls(uint64_t calls) {
  const absl::Time end = absl::Now() + kStuck;
  while (ledger_.calls() < calls) {
    // A process that gives up is restarted, as systemd does.
    for (const std::string& ended : processes_->TakeEnded()) {
      std::fprintf(stderr, "\nended by itself: %s\n", ended.c_str());
      WITHY_RETURN_IF_ERROR(processes_->Start(ended.substr(0, ended.find(' '))));
    }
    if (absl::Now() > end) {
      std::string logs;
      for (const std::string& name : kAllProcesses) {
        absl::StrAppend(&logs, "\n", name, ": ", processes_->LogTail(name));
      }
      return absl::DeadlineExceededError(
          absl::StrCat("no call has returned for ", absl::ToInt64Seconds(kStuck), " s", logs));
    }
    absl::SleepFor(kPoll);
  }
  return absl::OkStatus();
}

bool Torture::Good() const {
  const TortureLedger::Counts counts = ledger_.counts();
  return counts.lost == 0 && counts.foreign == 0 && counts.mismatched == 0 && counts.failed == 0;
}

nlohmann::json Torture::Report() const {
  const TortureLedger::Counts counts = ledger_.counts();
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
          {"compared", !expected_.empty()}};
}

absl::StatusOr<bool> Main() {
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
  return torture.Good();
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  withy::ParseProgramFlags(
      "Kills processes of the service at random and checks that nothing is lost.\n"
      "usage: withy-bench-torture [--kills N] [--seed S] [--minutes M]",
      argc, argv);
  const absl::StatusOr<bool> good = withy::bench::Main();
  if (!good.ok()) {
    std::fprintf(stderr, "withy-bench-torture: %s\n", good.status().ToString().c_str());
    return 1;
  }
  return *good ? 0 : 1;
}
