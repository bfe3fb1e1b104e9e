#include "context_store/service.h"

#include <spdlog/spdlog.h>

#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "context_store/convert.h"
#include "context_store/lease/lease_reactor.h"
#include "rpc/daemon.h"
#include "rpc/status.h"

namespace withy::context_store {

grpc::ServerUnaryReactor* ContextStoreService::Answer(Context* context,
                                                      const absl::Status& status) {
  Reactor* reactor = context->DefaultReactor();
  reactor->Finish(rpc::ToGrpc(status));
  return reactor;
}

grpc::ServerUnaryReactor* ContextStoreService::OnPool(Context* context,
                                                      std::function<absl::Status()> work) {
  Reactor* reactor = context->DefaultReactor();
  // Request and response live until Finish.
  if (!pool_.TryRun([reactor, work = std::move(work)] { reactor->Finish(rpc::ToGrpc(work())); })) {
    reactor->Finish(rpc::ToGrpc(
        absl::ResourceExhaustedError("too many disk operations wait in context_store: retry")));
  }
  return reactor;
}

grpc::ServerUnaryReactor* ContextStoreService::BindApp(Context* context,
                                                       const v1::StoreBindAppRequest* request,
                                                       v1::BindAppResponse* response) {
  return OnPool(context, [=, this]() -> absl::Status {
    AppRegistry& apps = store_.apps();
    WITHY_ASSIGN_OR_RETURN(BoundApp bound,
                           request->operator_renewal()
                               ? apps.Renew(request->app())
                               : apps.Bind(request->app(), request->current_token()));
    response->set_app_id(std::move(bound.app_id));
    response->set_token(std::move(bound.token));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ContextStoreService::AuthenticateApp(
    Context* context, const v1::AuthenticateAppRequest* request,
    v1::AuthenticateAppResponse* response) {
  const absl::StatusOr<AppIdentity> app =
      request->certified_app().empty() ? store_.apps().Authenticate(request->token())
                                       : store_.apps().FindCertified(request->certified_app());
  if (app.ok()) {
    response->set_app_id(app->app_id);
    response->set_app(app->name);
  }
  return Answer(context, app.status());
}

grpc::ServerUnaryReactor* ContextStoreService::ListApps(Context* context,
                                                        const v1::ListAppsRequest*,
                                                        v1::ListAppsResponse* response) {
  for (RegisteredApp& app : store_.apps().List()) {
    v1::AppInfo* info = response->add_apps();
    info->set_contexts(store_.contexts().CountOf(app.identity.app_id));
    info->set_bytes(store_.contexts().BytesOf(app.identity.app_id));
    info->set_created_unix_s(app.created_unix_s);
    info->set_app_id(std::move(app.identity.app_id));
    info->set_app(std::move(app.identity.name));
  }
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* ContextStoreService::NextUpgrade(Context* context,
                                                           const v1::NextUpgradeRequest*,
                                                           v1::NextUpgradeResponse* response) {
  std::optional<Store::Upgrade> next = store_.NextUpgrade();
  if (!next.has_value()) return Answer(context, absl::NotFoundError("every context is up to date"));
  response->set_app_id(std::move(next->app_id));
  response->set_context_id(std::move(next->context_id));
  response->set_model_level_percent(next->level_percent);
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* ContextStoreService::RemoveApp(Context* context,
                                                         const v1::RemoveAppRequest* request,
                                                         v1::RemoveAppResponse*) {
  return OnPool(context, [=, this] { return store_.deletions().RemoveApp(request->app_id()); });
}

grpc::ServerUnaryReactor* ContextStoreService::CreateContext(
    Context* context, const v1::StoreCreateContextRequest* request,
    v1::CreateContextResponse* response) {
  return OnPool(context, [=, this]() -> absl::Status {
    if (!store_.apps().Has(request->app_id())) return absl::NotFoundError("no such app");
    const int64_t now = Clock::Real().UnixNanos() / kNanosPerSecond;
    WITHY_ASSIGN_OR_RETURN(const ContextSummary summary,
                           store_.records().Create(request->app_id(), FromProto(*request, now)));
    *response->mutable_context() = ToProto(summary, store_.KvOf(summary.context_id));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ContextStoreService::GetContext(Context* context,
                                                          const v1::StoreGetContextRequest* request,
                                                          v1::GetContextResponse* response) {
  return OnPool(context, [=, this]() -> absl::Status {
    ContextRecords& contexts = store_.contexts();
    WITHY_ASSIGN_OR_RETURN(const ContextSummary summary,
                           contexts.Find(request->app_id(), request->context_id()));
    WITHY_ASSIGN_OR_RETURN(const std::vector<std::string> segments,
                           contexts.ReadSegments(request->app_id(), request->context_id()));
    *response->mutable_context() = ToProto(summary, store_.KvOf(summary.context_id));
    AddChunks(store_.ChunksOf(summary.context_id), response);
    return AddMessages(segments, response);
  });
}

grpc::ServerUnaryReactor* ContextStoreService::ReadContext(
    Context* context, const v1::StoreGetContextRequest* request,
    v1::ReadContextResponse* response) {
  return OnPool(context, [=, this]() -> absl::Status {
    ContextRecords& contexts = store_.contexts();
    WITHY_ASSIGN_OR_RETURN(const ContextSummary summary,
                           contexts.Find(request->app_id(), request->context_id()));
    WITHY_ASSIGN_OR_RETURN(std::vector<std::string> segments,
                           contexts.ReadSegments(request->app_id(), request->context_id()));
    WITHY_ASSIGN_OR_RETURN(
        const SegmentRange unfinished,
        contexts.FindUnfinished(request->app_id(), request->context_id(),
                                {request->request_id(), request->request_digest()}, segments));
    *response->mutable_context() = ToProto(summary, store_.KvOf(summary.context_id));
    if (RemoveRange(unfinished, &segments) > 0) response->mutable_context()->set_tokens(0);
    return AddSegments(segments, response->mutable_segments());
  });
}

grpc::ServerUnaryReactor* ContextStoreService::ListContexts(
    Context* context, const v1::StoreListContextsRequest* request,
    v1::ListContextsResponse* response) {
  absl::StatusOr<ContextPage> page = store_.contexts().List(
      request->app_id(), request->request().page_size(), request->request().page_token());
  if (!page.ok()) return Answer(context, page.status());
  for (const ContextSummary& summary : page->contexts) {
    *response->add_contexts() = ToProto(summary, store_.KvOf(summary.context_id));
  }
  response->set_next_page_token(std::move(page->next_page_token));
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* ContextStoreService::DeleteContext(
    Context* context, const v1::StoreDeleteContextRequest* request, v1::DeleteContextResponse*) {
  return OnPool(context, [=, this] {
    return store_.deletions().DeleteContext(request->app_id(), request->context_id());
  });
}

grpc::ServerUnaryReactor* ContextStoreService::FindResult(Context* context,
                                                          const v1::FindResultRequest* request,
                                                          v1::FindResultResponse* response) {
  return OnPool(context, [=, this]() -> absl::Status {
    WITHY_ASSIGN_OR_RETURN(const std::string result,
                           store_.records().FindResult(request->app_id(), request->request_id(),
                                                       request->request_digest()));
    if (response->mutable_result()->ParseFromString(result)) return absl::OkStatus();
    return absl::DataLossError("the stored result cannot be read");
  });
}

grpc::ServerUnaryReactor* ContextStoreService::RotateMasterKey(
    Context* context, const v1::RotateMasterKeyRequest*, v1::RotateMasterKeyResponse* response) {
  return OnPool(context, [=, this]() -> absl::Status {
    WITHY_ASSIGN_OR_RETURN(std::string id, store_.deletions().RotateMasterKey());
    spdlog::info("the master key was replaced; the new one has id {}", id);
    response->set_master_key_id(std::move(id));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ContextStoreService::BeginBackup(Context* context,
                                                           const v1::BeginBackupRequest* request,
                                                           v1::BeginBackupResponse* response) {
  return OnPool(context, [=, this]() -> absl::Status {
    WITHY_ASSIGN_OR_RETURN(Backup backup,
                           store_.records().backups().Begin(!request->without_master_key()));
    response->set_backup_id(std::move(backup.id));
    response->set_directory(std::move(backup.directory));
    response->set_master_key_id(std::move(backup.master_key_id));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ContextStoreService::EndBackup(Context* context,
                                                         const v1::EndBackupRequest* request,
                                                         v1::EndBackupResponse*) {
  return OnPool(context,
                [=, this] { return store_.records().backups().End(request->backup_id()); });
}

grpc::ServerUnaryReactor* ContextStoreService::Attach(Context* context,
                                                      const v1::AttachRequest* request,
                                                      v1::AttachResponse* response) {
  const absl::StatusOr<Geometry> geometry = FromProto(*request);
  if (!geometry.ok()) return Answer(context, geometry.status());
  const absl::StatusOr<KvCosts> costs = FromProto(request->kv_costs());
  if (!costs.ok()) return Answer(context, costs.status());
  return OnPool(context, [=, this, geometry = *geometry, costs = *costs]() -> absl::Status {
    WITHY_ASSIGN_OR_RETURN(const Attached attached,
                           store_.arena_keeper().Attach(
                               request->worker_instance(), geometry, request->pid(),
                               {request->public_chunks().begin(), request->public_chunks().end()}));
    store_.costs().SetWorkerCosts(costs);
    response->set_epoch(attached.epoch);
    response->set_arena_bytes(store_.arena().bytes());
    response->set_arena_socket(arena_socket_);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ContextStoreService::GetStoreInfo(Context* context,
                                                            const v1::GetStoreInfoRequest*,
                                                            v1::GetStoreInfoResponse* response) {
  const StoreStats stats = store_.Stats();
  v1::ProcessStatus* status = response->mutable_status();
  rpc::FillProcessStatus("context_store", status);
  status->set_running_calls(stats.leases_open - stats.leases_ahead);
  status->set_queued_calls(stats.leases_waiting);
  status->set_queue_limit(stats.waiting_limit);
  status->set_arena_bytes(store_.arena().bytes());
  status->set_arena_used_bytes(stats.space.total - stats.space.free);
  status->set_detail(absl::StrCat(
      stats.attached ? "serving" : "waiting for a worker to attach",
      stats.arena_sum.empty() ? "" : "; the arena is smaller than configured: ", stats.arena_sum));
  response->set_epoch(stats.epoch);
  Fill(stats, response);
  response->set_leases_open(stats.leases_open);
  response->set_contexts(static_cast<uint32_t>(store_.contexts().size()));
  response->set_apps(static_cast<uint32_t>(store_.apps().size()));
  response->set_idle_work(stats.idle_work);
  return Answer(context, absl::OkStatus());
}

grpc::ServerBidiReactor<v1::LeaseRequest, v1::LeaseEvent>* ContextStoreService::Lease(Context*) {
  return LeaseReactor::Create(store_.leases(), pool_, lease_streams_);
}

}  // namespace withy::context_store
