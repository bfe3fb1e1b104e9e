#include "context_store/records/app_registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/contract_limits.h"
#include "base/ids.h"
#include "base/status.h"
#include "rpc/error_reason.h"

namespace withy::context_store {
namespace {

constexpr size_t kSecretBytes = 32;

absl::Status CheckName(std::string_view name) {
  const auto allowed = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  };
  if (name.empty() || name.size() > kMaxAppNameBytes ||
      !std::all_of(name.begin(), name.end(), allowed)) {
    return absl::InvalidArgumentError(
        absl::StrCat("app name ", PrintableKey(name.substr(0, kMaxAppNameBytes + 1)),
                     ": must be 1 to ", kMaxAppNameBytes, " of letters, digits, '.', '_' and '-'"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<AppRegistry>> AppRegistry::Load(RecordDb& db, const Clock& clock) {
  std::unique_ptr<AppRegistry> registry(new AppRegistry(db, clock));
  std::map<std::string, AppRecord, std::less<>> apps;
  const auto visit = [&](std::string_view key, const absl::StatusOr<std::string>& payload) {
    AppRecord app;
    if (payload.ok() && Decode(*payload, &app).ok()) {
      apps.emplace(key.substr(kAppPrefix.size()), std::move(app));
    } else {
      ++registry->damaged_;
    }
    return true;
  };
  WITHY_RETURN_IF_ERROR(db.Scan(kAppPrefix, visit));
  absl::MutexLock lock(&registry->mutex_);
  for (const auto& [app_id, app] : apps) registry->ids_.insert_or_assign(app.name, app_id);
  registry->apps_ = std::move(apps);
  return registry;
}

absl::StatusOr<BoundApp> AppRegistry::Bind(std::string_view name, std::string_view current_token) {
  WITHY_RETURN_IF_ERROR(CheckName(name));
  const std::string current_hash = Sha256(current_token);
  absl::MutexLock write_lock(&write_mutex_);
  std::string app_id;
  AppRecord app;
  {
    absl::MutexLock lock(&mutex_);
    if (const auto known = ids_.find(name); known != ids_.end()) {
      app_id = known->second;
      app = apps_.at(app_id);
      if (!EqualConstantTime(app.token_hash, current_hash)) {
        return WithReason(absl::AlreadyExistsError(
                              absl::StrCat("an app named ", ToAbsl(name),
                                           " is registered, and only its present token renews it: "
                                           "send that token, choose another "
                                           "name, or let the operator run `withyctl apps renew ",
                                           ToAbsl(name), "`")),
                          "APP_NAME_TAKEN");
      }
    } else if (apps_.size() >= kMaxApps) {
      return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                            kMaxApps, " apps are registered, which is the limit: remove one")),
                        "QUOTA_REACHED");
    } else {
      app_id = NewId("app");
      app.name = std::string(name);
      app.created_unix_s = clock_.UnixNanos() / kNanosPerSecond;
    }
  }
  return IssueToken(std::move(app_id), std::move(app));
}

absl::StatusOr<BoundApp> AppRegistry::Renew(std::string_view name) {
  WITHY_RETURN_IF_ERROR(CheckName(name));
  absl::MutexLock write_lock(&write_mutex_);
  std::string app_id;
  AppRecord app;
  {
    absl::MutexLock lock(&mutex_);
    const auto known = ids_.find(name);
    if (known == ids_.end()) {
      return absl::NotFoundError(
          absl::StrCat("no app named ", ToAbsl(name), " is registered: bind it"));
    }
    app_id = known->second;
    app = apps_.at(app_id);
  }
  return IssueToken(std::move(app_id), std::move(app));
}

absl::StatusOr<BoundApp> AppRegistry::IssueToken(std::string app_id, AppRecord app) {
  BoundApp bound{std::move(app_id), ""};
  bound.token = absl::StrCat(bound.app_id, ".", ToHex(RandomBytes(kSecretBytes)));
  app.token_hash = Sha256(bound.token);
  RecordBatch batch;
  batch.Put(AppKey(bound.app_id), Encode(app));
  WITHY_RETURN_IF_ERROR(db_.Write(batch));
  absl::MutexLock lock(&mutex_);
  ids_.insert_or_assign(app.name, bound.app_id);
  apps_.insert_or_assign(bound.app_id, std::move(app));
  return bound;
}

absl::StatusOr<AppIdentity> AppRegistry::Authenticate(std::string_view token) const {
  const std::string hash = Sha256(token);
  const std::string_view app_id = token.substr(0, token.find('.'));
  absl::MutexLock lock(&mutex_);
  const auto app = apps_.find(app_id);
  if (app == apps_.end() || !EqualConstantTime(app->second.token_hash, hash)) {
    return absl::UnauthenticatedError("the app's token is not valid: bind the app again");
  }
  return AppIdentity{app->first, app->second.name};
}

absl::StatusOr<AppIdentity> AppRegistry::FindCertified(std::string_view name) const {
  absl::MutexLock lock(&mutex_);
  const auto known = ids_.find(name);
  if (known != ids_.end()) return AppIdentity{known->second, known->first};
  return absl::UnauthenticatedError(
      absl::StrCat("the client's certificate names the app ", PrintableKey(name),
                   ", which is not registered: `withyctl apps bind` on the board registers it"));
}

bool AppRegistry::Has(std::string_view app_id) const {
  absl::MutexLock lock(&mutex_);
  return apps_.contains(app_id);
}

std::vector<RegisteredApp> AppRegistry::List() const {
  absl::MutexLock lock(&mutex_);
  std::vector<RegisteredApp> apps;
  for (const auto& [name, app_id] : ids_) {
    apps.push_back({{app_id, name}, apps_.at(app_id).created_unix_s});
  }
  return apps;
}

size_t AppRegistry::size() const {
  absl::MutexLock lock(&mutex_);
  return apps_.size();
}

absl::Status AppRegistry::Remove(std::string_view app_id) {
  absl::MutexLock write_lock(&write_mutex_);
  if (!Has(app_id)) return absl::NotFoundError(absl::StrCat("no app ", PrintableKey(app_id)));
  RecordBatch batch;
  batch.Delete(AppKey(app_id));
  WITHY_RETURN_IF_ERROR(db_.Write(batch));
  absl::MutexLock lock(&mutex_);
  const auto app = apps_.find(app_id);
  ids_.erase(app->second.name);
  apps_.erase(app);
  return absl::OkStatus();
}

}  // namespace withy::context_store
