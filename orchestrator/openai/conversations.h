// Which context continues a conversation whose client sends all of it with every call, as clients
// of the OpenAI API do: so the KV of earlier turns is reused without the client's knowledge.
// Neighbours: http_door.cc asks before a call and tells how it went.
//
// The contexts are marked as the service's own in their records, which no app can do; `withyctl
// contexts` shows them. A few are kept for each app, the latest; what a client no longer continues
// is deleted, unless the app went on in it by itself. Nothing is lost when the orchestrator
// restarts: the contexts are found again by their marks and messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "orchestrator/app_records.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

// Digests of a conversation's beginnings: element i stands for the first i messages. Calls are the
// same however their arguments are written as JSON.
std::vector<std::string> ConversationDigests(const v1::Messages& messages);

// Thread-safe.
class Conversations {
 public:
  static constexpr char kTitle[] = "openai";  // for people
  // Contexts of an app that are kept.
  static constexpr size_t kKept = 16;

  explicit Conversations(AppRecords& apps) : apps_(apps) {}

  // A context to run a call on, by one call at a time.
  struct Place {
    std::string app_id;
    std::string context_id;
    size_t known_messages = 0;  // of the conversation: these are in the context already
  };

  // The context that has the longest beginning of `messages`, short of all, or a new one. nullopt:
  // the call is better off without (it is short, or the app has no room for a context). `deadline`
  // bounds the store's answers.
  std::optional<Place> Take(const std::string& app_id, const v1::Messages& messages,
                            absl::Time deadline);
  // After a call on it. `answer`: the message that a client repeats with its next call; null: the
  // call did not finish, and the context is deleted. Deletes contexts that are too many.
  void Return(const Place& place, const v1::Messages& messages, const v1::Message* answer,
              absl::Time deadline);

 private:
  struct Kept {
    std::string digest;  // of all messages, the last answer included
    std::string context_id;
    uint32_t messages = 0;  // of the context; 0: not known
  };
  struct App {
    bool found = false;       // contexts of an earlier run were looked for
    std::list<Kept> kept;     // not in use; latest first
    std::vector<Kept> stale;  // to be deleted
  };

  void FindEarlier(const std::string& app_id, absl::Time deadline);
  void DeleteStale(const std::string& app_id, absl::Time deadline);
  bool WasContinued(const std::string& app_id, const Kept& kept, absl::Time deadline) const;

  AppRecords& apps_;
  absl::Mutex mutex_;
  std::map<std::string, App> by_app_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace withy::orchestrator
