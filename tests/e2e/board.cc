#include "tests/e2e/board.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/unique_fd.h"
#include "gtest/gtest.h"
#include "rpc/channel.h"
#include "rpc/status.h"
#include "tests/e2e/test_model.h"

namespace withy::e2e {
namespace {

namespace fs = std::filesystem;

// Directory of the test binary, which also contains the five processes.
fs::path BinaryDir() { return fs::read_symlink("/proc/self/exe").parent_path(); }

std::string BinaryName(const std::string& process) {
  std::string name = "withy-" + process;
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

}  // namespace

int FreePort() {
  UniqueFd socket_fd(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  bind(socket_fd.get(), reinterpret_cast<sockaddr*>(&address), size);
  getsockname(socket_fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

// Stands in for systemd's fd store: receives a service's notifications on a socket and keeps the
// file descriptor that comes with FDSTORE=1.
class FdStore {
 public:
  explicit FdStore(const std::string& path) : path_(path) {
    socket_.Reset(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    stop_.Reset(eventfd(0, EFD_CLOEXEC));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    thread_ = std::thread([this] { Serve(); });
  }
  ~FdStore() {
    const uint64_t one = 1;
    EXPECT_EQ(write(stop_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
    thread_.join();
  }

  const std::string& path() const { return path_; }
  // A copy of what is kept; invalid if there is nothing.
  UniqueFd Kept() {
    absl::MutexLock lock(&mutex_);
    return UniqueFd(kept_.valid() ? fcntl(kept_.get(), F_DUPFD_CLOEXEC, 10) : -1);
  }

 private:
  void Serve() {
    for (;;) {
      pollfd polled[2] = {{stop_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}};
      if (poll(polled, 2, -1) < 0) continue;
      if (polled[0].revents != 0) return;
      Receive();
    }
  }
  void Receive() {
    char text[4096];
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    iovec data{text, sizeof text};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    const std::string_view words(text, got < 0 ? 0 : static_cast<size_t>(got));
    absl::MutexLock lock(&mutex_);
    if (words.find("FDSTOREREMOVE=1") != words.npos) kept_.Reset();
    const cmsghdr* rights = CMSG_FIRSTHDR(&message);
    if (rights == nullptr || rights->cmsg_type != SCM_RIGHTS) return;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(rights), sizeof fd);
    kept_.Reset(fd);
  }

  const std::string path_;
  UniqueFd socket_;
  UniqueFd stop_;
  absl::Mutex mutex_;
  UniqueFd kept_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

void Board::KeepArena() { fd_store_ = std::make_unique<FdStore>(dir_ + "/notify"); }

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

Board::Board(std::vector<std::string> overrides) : overrides_(std::move(overrides)) {
  char pattern[] = "/tmp/withy-e2e-XXXXXX";
  dir_ = mkdtemp(pattern);
  metrics_address_ = "127.0.0.1:" + std::to_string(FreePort());
  std::ofstream(dir_ + "/withy.textproto")
      << "run_dir: \"" << dir_ << "/run\"\nstate_dir: \"" << dir_ << "/state\"\n"
      << "store { arena_bytes: 33554432 }\nprofiler { metrics_listen: \"" << metrics_address_
      << "\" }\n"
      << "model { path: \"" << TestTargetPath() << "\" threads: 2 }\n"
      << "draft { path: \"" << TestDraftPath() << "\" threads: 1 }\n";
}

Board::~Board() {
  for (const std::string& process : kProcesses) Kill(process);
  fs::remove_all(dir_);
}

void Board::Start(const std::string& process) {
  const auto other = programs_.find(process);
  const std::string program = other == programs_.end() ? BinaryName(process) : other->second;
  std::vector<std::string> arguments = {(BinaryDir() / program).string(), "--config",
                                        dir_ + "/withy.textproto"};
  for (const std::string& override_flag : overrides_) {
    arguments.push_back("--set");
    arguments.push_back(override_flag);
  }
  UniqueFd kept;
  std::vector<std::string> variables;
  if (fd_store_ != nullptr && process == "context_store") {
    variables.push_back("NOTIFY_SOCKET=" + fd_store_->path());
    kept = fd_store_->Kept();
    if (kept.valid()) {
      variables.insert(variables.end(), {"LISTEN_FDS=1", "LISTEN_FDNAMES=arena"});
      // Only the process itself knows its pid.
      const std::vector<std::string> shell = {"/bin/sh", "-c", "export LISTEN_PID=$$; exec \"$@\"",
                                              "sh"};
      arguments.insert(arguments.begin(), shell.begin(), shell.end());
    }
  }
  std::vector<char*> argv, environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    environment.push_back(*variable);
  }
  for (std::string& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const std::string log = dir_ + "/" + process + ".log";
  posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  constexpr int kFirstPassedFd = 3;
  if (kept.valid()) posix_spawn_file_actions_adddup2(&actions, kept.get(), kFirstPassedFd);
  pid_t pid = -1;
  if (posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environment.data()) != 0) pid = -1;
  posix_spawn_file_actions_destroy(&actions);
  pids_[process] = pid;
}

void Board::Kill(const std::string& process) {
  const auto it = pids_.find(process);
  if (it == pids_.end() || it->second <= 0) return;
  kill(it->second, SIGKILL);
  waitpid(it->second, nullptr, 0);
  pids_.erase(it);
}

int Board::Stop(const std::string& process, int signal) {
  const auto it = pids_.find(process);
  if (it == pids_.end() || it->second <= 0) return -1;
  kill(it->second, signal);
  int status = 0;
  waitpid(it->second, &status, 0);
  pids_.erase(it);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int Board::WaitForExit(const std::string& process) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  int status = 0;
  while (waitpid(pids_[process], &status, WNOHANG) == 0) {
    if (absl::Now() > deadline) {
      Kill(process);
      return -1;
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  pids_.erase(process);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string Board::Log(const std::string& process) const {
  std::ifstream in(dir_ + "/" + process + ".log");
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

bool Board::WaitUntilServing(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  const auto stub = NewStub();
  while (absl::Now() < deadline) {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(5));
    context.set_wait_for_ready(true);
    v1::GetStatusResponse response;
    size_t serving = 0;
    if (stub->GetStatus(&context, {}, &response).ok()) {
      for (const v1::ProcessState& state : response.processes())
        serving += state.health() == "serving" ? 1 : 0;
    }
    if (serving >= pids_.size()) return true;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return false;
}

std::unique_ptr<v1::LlmService::Stub> Board::NewStub() const {
  return v1::LlmService::NewStub(rpc::Connect(address()));
}

std::string Board::BindApp(const std::string& app) {
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(30));
  context.set_wait_for_ready(true);
  v1::BindAppRequest request;
  request.set_app(app);
  v1::BindAppResponse response;
  const grpc::Status status = NewStub()->BindApp(&context, request, &response);
  return status.ok() ? response.token() : "";
}

v1::GenerateRequest UserRequest(const std::string& context_id, const std::string& text,
                                uint32_t max_tokens) {
  v1::GenerateRequest request;
  request.set_context_id(context_id);
  v1::Message* message = request.mutable_prompt()->mutable_messages()->add_messages();
  message->set_role("user");
  message->set_content(text);
  request.mutable_limits()->set_max_tokens(max_tokens);
  request.mutable_sampling()->set_temperature(0);
  return request;
}

void Authorise(grpc::ClientContext* context, const std::string& token, absl::Duration timeout) {
  context->AddMetadata("authorization", "Bearer " + token);
  context->set_wait_for_ready(true);
  rpc::SetTimeout(context, timeout);
}

Answer Generate(v1::LlmService::Stub& stub, const std::string& token,
                const v1::GenerateRequest& request,
                const std::function<bool(const Answer&)>& on_delta, absl::Duration timeout) {
  grpc::ClientContext context;
  Authorise(&context, token, timeout);
  const auto reader = stub.Generate(&context, request);
  Answer answer;
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (response.has_started()) answer.started = response.started();
    if (response.has_finished()) answer.finished = response.finished();
    if (!response.has_delta()) continue;
    answer.text += response.delta().text();
    answer.tokens.insert(answer.tokens.end(), response.delta().tokens().begin(),
                         response.delta().tokens().end());
    if (on_delta != nullptr && !on_delta(answer)) context.TryCancel();
  }
  answer.status = rpc::FromGrpc(reader->Finish());
  const auto& trailing = context.GetServerTrailingMetadata();
  if (const auto hint = trailing.find(rpc::kRetryAfterKey); hint != trailing.end()) {
    answer.retry_after_ms =
        std::atoll(std::string(hint->second.data(), hint->second.size()).c_str());
  }
  return answer;
}

bool WaitUntilDrafted(Board& board) {
  const auto stub = board.NewStub();
  const std::string token = board.BindApp("until-drafted");
  v1::GenerateRequest request = UserRequest("", "tell me about the weather", 8);
  request.set_speculation(v1::SPECULATION_DRAFT);
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (absl::Now() < deadline) {
    const Answer answer = Generate(*stub, token, request);
    if (!answer.status.ok()) return false;
    if (answer.finished.speculation().sources_size() > 0) return true;
  }
  return false;
}

Answer GenerateWithRetry(v1::LlmService::Stub& stub, const std::string& token,
                         const v1::GenerateRequest& request, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    Answer answer = Generate(stub, token, request, nullptr, deadline - absl::Now());
    const absl::StatusCode code = answer.status.code();
    const bool again = code == absl::StatusCode::kUnavailable ||
                       code == absl::StatusCode::kAborted ||
                       code == absl::StatusCode::kResourceExhausted;
    if (!again || absl::Now() > deadline) return answer;
    absl::SleepFor(absl::Milliseconds(answer.retry_after_ms > 0 ? answer.retry_after_ms : 50));
  }
}

std::string CreateContext(v1::LlmService::Stub& stub, const std::string& token,
                          const std::string& system) {
  grpc::ClientContext context;
  Authorise(&context, token);
  v1::CreateContextRequest request;
  request.set_system_prompt(system);
  v1::CreateContextResponse response;
  const grpc::Status status = stub.CreateContext(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.context().context_id();
}

grpc::Status GetContext(v1::LlmService::Stub& stub, const std::string& token,
                        const std::string& context_id, v1::GetContextResponse* response) {
  grpc::ClientContext context;
  Authorise(&context, token);
  v1::GetContextRequest request;
  request.set_context_id(context_id);
  return stub.GetContext(&context, request, response);
}

}  // namespace withy::e2e
