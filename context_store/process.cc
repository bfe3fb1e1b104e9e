#include "context_store/process.h"

#include <string>
#include <utility>
#include <vector>

#include "base/keep_in_memory.h"
#include "base/status.h"
#include "base/thread_role.h"
#include "context_store/arena/arena_plan.h"
#include "context_store/arena/memory_pressure.h"
#include "context_store/convert.h"
#include "context_store/disk/work_pool.h"
#include "context_store/service.h"
#include "context_store/side_socket.h"
#include "context_store/store.h"
#include "rpc/server.h"
#include "telemetry/about.h"
#include "telemetry/recorder.h"

namespace withy::context_store {
namespace {

constexpr int kDiskThreads =
    4;  // commits that wait for the disk at one time; RocksDB groups their syncs
constexpr size_t kDiskQueue = 1024;
constexpr int64_t kStuckNanos = 60 * kNanosPerSecond;

class ContextStoreProcess final : public rpc::Process {
 public:
  absl::Status Start(const proto::Config& config, UniqueFd kept_arena,
                     const policy::KvStrategy& strategy) {
    WITHY_ASSIGN_OR_RETURN(recorder_,
                           telemetry::Recorder::Open(config.run_dir() + "/rings", "context_store"));
    telemetry::RecordBuild(*recorder_);
    StoreOptions options;
    options.db.path = config.state_dir() + "/records";
    options.limits.contexts_per_app = config.orchestrator().contexts_per_app();
    options.limits.result_ttl_s = config.store().result_ttl_s();
    WITHY_ASSIGN_OR_RETURN(const ArenaPlan arena, PlanArena(config, kept_arena));
    options.arena_bytes = arena.bytes;
    options.wanted_arena_bytes = config.store().arena_bytes();
    options.arena_sum = arena.sum;
    options.kv_ratio_percent = config.store().kv_ratio_percent();
    options.precision = strategy.precision;
    options.compresses_ahead = strategy.compresses_ahead;
    options.eviction = strategy.eviction;
    options.load_policy = strategy.load;
    options.writes_ahead = strategy.writes_ahead;
    if (strategy.uses_disk) options.kv.directory = config.state_dir() + "/kv";
    options.kv.max_bytes = config.store().kv_disk_bytes();
    options.probe_reads = true;
    options.kv.bytes_per_second = config.store().kv_disk_bytes_per_second();
    options.key = FindMasterKey(config.store().master_key_path(), config.state_dir());
    options.limits.tokens_per_context = config.store().tokens_per_context();
    options.limits.bytes_per_app = config.store().bytes_per_app();
    constexpr uint64_t kNoLimit = uint64_t{1} << 40;  // the default
    if (config.store().disk_bytes() < kNoLimit) options.disk_bytes = config.store().disk_bytes();
    options.kv_daily_write_bytes = config.store().kv_daily_write_bytes();
    options.pressure.file = config.store().memory_pressure_file();
    if (options.pressure.file.empty()) options.pressure.file = FindPressureFile();
    options.pressure.rules.shrink_share = config.store().memory_pressure_percent() / 100.0;
    options.kept_arena = std::move(kept_arena);
    options.former = MakeLegacyResults();
    WITHY_ASSIGN_OR_RETURN(store_, Store::Open(std::move(options), Clock::Real(), *recorder_));
    KeepInMemory(arena.bytes);
    SetThreadRole(ThreadRole::kCarries);  // RocksDB's own threads exist by now
    if (!store_->arena().recovered()) KeepArenaInSystemd(store_->arena().fd());
    pool_ = std::make_unique<WorkPool>(kDiskThreads, kDiskQueue, Clock::Real());
    WITHY_ASSIGN_OR_RETURN(
        side_socket_, SideSocket::Start(config.run_dir() + "/arena.sock", store_->arena_keeper()));
    service_ = std::make_unique<ContextStoreService>(*store_, *pool_, side_socket_->path());
    WITHY_ASSIGN_OR_RETURN(server_, rpc::Server::Start({.name = "context_store",
                                                        .listen = {config.store().listen()},
                                                        .answers = &service_->lease_streams()},
                                                       {service_.get()}));
    server_->SetServing(true);
    return absl::OkStatus();
  }

  void Drain(absl::Duration grace) override {
    server_->SetServing(false);
    store_->BeginStop();
    server_->Shutdown(grace);
  }

  std::vector<std::string> addresses() const override { return server_->addresses(); }
  bool MakesProgress() override { return pool_->LongestRunNanos() < kStuckNanos; }
  int64_t PieceNanos() override { return pool_->LongestRunNanos(); }

 private:
  // Destroyed in reverse order: no call without a pool, no task without a store.
  std::unique_ptr<telemetry::Recorder> recorder_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<SideSocket> side_socket_;
  std::unique_ptr<WorkPool> pool_;
  std::unique_ptr<ContextStoreService> service_;
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<rpc::Process>> StartContextStore(
    const proto::Config& config, UniqueFd kept_arena, const policy::KvStrategy& strategy) {
  auto process = std::make_unique<ContextStoreProcess>();
  WITHY_RETURN_IF_ERROR(process->Start(config, std::move(kept_arena), strategy));
  return process;
}

}  // namespace withy::context_store
