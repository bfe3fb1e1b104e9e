#include "bench/engine/peer_bench.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/status.h"

namespace withy::bench {
namespace {

// Runs the program without a shell and returns its standard output. `any_status`: ignore its exit
// status.
absl::StatusOr<std::string> Output(const std::vector<std::string>& command, bool any_status) {
  std::array<int, 2> pipe_fds{};
  if (pipe2(pipe_fds.data(), O_CLOEXEC) != 0) return ErrnoError("make a pipe");
  const int pid = fork();
  if (pid < 0) return ErrnoError("start " + command[0]);
  if (pid == 0) {
    dup2(pipe_fds[1], STDOUT_FILENO);
    const int null = open("/dev/null", O_WRONLY);
    dup2(null, STDERR_FILENO);
    std::vector<char*> arguments;
    arguments.reserve(command.size() + 1);
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  close(pipe_fds[1]);
  std::string output;
  std::array<char, 4096> buffer{};
  for (ssize_t n; (n = read(pipe_fds[0], buffer.data(), buffer.size())) > 0;) {
    output.append(buffer.data(), static_cast<size_t>(n));
  }
  close(pipe_fds[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code == 127) return absl::NotFoundError(absl::StrCat(command[0], ": cannot be run"));
  if (code != 0 && !any_status) {
    return absl::InternalError(absl::StrCat(command[0], " ended with status ", code));
  }
  return output;
}

}  // namespace

absl::StatusOr<PeerBench> PeerBench::Open(const std::string& program) {
  WITHY_ASSIGN_OR_RETURN(std::string help, Output({program, "--help"}, /*any_status=*/true));
  return PeerBench(program, help.find("-rtr") != std::string::npos);
}

absl::StatusOr<PeerSpeed> PeerBench::Run(const std::string& gguf, int32_t threads, int32_t prompt,
                                         int32_t generate, Repack repack) const {
  std::vector<std::string> command = {program_,
                                      "-m",
                                      gguf,
                                      "-t",
                                      std::to_string(threads),
                                      "-p",
                                      std::to_string(prompt),
                                      "-n",
                                      std::to_string(generate),
                                      "-r",
                                      "1",
                                      "-o",
                                      "json"};
  if (repacks_ && repack == Repack::kIfOffered) command.insert(command.end(), {"-rtr", "1"});
  WITHY_ASSIGN_OR_RETURN(std::string output, Output(command, /*any_status=*/false));
  const size_t begin = output.find('[');
  const auto parsed = nlohmann::json::parse(begin == std::string::npos ? "" : output.substr(begin),
                                            nullptr, /*allow_exceptions=*/false);
  PeerSpeed speed;
  if (parsed.is_array()) {
    for (const auto& entry : parsed) {
      const double tok_s = entry.value("avg_ts", 0.0);
      if (entry.value("n_prompt", 0) == prompt && entry.value("n_gen", 0) == 0) {
        speed.prefill_tok_s = tok_s;
      } else if (entry.value("n_gen", 0) == generate && entry.value("n_prompt", 0) == 0) {
        speed.decode_tok_s = tok_s;
      }
    }
  }
  if (speed.prefill_tok_s <= 0 || speed.decode_tok_s <= 0) {
    return absl::InternalError(absl::StrCat(
        program_, " did not print the JSON of a llama-bench: ", output.substr(0, 200)));
  }
  return speed;
}

}  // namespace withy::bench
