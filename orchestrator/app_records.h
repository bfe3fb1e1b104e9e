// Apps and their contexts, as context_store keeps them: checks requests and forwards them.
// Neighbours: backends.h talks to the store, auth_cache.h remembers tokens, service.cc calls it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "orchestrator/auth_cache.h"
#include "orchestrator/board/backends.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

// Who calls, as the connection says.
struct Caller {
  std::string token = {};  // of the authorization metadata
  // The name in the client's certificate, which was verified. Nullopt: clients have no
  // certificates there, and tokens count.
  std::optional<std::string> certified_app = std::nullopt;
};

// Thread-safe. Every method may block for as long as `deadline` allows. Errors: as
// llm_service.proto says.
class AppRecords {
 public:
  AppRecords(Backends& backends, const Clock& clock);

  // The app that calls. Errors: UNAUTHENTICATED, UNAVAILABLE.
  absl::StatusOr<std::string> Authenticate(const Caller& caller, absl::Time deadline);
  // The app that calls, as far as it is known without a question to the store, for reports; else
  // empty. Does not block.
  std::string Recall(const Caller& caller);
  // The name of an app that authenticated lately; else its id.
  std::string NameOf(const std::string& app_id) const;
  // `current_token` came with the call; it renews its app's token.
  absl::StatusOr<v1::BindAppResponse> BindApp(const v1::BindAppRequest& request,
                                              std::string_view current_token, absl::Time deadline);

  absl::StatusOr<v1::CreateContextResponse> CreateContext(const std::string& app_id,
                                                          const v1::CreateContextRequest& request,
                                                          absl::Time deadline);
  // One that the service keeps for itself (ContextInfo.kept_by_service).
  absl::StatusOr<v1::CreateContextResponse> CreateKeptContext(
      const std::string& app_id, const v1::CreateContextRequest& request, absl::Time deadline);
  absl::StatusOr<v1::GetContextResponse> GetContext(const std::string& app_id,
                                                    const v1::GetContextRequest& request,
                                                    absl::Time deadline);
  absl::StatusOr<v1::ListContextsResponse> ListContexts(const std::string& app_id,
                                                        const v1::ListContextsRequest& request,
                                                        absl::Time deadline);
  absl::StatusOr<v1::DeleteContextResponse> DeleteContext(const std::string& app_id,
                                                          const v1::DeleteContextRequest& request,
                                                          absl::Time deadline);

 private:
  bool KnowsName(const std::string& app_id) const;
  absl::StatusOr<v1::CreateContextResponse> Create(const std::string& app_id,
                                                   const v1::CreateContextRequest& request,
                                                   bool kept_by_service, absl::Time deadline);

  Backends& backends_;
  const Clock& clock_;
  AuthCache auth_;       // by token
  AuthCache certified_;  // by name: no token may be taken for one
  mutable absl::Mutex names_mutex_;
  std::map<std::string, std::string> names_ ABSL_GUARDED_BY(names_mutex_);  // by app id
};

}  // namespace withy::orchestrator
