// A complete board in a temporary directory: the five real processes, which a test starts, kills
// and restarts, and an app's calls to them. For the end-to-end and fault tests.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "withy/v1/llm_service.grpc.pb.h"

namespace withy::e2e {

inline const std::vector<std::string> kProcesses = {"context_store", "model_worker", "draft_worker",
                                                    "profiler_agent", "orchestrator"};

// Everything an app received from one Generate.
struct Answer {
  absl::Status status;
  std::string text;               // the deltas, joined
  std::vector<v1::Token> tokens;  // theirs
  v1::GenerateStarted started;
  v1::GenerateFinished finished;  // default if the call failed
  int64_t retry_after_ms = -1;
};

// All bytes of a file; empty if it cannot be read.
std::string ReadAll(const std::string& path);

// A TCP port of this machine that is free now.
int FreePort();

class FdStore;

// Owned by one test. Thread-safe, except Start, Kill and Stop (one thread at a time).
class Board {
 public:
  // `overrides` are --set flags for every process, e.g. "orchestrator.queue_limit=2".
  explicit Board(std::vector<std::string> overrides = {});
  ~Board();

  // From now on keeps the KV arena of context_store over its restarts, as systemd does.
  void KeepArena();

  // Lets another program of the same directory be a process.
  void Use(const std::string& process, const std::string& program) { programs_[process] = program; }
  // Verifies all that is drafted: drafts do not depend on how fast this machine is just now.
  void SpeculateAlways() { Use("model_worker", "withy-bench-always-worker"); }

  // Starts one process; does not wait. Its log goes to log(process).
  void Start(const std::string& process);
  void StartAll() {
    for (const std::string& process : kProcesses) Start(process);
  }
  // Sends SIGKILL and waits until the process is gone.
  void Kill(const std::string& process);
  // Sends a signal that ends the process, waits, and returns the exit code.
  int Stop(const std::string& process, int signal = SIGTERM);
  pid_t Pid(const std::string& process) const { return pids_.at(process); }
  // Waits until a process exits on its own and returns the exit code; kills it after 30 s and
  // returns -1.
  int WaitForExit(const std::string& process);
  std::string Log(const std::string& process) const;

  // Waits until every started process is SERVING; returns false after `timeout`.
  bool WaitUntilServing(absl::Duration timeout = absl::Seconds(60));

  std::unique_ptr<v1::LlmService::Stub> NewStub() const;
  // Registers an app and returns its token.
  std::string BindApp(const std::string& app);

  const std::string& dir() const { return dir_; }
  std::string address() const { return "unix:" + dir_ + "/run/withy.sock"; }
  const std::string& metrics_address() const { return metrics_address_; }

 private:
  std::string dir_;
  std::string metrics_address_;
  std::vector<std::string> overrides_;
  std::map<std::string, std::string> programs_;  // in place of BinaryName()
  std::map<std::string, pid_t> pids_;
  std::unique_ptr<FdStore> fd_store_;
};

// A prompt with one user message and greedy sampling.
v1::GenerateRequest UserRequest(const std::string& context_id, const std::string& text,
                                uint32_t max_tokens);

// Calls Generate and reads the whole stream. `on_delta`, if given, is called after each delta;
// returning false cancels the call.
Answer Generate(v1::LlmService::Stub& stub, const std::string& token,
                const v1::GenerateRequest& request,
                const std::function<bool(const Answer&)>& on_delta = nullptr,
                absl::Duration timeout = absl::Seconds(60));

// Calls, as an app of its own, until an answer has tokens that draft_worker drafted: model_worker
// finds it a moment after both serve. False: none has, for half a minute.
bool WaitUntilDrafted(Board& board);

// Repeats a call with its request_id while it fails with UNAVAILABLE, ABORTED or
// RESOURCE_EXHAUSTED, as a robust app does.
Answer GenerateWithRetry(v1::LlmService::Stub& stub, const std::string& token,
                         const v1::GenerateRequest& request,
                         absl::Duration timeout = absl::Seconds(90));

// Creates a context and returns its id. A failure fails the test.
std::string CreateContext(v1::LlmService::Stub& stub, const std::string& token,
                          const std::string& system = "");
grpc::Status GetContext(v1::LlmService::Stub& stub, const std::string& token,
                        const std::string& context_id, v1::GetContextResponse* response);

// Client metadata with the app's token, and a deadline.
void Authorise(grpc::ClientContext* context, const std::string& token,
               absl::Duration timeout = absl::Seconds(30));

}  // namespace withy::e2e
