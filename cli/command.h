// A command of withyctl and its exit codes. Neighbours: main.cc finds and runs a command; each
// command group has its own file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "cli/flags.h"

namespace withy::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  // the call failed
inline constexpr int kExitUsage = 2;   // the command line is wrong

struct Command {
  std::string name;  // "generate", "contexts list"
  std::string operands;
  std::string summary;
  std::vector<Flag> flags;  // besides the common ones
  int (*run)(const Args& args);
};

// Print to stderr and return the exit code.
int Fail(const absl::Status& status);
int FailUsage(std::string_view message);

// The command groups.
std::vector<Command> AppCommands();
std::vector<Command> CalibrateCommands();
std::vector<Command> ChatCommands();
std::vector<Command> ConfigCommands();
std::vector<Command> ContextCommands();
std::vector<Command> DeviceCommands();
std::vector<Command> DoctorCommands();
std::vector<Command> EmbedCommands();
std::vector<Command> ExplainCommands();
std::vector<Command> GenerateCommands();
std::vector<Command> ModelCommands();
std::vector<Command> ProfileCommands();
std::vector<Command> ProfileStudyCommands();
std::vector<Command> ScoreCommands();
std::vector<Command> StatusCommands();
std::vector<Command> StoreCommands();

// Flags of all commands that connect to the service.
std::vector<Flag> ConnectionFlags();
// The connection flags, then `flags`.
std::vector<Flag> WithConnection(std::vector<Flag> flags);

}  // namespace withy::cli
