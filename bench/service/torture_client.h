// The apps of the torture benchmark: each holds conversations whose every text is known in advance,
// retries what fails as a robust app does, and compares what it got and what the service kept with
// what an uninterrupted run gave. Neighbour: torture.cc kills the processes meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "withy/v1/llm_service.grpc.pb.h"

namespace withy::bench {

inline constexpr int kTortureTurns = 5;        // of a conversation
inline constexpr int kTortureScripts = 3;      // conversations that an app repeats
inline constexpr int kTortureInterleaved = 2;  // contexts that an app uses in turn

// What an app says. Each script has a word of its own, which no other context may show.
std::string TortureSecret(int app, int script);
std::string TorturePrompt(int app, int script, int turn);

// By (app, script): the answer to each turn.
using TortureAnswers = std::map<std::pair<int, int>, std::vector<std::string>>;

// Thread-safe.
class TortureLedger {
 public:
  struct Counts {
    uint64_t calls = 0;       // that returned an answer
    uint64_t lost = 0;        // of them: not in the record, or another answer to the same request
    uint64_t foreign = 0;     // texts that show another context's secret
    uint64_t mismatched = 0;  // answers other than those of the uninterrupted run
    uint64_t failed = 0;      // calls that ended with an error that no retry may mend
  };
  Counts counts() const;
  uint64_t calls() const { return calls_; }

  void Returned() { ++calls_; }
  // Each also prints `what`, as far as there are not too many of them.
  void Lost(const std::string& what) { Note(&Counts::lost, "lost", what); }
  void Foreign(const std::string& what) { Note(&Counts::foreign, "foreign", what); }
  void Mismatched(const std::string& what) { Note(&Counts::mismatched, "mismatched", what); }
  void Failed(const std::string& what) { Note(&Counts::failed, "failed", what); }

 private:
  void Note(uint64_t Counts::*count, const char* kind, const std::string& what);

  std::atomic<uint64_t> calls_ = 0;
  mutable absl::Mutex mutex_;
  Counts counts_ ABSL_GUARDED_BY(mutex_);
};

// One app, on a thread of its own between Start and Stop.
class TortureApp {
 public:
  // Binds the app at `address`. Errors: of BindApp.
  static absl::StatusOr<std::unique_ptr<TortureApp>> Create(const std::string& address, int app);
  ~TortureApp() { Stop(); }

  // Answers to a script, from a new context, without retries of calls.
  absl::StatusOr<std::vector<std::string>> Record(int script);
  absl::StatusOr<std::string> CreateContext(const std::string& request_id);
  // One try of one call, and the messages of a context's record. Errors: of the calls.
  absl::StatusOr<std::string> Say(const std::string& context_id, const std::string& text);
  absl::StatusOr<int> Messages(const std::string& context_id);
  // Talks until Stop. `expected`: empty = answers are not compared. Both are borrowed.
  void Start(const TortureAnswers& expected, TortureLedger& ledger);
  // The conversations that have begun are checked and end.
  void Stop();

 private:
  struct Conversation {
    int script = 0;
    int number = 0;  // of this app; names its requests
    std::string context_id = "";
    std::vector<std::string> answers = {};
  };

  TortureApp(int app, std::unique_ptr<v1::LlmService::Stub> stub)
      : app_(app), stub_(std::move(stub)) {}
  v1::GenerateRequest RequestOf(const Conversation& conversation, int turn) const;
  absl::StatusOr<std::string> Generate(const v1::GenerateRequest& request, absl::Duration timeout);
  void Talk();
  // Return whether the app can go on.
  bool Begin(Conversation* conversation);
  bool Turn(Conversation* conversation);
  bool Finish(const Conversation& conversation);
  void CheckSecrets(const Conversation& conversation, const std::string& text);

  const int app_;
  const std::unique_ptr<v1::LlmService::Stub> stub_;
  std::string token_;
  const TortureAnswers* expected_ = nullptr;
  TortureLedger* ledger_ = nullptr;
  int last_number_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace withy::bench
