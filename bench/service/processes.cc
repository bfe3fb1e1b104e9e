#include "bench/service/processes.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/environment.h"
#include "base/status.h"

namespace withy::bench {
namespace {

namespace fs = std::filesystem;

constexpr size_t kTailBytes = 2000;

std::string ProgramOf(const std::string& process) {
  std::string name = "withy-" + process;
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

}  // namespace

absl::StatusOr<TemporaryDirectory> TemporaryDirectory::Create(const std::string& name) {
  const std::string parent = Environment("TMPDIR");
  std::string pattern = absl::StrCat(parent.empty() ? "/tmp" : parent, "/", name, "-XXXXXX");
  if (mkdtemp(pattern.data()) == nullptr) return ErrnoError("create directory " + pattern);
  TemporaryDirectory directory;
  directory.path_ = std::move(pattern);
  return directory;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

TemporaryDirectory::TemporaryDirectory(TemporaryDirectory&& other) noexcept
    : path_(std::exchange(other.path_, "")) {}

TemporaryDirectory& TemporaryDirectory::operator=(TemporaryDirectory&& other) noexcept {
  std::swap(path_, other.path_);
  return *this;
}

absl::StatusOr<Processes> Processes::Create(const std::string& directory,
                                            const std::string& config) {
  Processes processes(directory);
  std::ofstream file(directory + "/withy.textproto");
  file << "run_dir: \"" << processes.run_dir() << "\"\nstate_dir: \"" << processes.state_dir()
       << "\"\n"
       << config;
  file.close();
  if (!file) return ErrnoError("write " + directory + "/withy.textproto");
  return processes;
}

Processes::~Processes() {
  while (!running_.empty()) Kill(std::string(running_.begin()->first));
}

absl::Status Processes::Start(const std::string& name) {
  const auto other = programs_.find(name);
  const std::string program = other == programs_.end() ? ProgramOf(name) : other->second;
  std::string binary = fs::read_symlink("/proc/self/exe").parent_path() / program;
  std::string flag = "--config", config = directory_ + "/withy.textproto";
  char* argv[] = {binary.data(), flag.data(), config.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const std::string log = absl::StrCat(directory_, "/", name, ".log");
  posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  std::vector<char*> environment;
  for (std::string& one : environment_) environment.push_back(one.data());
  for (char** one = environ; *one != nullptr; ++one) environment.push_back(*one);
  environment.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, argv[0], &actions, nullptr, argv, environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return absl::ErrnoToStatus(error, absl::StrCat("start ", binary, " (build withy-services)"));
  }
  running_[name] = pid;
  return absl::OkStatus();
}

void Processes::Kill(const std::string& name) {
  const auto found = running_.find(name);
  if (found == running_.end()) return;
  kill(found->second, SIGKILL);
  waitpid(found->second, nullptr, 0);
  running_.erase(found);
}

void Processes::Signal(const std::string& name, int signal) const {
  const auto found = running_.find(name);
  if (found != running_.end()) kill(found->second, signal);
}

bool Processes::Stop(const std::string& name, absl::Duration grace) {
  const auto found = running_.find(name);
  if (found == running_.end()) return true;
  kill(found->second, SIGTERM);
  const absl::Time deadline = absl::Now() + grace;
  while (waitpid(found->second, nullptr, WNOHANG) == 0) {
    if (absl::Now() > deadline) {
      Kill(name);
      return false;
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  running_.erase(found);
  return true;
}

std::vector<std::string> Processes::TakeEnded() {
  std::vector<std::string> ended;
  for (auto it = running_.begin(); it != running_.end();) {
    int status = 0;
    if (waitpid(it->second, &status, WNOHANG) != it->second) {
      ++it;
      continue;
    }
    ended.push_back(absl::StrCat(it->first,
                                 WIFSIGNALED(status) ? " by signal " : " with exit code ",
                                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status)));
    it = running_.erase(it);
  }
  return ended;
}

std::string Processes::LogTail(const std::string& name) const {
  std::ifstream in(absl::StrCat(directory_, "/", name, ".log"));
  std::stringstream text;
  text << in.rdbuf();
  const std::string all = text.str();
  return all.size() <= kTailBytes ? all : "..." + all.substr(all.size() - kTailBytes);
}

}  // namespace withy::bench
