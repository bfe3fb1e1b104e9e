// withy-bench-faults: lets every place of the five processes that calls the system for a file, a
// socket, memory or a process fail once, one after the other, while apps call; what only a start
// reaches, in a start. No call that returned may be lost, no process may end by a signal, and the
// service has to go on each time. Prints one JSON line last on stdout; the exit code is 1 if any of
// this was not so. Neighbours: call_points.h is what processes see, torture_board.h the service and
// its apps, torture.cc kills processes.
#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/program_flags.h"
#include "base/shared_memory.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "bench/service/call_points.h"
#include "bench/service/processes.h"
#include "bench/service/torture_board.h"

ABSL_FLAG(int, points, 0, "points to let fail, drawn by the seed; 0: all that are seen");
ABSL_FLAG(int, seed, 1, "of the order of points");
ABSL_FLAG(std::string, only, "", "points whose process and name contain this");

namespace withy::bench {
namespace {

namespace fs = std::filesystem;

constexpr int kFaultApps = 4;
constexpr uint64_t kSurveyCalls = 60;
// A point that calls reach is reached within this time; then its process is started again.
constexpr absl::Duration kReached = absl::Seconds(1);
constexpr absl::Duration kReachedByStart = absl::Seconds(6);
constexpr absl::Duration kAfterFirstStart = absl::Seconds(2);
constexpr uint64_t kCallsAfterwards = 2 * kFaultApps;

struct Point {
  std::string process;
  std::string name;
  friend bool operator<(const Point& a, const Point& b) {
    return std::tie(a.process, a.name) < std::tie(b.process, b.name);
  }
};

// The tables of a board's processes.
class PointTables {
 public:
  static absl::StatusOr<std::unique_ptr<PointTables>> Create(const std::string& directory) {
    const fs::path library =
        fs::read_symlink("/proc/self/exe").parent_path() / "withy-bench-points.so";
    if (!fs::exists(library)) {
      return absl::NotFoundError(absl::StrCat("no ", library.string(), " in this build"));
    }
    std::unique_ptr<PointTables> tables(new PointTables());
    for (const std::string& process : kAllProcesses) {
      const std::string path = absl::StrCat(directory, "/points-", process);
      const UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
      if (!file.valid() || ftruncate(file.get(), sizeof(CallPoints)) != 0) {
        return ErrnoError("make " + path);
      }
      WITHY_ASSIGN_OR_RETURN(
          tables->memory_[process],
          SharedMemory::Map(file.get(), sizeof(CallPoints), SharedMemory::Access::kReadWrite));
      tables->environment_[process] = {absl::StrCat("LD_PRELOAD=", library.string()),
                                       absl::StrCat(kCallPointsVariable, "=", path)};
    }
    return tables;
  }

  // Before the process is started: takes what its last run has met.
  const std::vector<std::string>& Renew(const std::string& process) {
    Collect(process);
    CallPoints& table = Of(process);
    for (CallPoint& point : table.points) {
      point.address = 0;
      point.calls = 0;
      point.named = false;
    }
    return environment_[process];
  }
  void Arm(const Point& point) {
    CallPoints& table = Of(point.process);
    table.state = PointState::kNone;
    std::snprintf(table.armed, sizeof table.armed, "%s", point.name.c_str());
    table.state = PointState::kArmed;
  }
  bool Fired(const Point& point) { return Of(point.process).state == PointState::kFired; }
  void Disarm(const Point& point) { Of(point.process).state = PointState::kNone; }

  // All that was met.
  const std::set<Point>& points() {
    for (const std::string& process : kAllProcesses) Collect(process);
    return points_;
  }
  uint64_t lost() {
    uint64_t lost = 0;
    for (const std::string& process : kAllProcesses) lost += Of(process).lost;
    return lost;
  }

 private:
  PointTables() = default;
  CallPoints& Of(const std::string& process) {
    return *reinterpret_cast<CallPoints*>(memory_[process].data());
  }
  void Collect(const std::string& process) {
    for (const CallPoint& point : Of(process).points) {
      if (point.named) points_.insert({process, point.name});
    }
  }

  std::map<std::string, SharedMemory> memory_;
  std::map<std::string, std::vector<std::string>> environment_;
  std::set<Point> points_;
};

// A board whose processes have tables.
struct FaultyBoard {
  std::unique_ptr<TortureBoard> board = nullptr;
  std::unique_ptr<PointTables> tables = nullptr;
};

class Faults {
 public:
  explicit Faults(uint32_t seed) : random_(seed) {}

  absl::Status Run(size_t most);
  nlohmann::json Report() const;
  bool Good() const;

 private:
  absl::StatusOr<FaultyBoard> MakeBoard();
  // Lets all processes meet their points: calls, ends and starts.
  absl::Status Survey(FaultyBoard& at);
  // Returns whether the point was reached.
  absl::StatusOr<bool> Try(FaultyBoard& at, const Point& point);
  // The same in the first start of a board of its own.
  absl::StatusOr<bool> TryFirstStart(const Point& point);
  absl::Status GoesOn(FaultyBoard& at);
  void Count(const TortureLedger::Counts& counts);

  std::mt19937 random_;
  std::string present_;  // the point that fails now, for people
  uint64_t points_ = 0;
  uint64_t failed_ = 0;
  uint64_t hangs_ = 0;
  uint64_t crashes_ = 0;
  uint64_t ended_ = 0;  // processes that gave up and were started again
  TortureLedger::Counts counts_;
  std::vector<std::string> unreached_;
};

absl::StatusOr<FaultyBoard> Faults::MakeBoard() {
  FaultyBoard at;
  WITHY_ASSIGN_OR_RETURN(at.board, TortureBoard::Make(kFaultApps, /*ratio=*/100));
  WITHY_ASSIGN_OR_RETURN(at.tables, PointTables::Create(at.board->directory()));
  at.board->set_on_start(
      [board = at.board.get(), tables = at.tables.get()](const std::string& process) {
        board->processes().set_environment(tables->Renew(process));
      });
  at.board->set_on_ended([this](const std::string& how) {
    ++ended_;
    const bool crashed = absl::StrContains(how, "by signal");
    crashes_ += crashed ? 1 : 0;
    if (crashed) std::fprintf(stderr, "crash: %s\n", how.c_str());
  });
  return at;
}

absl::Status Faults::Survey(FaultyBoard& at) {
  WITHY_RETURN_IF_ERROR(at.board->StartAll());
  WITHY_RETURN_IF_ERROR(at.board->BindApps());
  at.board->StartApps();
  WITHY_RETURN_IF_ERROR(at.board->AwaitCalls(kSurveyCalls));
  for (const std::string& process : kAllProcesses) {
    at.board->processes().Stop(process);
    WITHY_RETURN_IF_ERROR(at.board->Start(process));
    WITHY_RETURN_IF_ERROR(at.board->AwaitCalls(at.board->ledger().calls() + kSurveyCalls / 4));
  }
  return absl::OkStatus();
}

absl::Status Faults::GoesOn(FaultyBoard& at) {
  const absl::Status status = at.board->AwaitCalls(at.board->ledger().calls() + kCallsAfterwards);
  if (!absl::IsDeadlineExceeded(status)) return status;
  ++hangs_;
  std::fprintf(stderr, "hang: %s\n", status.ToString().c_str());
  for (const std::string& process : kAllProcesses) {
    at.board->processes().Kill(process);
    WITHY_RETURN_IF_ERROR(at.board->Start(process));
  }
  return at.board->AwaitCalls(at.board->ledger().calls() + 1);
}

absl::StatusOr<bool> Faults::Try(FaultyBoard& at, const Point& point) {
  at.tables->Arm(point);
  const auto reached = [&](absl::Duration patience) -> absl::StatusOr<bool> {
    const absl::Time end = absl::Now() + patience;
    while (!at.tables->Fired(point) && absl::Now() < end) {
      WITHY_RETURN_IF_ERROR(at.board->StartEnded());
      absl::SleepFor(absl::Milliseconds(2));
    }
    return at.tables->Fired(point);
  };
  WITHY_ASSIGN_OR_RETURN(bool fired, reached(kReached));
  for (const bool in_order : {true, false}) {
    if (fired) break;
    if (in_order) {
      at.board->processes().Stop(point.process);
    } else {
      at.board->processes().Kill(point.process);
    }
    WITHY_RETURN_IF_ERROR(at.board->Start(point.process));
    WITHY_ASSIGN_OR_RETURN(fired, reached(kReachedByStart));
  }
  at.tables->Disarm(point);
  WITHY_RETURN_IF_ERROR(GoesOn(at));
  return fired;
}

absl::StatusOr<bool> Faults::TryFirstStart(const Point& point) {
  WITHY_ASSIGN_OR_RETURN(FaultyBoard at, MakeBoard());
  at.tables->Arm(point);
  WITHY_RETURN_IF_ERROR(at.board->StartAll());
  const absl::Time end = absl::Now() + kReachedByStart;
  while (!at.tables->Fired(point) && absl::Now() < end) {
    WITHY_RETURN_IF_ERROR(at.board->StartEnded());
    absl::SleepFor(absl::Milliseconds(2));
  }
  const bool fired = at.tables->Fired(point);
  at.tables->Disarm(point);
  if (!fired) return false;
  const absl::Time later = absl::Now() + kAfterFirstStart;
  while (absl::Now() < later) {
    WITHY_RETURN_IF_ERROR(at.board->StartEnded());
    absl::SleepFor(absl::Milliseconds(10));
  }
  WITHY_RETURN_IF_ERROR(at.board->BindApps());
  at.board->StartApps();
  WITHY_RETURN_IF_ERROR(GoesOn(at));
  at.board->StopApps();
  Count(at.board->ledger().counts());
  return true;
}

void Faults::Count(const TortureLedger::Counts& counts) {
  counts_.calls += counts.calls;
  counts_.lost += counts.lost;
  counts_.foreign += counts.foreign;
  counts_.mismatched += counts.mismatched;
  counts_.failed += counts.failed;
}

absl::Status Faults::Run(size_t most) {
  WITHY_ASSIGN_OR_RETURN(FaultyBoard at, MakeBoard());
  WITHY_RETURN_IF_ERROR(Survey(at));
  std::vector<Point> points;
  for (const Point& point : at.tables->points()) {
    if (absl::StrContains(absl::StrCat(point.process, " ", point.name), absl::GetFlag(FLAGS_only)))
      points.push_back(point);
  }
  std::shuffle(points.begin(), points.end(), random_);
  if (most > 0 && points.size() > most) points.resize(most);
  points_ = points.size();
  std::vector<Point> unreached;
  for (size_t i = 0; i < points.size(); ++i) {
    present_ = absl::StrCat(points[i].process, " ", points[i].name);
    std::fprintf(stderr, "%zu of %zu, %lu calls: %s\n", i + 1, points.size(),
                 static_cast<unsigned long>(at.board->ledger().calls()), present_.c_str());
    WITHY_ASSIGN_OR_RETURN(const bool fired, Try(at, points[i]));
    failed_ += fired ? 1 : 0;
    if (!fired) unreached.push_back(points[i]);
  }
  at.board->StopApps();
  Count(at.board->ledger().counts());
  if (at.tables->lost() > 0) return absl::InternalError("a table of points is full");
  at = {};
  for (const Point& point : unreached) {
    present_ = absl::StrCat(point.process, " ", point.name);
    std::fprintf(stderr, "first start: %s\n", present_.c_str());
    const absl::StatusOr<bool> fired = TryFirstStart(point);
    if (!fired.ok()) return Annotate(fired.status(), present_);
    failed_ += *fired ? 1 : 0;
    if (!*fired) unreached_.push_back(present_);
  }
  return absl::OkStatus();
}

bool Faults::Good() const {
  return counts_.lost + counts_.foreign + counts_.mismatched + counts_.failed == 0 && hangs_ == 0 &&
         crashes_ == 0;
}

nlohmann::json Faults::Report() const {
  return {{"points", points_},
          {"points_failed", failed_},
          {"unreached", unreached_},
          {"calls", counts_.calls},
          {"lost", counts_.lost},
          {"foreign", counts_.foreign},
          {"mismatched", counts_.mismatched},
          {"failed", counts_.failed},
          {"hangs", hangs_},
          {"crashes", crashes_},
          {"ended_by_themselves", ended_}};
}

absl::Status Main() {
  WITHY_RETURN_IF_ERROR(CheckFlag("points", absl::GetFlag(FLAGS_points), 0, 1'000'000));
  WITHY_RETURN_IF_ERROR(CheckFlag("seed", absl::GetFlag(FLAGS_seed), 0, INT32_MAX));
  Faults faults(static_cast<uint32_t>(absl::GetFlag(FLAGS_seed)));
  const absl::Time begin = absl::Now();
  const absl::Status status = faults.Run(static_cast<size_t>(absl::GetFlag(FLAGS_points)));
  nlohmann::json json = faults.Report();
  json["seed"] = absl::GetFlag(FLAGS_seed);
  json["seconds"] = absl::ToInt64Seconds(absl::Now() - begin);
  std::printf("%s\n", json.dump().c_str());
  std::fflush(stdout);
  WITHY_RETURN_IF_ERROR(status);
  if (faults.Good()) return absl::OkStatus();
  return absl::DataLossError(
      "an answer was lost or wrong, or a process misbehaved: see the line above");
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "Lets each call of the system fail once and checks that nothing is lost.\n"
      "usage: withy-bench-faults [--points N] [--seed S] [--only TEXT]",
      argc, argv, withy::bench::Main);
}
