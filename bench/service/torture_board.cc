#include "bench/service/torture_board.h"

#include <sys/mount.h>

#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "engine/model/synth.h"

namespace withy::bench {
namespace {

namespace fs = std::filesystem;

// Holds three fifths of what four apps' contexts take, so that KV leaves it and is read back.
constexpr uint64_t kArenaBytes = 5 << 18;
constexpr const char* kDiskMegabytes = "size=256m";
constexpr absl::Duration kServing = absl::Seconds(60);
constexpr absl::Duration kStuck = absl::Seconds(120);  // no call returned for so long
constexpr absl::Duration kPoll = absl::Milliseconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<TortureBoard>> TortureBoard::Make(int apps, int ratio) {
  std::unique_ptr<TortureBoard> board(new TortureBoard(apps, ratio));
  WITHY_RETURN_IF_ERROR(board->WriteFiles());
  return board;
}

TortureBoard::~TortureBoard() {
  apps_.clear();
  processes_ = nullptr;
  if (mounted_) umount2((directory_.path() + "/state").c_str(), MNT_DETACH);
}

absl::Status TortureBoard::WriteModel(const std::string& name, uint64_t seed) const {
  WITHY_ASSIGN_OR_RETURN(engine::SynthShape shape, engine::FindSynthShape("tiny"));
  shape.context_length = 2048;
  WITHY_ASSIGN_OR_RETURN(const engine::GgmlType type, engine::FindSynthType("q8_0"));
  return engine::WriteSynthModel(shape, type, seed,
                                 absl::StrCat(directory_.path(), "/", name, ".gguf"));
}

absl::Status TortureBoard::WriteFiles() {
  WITHY_ASSIGN_OR_RETURN(directory_, TemporaryDirectory::Create("withy-torture"));
  const std::string& dir = directory_.path();
  WITHY_RETURN_IF_ERROR(WriteModel("target", 1));
  WITHY_RETURN_IF_ERROR(WriteModel("draft", 2));
  const std::string config = absl::StrCat(
      "log_level: \"warn\"\norchestrator { tlm_path: \"off\" audit_off: true probe_off: true }\n",
      "model { path: \"", dir, "/target.gguf\" threads: 2 idle_upgrade_s: 0 }\n",
      "draft { path: \"", dir, "/draft.gguf\" threads: 1 }\n", "store { arena_bytes: ", kArenaBytes,
      " kv_ratio_percent: ", ratio_, " kv_disk_bytes: 67108864 }\n",
      "profiler { metrics_listen: \"off\" }\n");
  WITHY_ASSIGN_OR_RETURN(Processes processes, Processes::Create(dir, config));
  processes_ = std::make_unique<Processes>(std::move(processes));
  fs::create_directory(processes_->state_dir());
  mounted_ =
      mount("withy-torture", processes_->state_dir().c_str(), "tmpfs", 0, kDiskMegabytes) == 0;
  fs::permissions(processes_->state_dir(), fs::perms::owner_all);
  return absl::OkStatus();
}

absl::Status TortureBoard::Start(const std::string& process) {
  if (on_start_) on_start_(process);
  return processes_->Start(process);
}

absl::Status TortureBoard::StartAll() {
  for (const std::string& name : kAllProcesses) WITHY_RETURN_IF_ERROR(Start(name));
  return absl::OkStatus();
}

absl::Status TortureBoard::StartEnded() {
  for (const std::string& ended : processes_->TakeEnded()) {
    if (on_ended_) {
      on_ended_(ended);
    } else {
      std::fprintf(stderr, "\nended by itself: %s\n", ended.c_str());
    }
    WITHY_RETURN_IF_ERROR(Start(ended.substr(0, ended.find(' '))));
  }
  return absl::OkStatus();
}

absl::Status TortureBoard::BindApps() {
  const std::string address = "unix:" + processes_->run_dir() + "/withy.sock";
  for (int app = 0; app < app_count_; ++app) {
    WITHY_ASSIGN_OR_RETURN(apps_.emplace_back(), TortureApp::Create(address, app));
  }
  return RecordAnswers();
}

// The model may still be opening.
absl::Status TortureBoard::RecordAnswers() {
  const absl::Time end = absl::Now() + kServing;
  for (int app = 0; app < app_count_; ++app) {
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
      if (ratio_ == 100) expected_[{app, script}] = *std::move(answers);
    }
  }
  return absl::OkStatus();
}

void TortureBoard::StartApps() {
  for (const auto& app : apps_) app->Start(expected_, ledger_);
}

void TortureBoard::StopApps() {
  for (const auto& app : apps_) app->Stop();
}

absl::Status TortureBoard::AwaitCalls(uint64_t calls) {
  absl::Time end = absl::Now() + kStuck;
  for (uint64_t returned = ledger_.calls(); returned < calls;) {
    WITHY_RETURN_IF_ERROR(StartEnded());
    const uint64_t now = ledger_.calls();
    if (std::exchange(returned, now) != now) end = absl::Now() + kStuck;
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

bool TortureBoard::Good() const {
  const TortureLedger::Counts counts = ledger_.counts();
  return counts.lost == 0 && counts.foreign == 0 && counts.mismatched == 0 && counts.failed == 0;
}

}  // namespace withy::bench
