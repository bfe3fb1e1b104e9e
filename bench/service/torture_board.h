// A service of five processes with a small arena on a small disk, and apps that know every answer:
// what the benchmarks of faults have in common. Neighbours: torture.cc kills its processes,
// faults.cc lets their calls of the system fail, torture_client.h has the apps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/service/processes.h"
#include "bench/service/torture_client.h"

namespace withy::bench {

// Not thread-safe.
class TortureBoard {
 public:
  // Models, configuration and a disk, where this user may mount one; no process yet. `ratio`:
  // store.kv_ratio_percent; answers are compared at 100 only. Errors: of files.
  static absl::StatusOr<std::unique_ptr<TortureBoard>> Make(int apps, int ratio);
  ~TortureBoard();

  // Called for each process that ended by itself, before it is started again; by default it is
  // told on stderr.
  using OnEnded = std::function<void(const std::string& how)>;
  void set_on_ended(OnEnded on_ended) { on_ended_ = std::move(on_ended); }
  // Called before each start of a process.
  using OnStart = std::function<void(const std::string& process)>;
  void set_on_start(OnStart on_start) { on_start_ = std::move(on_start); }

  absl::Status StartAll();
  absl::Status Start(const std::string& process);
  // Starts again what has ended by itself, as systemd does.
  absl::Status StartEnded();
  // Binds the apps, and records what each of their scripts is answered without interruption.
  // Errors: of calls, with what model_worker logged.
  absl::Status BindApps();
  void StartApps();
  // The conversations that have begun are checked and end.
  void StopApps();
  // Returns once so many calls have returned in all; starts what has ended. Errors:
  // DEADLINE_EXCEEDED: the service does not come back, with its logs.
  absl::Status AwaitCalls(uint64_t calls);
  // Whether nothing is lost, foreign, mismatched or failed.
  bool Good() const;

  Processes& processes() { return *processes_; }
  TortureLedger& ledger() { return ledger_; }
  const TortureLedger& ledger() const { return ledger_; }
  const std::string& directory() const { return directory_.path(); }
  bool has_disk() const { return mounted_; }  // of its own
  bool compares() const { return !expected_.empty(); }

 private:
  TortureBoard(int apps, int ratio) : app_count_(apps), ratio_(ratio) {}
  absl::Status WriteModel(const std::string& name, uint64_t seed) const;
  absl::Status WriteFiles();
  absl::Status RecordAnswers();

  const int app_count_;
  const int ratio_;
  TemporaryDirectory directory_;
  bool mounted_ = false;
  std::unique_ptr<Processes> processes_;
  std::vector<std::unique_ptr<TortureApp>> apps_;
  TortureAnswers expected_;
  TortureLedger ledger_;
  OnEnded on_ended_;
  OnStart on_start_;
};

}  // namespace withy::bench
