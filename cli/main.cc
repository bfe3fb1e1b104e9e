// withyctl, the command-line client. Finds the command, parses its flags, runs it.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/standard_output.h"
#include "cli/terminal_text.h"

namespace withy::cli {

namespace {

std::vector<Command> AllCommands() {
  std::vector<Command> all;
  for (auto group :
       {ChatCommands, GenerateCommands, ContextCommands, AppCommands, ConfigCommands, ModelCommands,
        CalibrateCommands, DeviceCommands, DoctorCommands, EmbedCommands, ExplainCommands,
        ScoreCommands, StatusCommands, ProfileCommands, ProfileStudyCommands, StoreCommands}) {
    for (Command& command : group()) all.push_back(std::move(command));
  }
  return all;
}

// Prints the help of all commands whose name begins with `prefix`.
void PrintOverview(const std::vector<Command>& commands, std::string_view prefix,
                   std::ostream& out) {
  out << "usage: withyctl COMMAND [FLAGS]; withyctl COMMAND --help explains one, withyctl "
         "--version "
         "says which this is\n";
  size_t width = 0;
  for (const Command& c : commands) width = std::max(width, c.name.size() + c.operands.size() + 1);
  for (const Command& c : commands) {
    if (!c.name.starts_with(prefix)) continue;
    std::string head = absl::StrCat(c.name, " ", c.operands);
    head.resize(width, ' ');
    out << "  " << head << "  " << c.summary << "\n";
  }
}

void PrintHelp(const Command& command) {
  std::cout << "usage: withyctl " << command.name << " " << command.operands << " [FLAGS]\n"
            << command.summary << "\n";
  std::cout << FlagsHelp(command.flags);
}

int Run(int argc, char** argv) {
  const std::vector<Command> commands = AllCommands();
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "--version") {
    std::cout << "withyctl " << WITHY_VERSION << "\n";
    return kExitOk;
  }
  const std::string pair = argc > 2 ? absl::StrCat(first, " ", argv[2]) : first;
  const Command* found = nullptr;
  int used = 0;
  for (const Command& command : commands) {
    if (command.name != first && command.name != pair) continue;
    found = &command;
    used = command.name == first ? 2 : 3;
  }
  if (found == nullptr) {
    const bool group = std::any_of(commands.begin(), commands.end(), [&](const Command& c) {
      return c.name.starts_with(first + " ");
    });
    const bool asked = first == "--help" || first == "help" || (group && pair == first + " --help");
    if (!asked && !first.empty() && !group)
      std::cerr << "withyctl: unknown command \"" << first << "\"\n";
    PrintOverview(commands, group ? first + " " : "", asked ? std::cout : std::cerr);
    return asked ? kExitOk : kExitUsage;
  }
  const std::span<char* const> words(argv + used, argv + argc);
  if (std::any_of(words.begin(), words.end(),
                  [](const char* w) { return std::string_view(w) == "--help"; })) {
    PrintHelp(*found);
    return kExitOk;
  }
  const absl::StatusOr<Args> args = Args::Parse(found->flags, words);
  if (!args.ok()) return FailUsage(ToStd(args.status().message()));
  if (found->operands.empty() && !args->positional().empty()) {
    return FailUsage(absl::StrCat(found->name, " takes flags only, not \"",
                                  Printable(args->positional()[0]), "\""));
  }
  return found->run(*args);
}

}  // namespace
}  // namespace withy::cli

// Any command fails if its output cannot be written. A closed pipe ends the process at once, as
// usual.
int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_DFL);
  withy::cli::StandardOutput output(STDOUT_FILENO);
  std::streambuf* const before = std::cout.rdbuf(&output);
  const int code = withy::cli::Run(argc, argv);
  const absl::Status written = output.Finish();
  std::cout.rdbuf(before);
  if (written.ok()) return code;
  const int failed = withy::cli::Fail(written);
  return code == withy::cli::kExitOk ? failed : code;
}
