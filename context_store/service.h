// withy.v1.ContextStore over gRPC: translates unary calls to store.h and back. Work that blocks on
// the disk runs on the pool. Neighbours: lease_reactor.h (the Lease stream), convert.h.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "context_store/disk/work_pool.h"
#include "context_store/store.h"
#include "rpc/open_streams.h"
#include "withy/v1/context_store.grpc.pb.h"

namespace withy::context_store {

// Thread-safe. `store` and `pool` are borrowed and must outlive the server.
class ContextStoreService final : public v1::ContextStore::CallbackService {
 public:
  // `arena_socket`: path where workers get the arena.
  ContextStoreService(Store& store, WorkPool& pool, std::string arena_socket)
      : store_(store), pool_(pool), arena_socket_(std::move(arena_socket)) {}

  // The Lease streams that are not fully sent.
  const rpc::OpenStreams& lease_streams() const { return lease_streams_; }

 private:
  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  Reactor* BindApp(Context*, const v1::StoreBindAppRequest*, v1::BindAppResponse*) override;
  Reactor* AuthenticateApp(Context*, const v1::AuthenticateAppRequest*,
                           v1::AuthenticateAppResponse*) override;
  Reactor* ListApps(Context*, const v1::ListAppsRequest*, v1::ListAppsResponse*) override;
  Reactor* RemoveApp(Context*, const v1::RemoveAppRequest*, v1::RemoveAppResponse*) override;
  Reactor* NextUpgrade(Context*, const v1::NextUpgradeRequest*, v1::NextUpgradeResponse*) override;
  Reactor* CreateContext(Context*, const v1::StoreCreateContextRequest*,
                         v1::CreateContextResponse*) override;
  Reactor* GetContext(Context*, const v1::StoreGetContextRequest*,
                      v1::GetContextResponse*) override;
  Reactor* ReadContext(Context*, const v1::StoreGetContextRequest*,
                       v1::ReadContextResponse*) override;
  Reactor* ListContexts(Context*, const v1::StoreListContextsRequest*,
                        v1::ListContextsResponse*) override;
  Reactor* DeleteContext(Context*, const v1::StoreDeleteContextRequest*,
                         v1::DeleteContextResponse*) override;
  Reactor* FindResult(Context*, const v1::FindResultRequest*, v1::FindResultResponse*) override;
  Reactor* Attach(Context*, const v1::AttachRequest*, v1::AttachResponse*) override;
  Reactor* GetStoreInfo(Context*, const v1::GetStoreInfoRequest*,
                        v1::GetStoreInfoResponse*) override;
  Reactor* RotateMasterKey(Context*, const v1::RotateMasterKeyRequest*,
                           v1::RotateMasterKeyResponse*) override;
  Reactor* BeginBackup(Context*, const v1::BeginBackupRequest*, v1::BeginBackupResponse*) override;
  Reactor* EndBackup(Context*, const v1::EndBackupRequest*, v1::EndBackupResponse*) override;
  grpc::ServerBidiReactor<v1::LeaseRequest, v1::LeaseEvent>* Lease(Context*) override;

  // Finishes the call now, or after running `work` on the pool.
  static Reactor* Answer(Context* context, const absl::Status& status);
  Reactor* OnPool(Context* context, std::function<absl::Status()> work);

  Store& store_;
  WorkPool& pool_;
  const std::string arena_socket_;
  rpc::OpenStreams lease_streams_;
};

}  // namespace withy::context_store
