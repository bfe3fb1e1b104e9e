#include "orchestrator/app_records.h"

#include <spdlog/spdlog.h>

#include "base/status.h"
#include "orchestrator/call/validate.h"

namespace withy::orchestrator {
namespace {

// How long a token that the operator renewed or removed may still be honoured (docs/operations.md).
constexpr int64_t kAuthTtlNs = 10 * kNanosPerSecond;
constexpr size_t kAuthEntries = 1024;
// More than apps can be registered at one time.
constexpr size_t kKnownApps = 8192;

}  // namespace

AppRecords::AppRecords(Backends& backends, const Clock& clock)
    : backends_(backends),
      clock_(clock),
      auth_(kAuthTtlNs, kAuthEntries),
      certified_(kAuthTtlNs, kAuthEntries) {}

absl::StatusOr<std::string> AppRecords::Authenticate(const Caller& caller, absl::Time deadline) {
  const bool by_name = caller.certified_app.has_value();
  const std::string& shown = by_name ? *caller.certified_app : caller.token;
  if (shown.empty()) {
    if (by_name) {
      return absl::UnauthenticatedError(
          "the client's certificate has neither a common name nor a DNS name: make one that names "
          "an app");
    }
    return absl::UnauthenticatedError(
        "no token: send the metadata `authorization: Bearer TOKEN`; `withyctl apps bind NAME` "
        "makes a token");
  }
  AuthCache& cache = by_name ? certified_ : auth_;
  if (auto app_id = cache.Find(shown, clock_.SteadyNanos()); app_id && KnowsName(*app_id)) {
    return *app_id;
  }
  v1::AuthenticateAppRequest request;
  by_name ? request.set_certified_app(shown) : request.set_token(shown);
  WITHY_ASSIGN_OR_RETURN(const v1::AuthenticateAppResponse app,
                         backends_.AuthenticateApp(request, deadline));
  cache.Put(shown, app.app_id(), clock_.SteadyNanos());
  absl::MutexLock lock(&names_mutex_);
  if (names_.size() >= kKnownApps) names_.clear();
  names_[app.app_id()] = app.app();
  return app.app_id();
}

std::string AppRecords::Recall(const Caller& caller) {
  const bool by_name = caller.certified_app.has_value();
  return by_name ? certified_.Recall(*caller.certified_app).value_or("")
                 : auth_.Recall(caller.token).value_or("");
}

bool AppRecords::KnowsName(const std::string& app_id) const {
  absl::MutexLock lock(&names_mutex_);
  return names_.contains(app_id);
}

std::string AppRecords::NameOf(const std::string& app_id) const {
  absl::MutexLock lock(&names_mutex_);
  const auto known = names_.find(app_id);
  return known == names_.end() || known->second.empty() ? app_id : known->second;
}

absl::StatusOr<v1::BindAppResponse> AppRecords::BindApp(const v1::BindAppRequest& request,
                                                        std::string_view current_token,
                                                        absl::Time deadline) {
  WITHY_RETURN_IF_ERROR(ValidateBindApp(request));
  v1::StoreBindAppRequest forwarded;
  forwarded.set_app(request.app());
  forwarded.set_current_token(std::string(current_token));
  WITHY_ASSIGN_OR_RETURN(v1::BindAppResponse bound, backends_.BindApp(forwarded, deadline));
  auth_.ForgetApp(bound.app_id());
  return bound;
}

absl::StatusOr<v1::CreateContextResponse> AppRecords::CreateContext(
    const std::string& app_id, const v1::CreateContextRequest& request, absl::Time deadline) {
  return Create(app_id, request, /*kept_by_service=*/false, deadline);
}

absl::StatusOr<v1::CreateContextResponse> AppRecords::CreateKeptContext(
    const std::string& app_id, const v1::CreateContextRequest& request, absl::Time deadline) {
  return Create(app_id, request, /*kept_by_service=*/true, deadline);
}

absl::StatusOr<v1::CreateContextResponse> AppRecords::Create(
    const std::string& app_id, const v1::CreateContextRequest& request, bool kept_by_service,
    absl::Time deadline) {
  WITHY_RETURN_IF_ERROR(ValidateCreateContext(request));
  v1::StoreCreateContextRequest forwarded;
  forwarded.set_app_id(app_id);
  *forwarded.mutable_request() = request;
  forwarded.set_kept_by_service(kept_by_service);
  return backends_.CreateContext(forwarded, deadline);
}

absl::StatusOr<v1::GetContextResponse> AppRecords::GetContext(const std::string& app_id,
                                                              const v1::GetContextRequest& request,
                                                              absl::Time deadline) {
  WITHY_RETURN_IF_ERROR(ValidateContextId(request.context_id()));
  v1::StoreGetContextRequest forwarded;
  forwarded.set_app_id(app_id);
  forwarded.set_context_id(request.context_id());
  return backends_.GetContext(forwarded, deadline);
}

absl::StatusOr<v1::ListContextsResponse> AppRecords::ListContexts(
    const std::string& app_id, const v1::ListContextsRequest& request, absl::Time deadline) {
  WITHY_RETURN_IF_ERROR(ValidateListContexts(request));
  v1::StoreListContextsRequest forwarded;
  forwarded.set_app_id(app_id);
  *forwarded.mutable_request() = request;
  return backends_.ListContexts(forwarded, deadline);
}

absl::StatusOr<v1::DeleteContextResponse> AppRecords::DeleteContext(
    const std::string& app_id, const v1::DeleteContextRequest& request, absl::Time deadline) {
  WITHY_RETURN_IF_ERROR(ValidateContextId(request.context_id()));
  v1::StoreDeleteContextRequest forwarded;
  forwarded.set_app_id(app_id);
  forwarded.set_context_id(request.context_id());
  auto deleted = backends_.DeleteContext(forwarded, deadline);
  // A context that is gone already may have been deleted by a call that could not tell the worker.
  if (!deleted.ok() && !absl::IsNotFound(deleted.status())) return deleted;
  v1::ForgetContextRequest forgotten;
  forgotten.set_app_id(app_id);
  forgotten.set_context_id(request.context_id());
  const auto reply = backends_.ForgetContext(forgotten, deadline);
  if (!reply.ok()) {
    // A worker that is away keeps nothing; one that hangs is restarted, or forgets in time.
    spdlog::debug("model_worker was not told of a deleted context: {}",
                  std::string(reply.status().message()));
  }
  return deleted;
}

}  // namespace withy::orchestrator
