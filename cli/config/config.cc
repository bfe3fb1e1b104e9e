// withyctl config: checks a configuration before a restart, and puts it in force.
#include "base/config.h"

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "base/files.h"
#include "base/status.h"
#include "cli/command.h"
#include "cli/config/config_install.h"
#include "cli/output.h"
#include "cli/terminal_text.h"

namespace withy::cli {
namespace {

constexpr size_t kMostBytes = 16 << 20;

// Prints every problem. False: there is one.
bool IsGood(const CheckedConfig& checked) {
  for (const absl::Status& problem : checked.problems) {
    std::cerr << Printable(ToStd(problem.message())) << "\n";
  }
  for (const std::string& missing : MissingFiles(checked.config)) {
    std::cerr << "note: " << Printable(missing) << "\n";
  }
  return checked.problems.empty();
}

// The defaults are those of the units, whoever asks.
absl::StatusOr<CheckedConfig> CheckForUnits(const std::string& file) {
  setenv("RUNTIME_DIRECTORY", "/run/withy", 0);
  setenv("STATE_DIRECTORY", "/var/lib/withy", 0);
  return CheckConfig(file);
}

int RunConfigCheck(const Args& args) {
  if (args.positional().size() != 1) return FailUsage("config check takes one FILE");
  const auto checked = CheckForUnits(args.positional()[0]);
  if (!checked.ok()) return Fail(checked.status());
  if (!IsGood(*checked)) {
    std::cerr << "withyctl: " << Counted(checked->problems.size(), "error") << "\n";
    return kExitFailed;
  }
  std::cout << "the configuration is good\n";
  return kExitOk;
}

int RunConfigInstall(const Args& args) {
  if (args.positional().size() != 1) return FailUsage("config install takes one FILE");
  const std::string& file = args.positional()[0];
  const auto text = ReadRegularFile(file, kMostBytes);
  if (!text.ok()) return Fail(text.status());
  const auto checked = CheckForUnits(file);
  if (!checked.ok()) return Fail(checked.status());
  if (!IsGood(*checked)) {
    std::cerr << "withyctl: nothing was changed: " << Counted(checked->problems.size(), "error")
              << "\n";
    return kExitFailed;
  }
  const std::string root = args.Get("root");
  if (const absl::Status done = InstallConfig(*text, checked->config, root); !done.ok()) {
    return Fail(absl::IsPermissionDenied(done) ? Annotate(done, "run this as root") : done);
  }
  if (!root.empty() || args.Has("no-restart") || !std::filesystem::exists("/run/systemd/system")) {
    std::cout << "installed; `systemctl daemon-reload && systemctl restart withy.target` puts it "
                 "in force\n";
    return kExitOk;
  }
  if (std::system("systemctl daemon-reload && systemctl restart --no-block withy.target") != 0) {
    return Fail(absl::InternalError("installed, but systemctl failed: see its message"));
  }
  std::cout << "installed; the service restarts: `withyctl status`\n";
  return kExitOk;
}

}  // namespace

std::vector<Command> ConfigCommands() {
  return {
      {"config check",
       "FILE",
       "names every error of a configuration, and files that are missing",
       {},
       RunConfigCheck},
      {"config install",
       "FILE",
       "checks FILE, makes it /etc/withy/withy.textproto, lets the units reach what it names, and "
       "restarts the service; as root",
       {{"root", "DIR", "write below DIR, and restart nothing"},
        {"no-restart", "", "leave the running service as it is"}},
       RunConfigInstall}};
}

}  // namespace withy::cli
