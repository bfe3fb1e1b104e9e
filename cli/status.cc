// withyctl status: the state of the five processes. Exit code 1 unless all of them serve.
#include <iostream>

#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/stats.h"
#include "cli/terminal_text.h"

namespace withy::cli {
namespace {

std::vector<std::string> Row(const v1::ProcessState& state) {
  const v1::ProcessStatus& s = state.status();
  if (s.pid() == 0) {  // not reported; the detail gives the reason, if known
    return {state.process(), state.health(), "", "", "", "", "", "", Printable(s.detail())};
  }
  return {state.process(),
          state.health(),
          std::to_string(s.pid()),
          Seconds(s.uptime_s()),
          s.queue_limit() == 0 ? "" : absl::StrCat(s.running_calls()),
          s.queue_limit() == 0 ? "" : absl::StrCat(s.queued_calls(), "/", s.queue_limit()),
          Bytes(s.resident_bytes()),
          s.model_bytes() != 0 ? "model " + Bytes(s.model_bytes())
          : s.arena_bytes() != 0
              ? absl::StrCat("arena ", Bytes(s.arena_used_bytes()), " of ", Bytes(s.arena_bytes()))
              : "",
          s.detail()};
}

int RunStatus(const Args& args) {
  if (args.Has("json") && args.Has("quiet")) return FailUsage("give --json or --quiet, not both");
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  const auto status = (*client)->GetStatus();
  if (!status.ok()) return args.Has("quiet") ? kExitFailed : Fail(status.status());
  bool all_serve = true;
  std::vector<std::vector<std::string>> rows = {
      {"PROCESS", "HEALTH", "PID", "UP", "RUNNING", "QUEUED", "RESIDENT", "MEMORY", "DETAIL"}};
  for (const v1::ProcessState& state : status->processes()) {
    all_serve = all_serve && state.health() == "serving";
    rows.push_back(Row(state));
  }
  if (args.Has("json")) {
    std::cout << ToJson(*status) << "\n";
  } else if (!args.Has("quiet")) {
    std::cout << Table(rows) << LevelPairsText(*status);
  }
  return all_serve ? kExitOk : kExitFailed;
}

}  // namespace

std::vector<Command> StatusCommands() {
  return {{"status", "",
           "health, queue and memory of the five processes; exit code 1 unless all serve",
           WithConnection(
               {{"json", "", "print JSON"}, {"quiet", "", "print nothing: only the exit code"}}),
           RunStatus}};
}

}  // namespace withy::cli
