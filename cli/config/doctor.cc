// withyctl doctor: what is wrong with this board's service, and what to do.
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/config.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/config/doctor_checks.h"
#include "cli/terminal_text.h"

namespace withy::cli {
namespace {

std::string OutputOf(const std::string& command) {
  const auto close = [](std::FILE* pipe) { pclose(pipe); };
  const std::unique_ptr<std::FILE, decltype(close)> pipe(popen(command.c_str(), "r"), close);
  std::string text;
  char piece[1024];
  while (pipe != nullptr && std::fgets(piece, sizeof piece, pipe.get()) != nullptr) text += piece;
  return text;
}

void LookAtUnits(std::vector<Finding>* findings) {
  if (!std::filesystem::exists("/run/systemd/system")) return;
  for (const char* unit : {"withy-orchestrator", "withy-model-worker", "withy-draft-worker",
                           "withy-context-store", "withy-profiler-agent"}) {
    const std::string shown = OutputOf(absl::StrCat(
        "systemctl show -p LoadState,ActiveState,StatusText,ExecMainStatus ", unit, " 2>&1"));
    for (Finding& finding : LookAtUnit(unit, shown)) findings->push_back(std::move(finding));
  }
}

void LookAtService(const Args& args, std::vector<Finding>* findings) {
  const auto client = Client::Open(args);
  const auto status =
      client.ok() ? (*client)->GetStatus() : absl::StatusOr<v1::GetStatusResponse>(client.status());
  if (!status.ok()) {
    findings->push_back({true, std::string(status.status().message()), "see the lines before"});
    return;
  }
  for (const v1::ProcessState& state : status->processes()) {
    const std::string& detail = state.status().detail();
    if (state.health() != "serving") {
      findings->push_back({true,
                           absl::StrCat(state.process(), " is ", state.health(), ": ", detail),
                           absl::StrCat("journalctl -u withy-*, or its log")});
    } else if (absl::StrContains(detail, "not calibrated") ||
               absl::StrContains(detail, "calibration refused")) {
      findings->push_back({false, absl::StrCat(state.process(), ": ", detail),
                           "withyctl calibrate, while the service is stopped"});
    }
  }
}

int RunDoctor(const Args& args) {
  std::vector<Finding> findings;
  const auto add = [&](std::vector<Finding> more) {
    for (Finding& finding : more) findings.push_back(std::move(finding));
  };
  const auto checked = CheckConfig(args.Get("config"));
  if (!checked.ok()) return Fail(checked.status());
  add(LookAtConfig(*checked));
  add(LookAtState(checked->config));
  LookAtUnits(&findings);
  LookAtService(args, &findings);
  bool wrong = false;
  for (const Finding& finding : findings) {
    wrong = wrong || finding.error;
    std::cout << (finding.error ? "wrong: " : "note: ") << Printable(finding.what)
              << "\n  do: " << Printable(finding.remedy) << "\n";
  }
  if (!wrong) std::cout << "nothing is wrong\n";
  return wrong ? kExitFailed : kExitOk;
}

}  // namespace

std::vector<Command> DoctorCommands() {
  return {{"doctor", "",
           "what is wrong with configuration, state, disk, units and processes, and what to do; "
           "exit code 1 if something is",
           ConnectionFlags(), RunDoctor}};
}

}  // namespace withy::cli
