#include "bench/speculation/speculation_wall_limited.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "bench/service/memory_cgroup.h"

namespace withy::bench {
namespace {

absl::Status DropFromCache(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError(absl::StrCat("open ", path));
  fdatasync(fd.get());
  posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  return absl::OkStatus();
}

// The flags of speculation_wall.cc that say the same.
std::vector<std::string> CommandOf(const WallRun& run, const std::string& cgroup) {
  return {"/proc/self/exe",
          absl::StrCat("--contestant=", run.contestant),
          absl::StrCat("--model=", run.packed),
          absl::StrCat("--draft=", run.draft),
          absl::StrCat("--gguf=", run.gguf),
          absl::StrCat("--peer=", run.program),
          absl::StrCat("--budget_bytes=", run.budget_bytes),
          absl::StrCat("--tokens=", run.tokens),
          absl::StrCat("--ways=", absl::StrJoin(run.ways, ",")),
          absl::StrCat("--prompts=", run.prompts),
          absl::StrCat("--open_prompts=", run.open_prompts),
          absl::StrCat("--answer_tokens=", run.answer_tokens),
          absl::StrCat("--threads=", run.threads),
          absl::StrCat("--cgroup=", cgroup)};
}

}  // namespace

absl::StatusOr<WallResult> RunLimited(const WallRun& run, uint64_t limit_bytes) {
  for (const std::string& path : {run.packed, run.draft, run.gguf}) {
    WITHY_RETURN_IF_ERROR(DropFromCache(path));
  }
  WITHY_ASSIGN_OR_RETURN(const MemoryCgroup cgroup, MemoryCgroup::Create("withy-wall"));
  WITHY_RETURN_IF_ERROR(cgroup.SetLimit(limit_bytes));
  std::array<int, 2> fds{};
  if (pipe2(fds.data(), O_CLOEXEC) != 0) return ErrnoError("make a pipe");
  const std::vector<std::string> command = CommandOf(run, cgroup.directory());
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int pid = fork();
  if (pid < 0) return ErrnoError("start a contestant");
  if (pid == 0) {
    dup2(fds[1], STDOUT_FILENO);
    if (!cgroup.Add(getpid()).ok()) _exit(126);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(fds[1]);
  std::string output;
  std::array<char, 4096> buffer{};
  for (ssize_t n; (n = read(fds[0], buffer.data(), buffer.size())) > 0;) {
    output.append(buffer.data(), static_cast<size_t>(n));
  }
  close(fds[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return absl::InternalError(absl::StrCat(run.contestant, " ended with status ", status,
                                            " under a limit of ", limit_bytes, " bytes"));
  }
  return ParseWallResult(output);
}

}  // namespace withy::bench
