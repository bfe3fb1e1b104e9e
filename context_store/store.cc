#include "context_store/store.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/board.h"
#include "base/status.h"
#include "context_store/arena/slot_layout.h"
#include "context_store/disk/read_probe.h"

namespace withy::context_store {
namespace {

// Low bits of an epoch count within one run of the store; the high bits are the run's number, so
// that epochs increase over restarts.
constexpr int kEpochBits = 32;

}  // namespace

Store::Store(StoreOptions options, const Clock& clock, telemetry::Recorder& recorder)
    : options_(std::move(options)),
      clock_(clock),
      recorder_(recorder),
      metrics_(recorder),
      costs_(options_.kv_costs) {}

absl::StatusOr<std::unique_ptr<Store>> Store::Open(StoreOptions options, const Clock& clock,
                                                   telemetry::Recorder& recorder) {
  UniqueFd kept = std::move(options.kept_arena);
  std::unique_ptr<Store> store(new Store(std::move(options), clock, recorder));
  const StoreOptions& o = store->options_;
  WITHY_ASSIGN_OR_RETURN(
      store->records_,
      Records::Open({o.db, o.limits, o.former, o.key, o.disk_bytes}, clock, recorder));
  WITHY_ASSIGN_OR_RETURN(store->arena_,
                         Arena::Create(o.arena_bytes, std::move(kept), o.lock_limit_bytes));
  if (!o.kv.directory.empty()) WITHY_RETURN_IF_ERROR(store->OpenDisk());
  store->metrics_.arena.missing.Set(
      static_cast<int64_t>(std::max(o.wanted_arena_bytes, o.arena_bytes) - o.arena_bytes));
  store->MakeParts();
  WITHY_RETURN_IF_ERROR(store->arena_keeper_->LoadPreviousWorkers());
  store->deletions_->ExpungeLeft();
  store->idle_->RecordMetricsLater();
  if (store->disk_ != nullptr && o.probe_reads) {
    store->idle_->Run([store = store.get()] { store->ProbeReads(); });
  }
  WITHY_ASSIGN_OR_RETURN(
      store->pressure_,
      PressureWatch::Start(o.pressure, *store->book_, *store->idle_, store->metrics_, clock));
  spdlog::info("{} apps, {} contexts in {}; arena of {} MiB{}", store->apps().size(),
               store->contexts().size(), o.db.path, o.arena_bytes >> 20,
               store->arena_->recovered() ? ", kept from the previous run" : "");
  if (const size_t damaged = store->apps().damaged() + store->contexts().damaged(); damaged > 0) {
    spdlog::error("{} records of apps and contexts in {} are damaged", damaged, o.db.path);
  }
  return store;
}

absl::Status Store::OpenDisk() {
  KvSegmentsOptions options = options_.kv;
  options.stop = &stop_;
  absl::StatusOr<std::unique_ptr<KvStorage>> opened =
      KvStorage::Open(std::move(options), records_->keys(), records_->db(),
                      {options_.kv_daily_write_bytes, &clock_});
  if (absl::IsResourceExhausted(opened.status())) return opened.status();
  metrics_.without_disk.Set(opened.ok() ? 0 : 1);
  if (opened.ok()) {
    disk_ = *std::move(opened);
  } else {
    spdlog::error(
        "no KV is kept on disk until the next start, and contexts are computed again after it: {}; "
        "repair or remove {}",
        std::string(opened.status().message()), options_.kv.directory);
  }
  return absl::OkStatus();
}

void Store::MakeParts() {
  const StoreOptions& o = options_;
  const uint64_t first_epoch = records_->db().run() << kEpochBits;
  book_ = std::make_unique<LeaseBook>(LeaseLimits{.arena_bytes = o.arena_bytes,
                                                  .open = o.max_leases,
                                                  .waiting = o.max_waiting_leases,
                                                  .eviction = o.eviction,
                                                  .compresses_ahead = o.compresses_ahead},
                                      first_epoch, *arena_, metrics_);
  idle_ = std::make_unique<IdleKeeper>(
      IdleParts{*book_, *records_, disk_.get(), costs_, metrics_, clock_},
      IdleOptions{.compression = {o.kv_ratio_percent / 100.0, o.precision},
                  .compresses_ahead = o.compresses_ahead,
                  .writes_ahead = o.writes_ahead});
  leases_ = std::make_unique<LeaseDesk>(LeaseDeskParts{
      *book_, *records_, *idle_, disk_.get(), costs_, metrics_, clock_, recorder_, o.load_policy});
  arena_keeper_ = std::make_unique<ArenaKeeper>(
      ArenaKeeperParts{*book_, *records_, *idle_, disk_.get(), metrics_, first_epoch});
  deletions_ =
      std::make_unique<Deletions>(*book_, *records_, disk_.get(), *idle_, metrics_, o.clean_up);
}

// By now gRPC has ended every call and all their calls to the store. The lock shows this order to
// ThreadSanitizer, because every call has held it.
Store::~Store() {
  pressure_.reset();
  deletions_.reset();
  if (idle_ != nullptr) {
    BeginStop();
    idle_->End(options_.last_writes);
  }
  stop_.Notify();
  idle_.reset();
  disk_.reset();
  if (book_ != nullptr) const absl::MutexLock lock(&book_->mutex());
}

void Store::BeginStop() {
  if (stopping_.exchange(true)) return;
  stop_probe_.Notify();
  idle_->BeginStop();
  leases_->BeginStop();
}

ContextKv Store::KvOf(std::string_view context_id) const {
  absl::MutexLock lock(&book_->mutex());
  return book_->table().kv().KvOf(context_id);
}

std::vector<ContextChunk> Store::ChunksOf(std::string_view context_id) const {
  absl::MutexLock lock(&book_->mutex());
  return book_->table().kv().ChunksOf(context_id);
}

std::optional<Store::Upgrade> Store::NextUpgrade() const {
  std::optional<IdleKv::Upgrade> next;
  {
    absl::MutexLock lock(&book_->mutex());
    next = book_->table().idle().NextUpgrade();
  }
  if (!next.has_value()) return std::nullopt;
  std::string app_id = records_->contexts().AppOf(next->context_id);
  if (app_id.empty()) return std::nullopt;  // being deleted
  return Upgrade{std::move(app_id), std::move(next->context_id), next->level_percent};
}

void Store::ProbeReads() {
  KvSegmentsOptions options = options_.kv;
  options.stop = &stop_probe_;
  const absl::StatusOr<ReadCosts> costs =
      FindReadCosts(options, ReadBoard(), records_->db(), clock_);
  if (!costs.ok()) {
    spdlog::warn("the speed of {} is not known and is taken as {} ms for a MiB: {}",
                 options_.kv.directory, options_.kv_costs.load.read_mib_ms,
                 std::string(costs.status().message()));
    return;
  }
  spdlog::info("reading KV from {} takes {:.2f} ms and {:.2f} ms for a MiB", options_.kv.directory,
               costs->fixed_ms, costs->mib_ms);
  costs_.SetReading(costs->fixed_ms, costs->mib_ms);
}

StoreStats Store::Stats() const {
  KvStorageStats disk;
  if (disk_ != nullptr) disk = disk_->Stats();
  const LeaseMetrics& leases = metrics_.leases;
  const ChunkMetrics& chunks = metrics_.chunks;
  absl::MutexLock lock(&book_->mutex());
  const LeaseTable& table = book_->table();
  const auto ahead = std::count_if(book_->leases().begin(), book_->leases().end(),
                                   [](const auto& entry) { return entry.second.spec.ahead(); });
  return {.epoch = table.epoch(),
          .attached = table.kv().geometry.layers > 0,
          .space = table.kv().pool.counts(),
          .largest_gap = LargestGap(table.kv().pool),
          .arena_sum = options_.arena_sum,
          .leases_open = table.state().open_leases(),
          .leases_ahead = static_cast<uint32_t>(ahead),
          .leases_waiting = table.state().waiting,
          .waiting_limit = options_.max_waiting_leases,
          .faults = chunks.faults.value(),
          .idle_work = idle_->waiting(),
          .locked_bytes = arena_->locks().locked_bytes(),
          .kept_chunks = chunks.kept.value(),
          .unkept_chunks = chunks.not_kept.value(),
          .evicted_chunks = chunks.evicted.value(),
          .demoted_chunks = chunks.demoted.value(),
          .demoted_bytes = chunks.demoted_bytes.value(),
          .read_chunks = chunks.read.value(),
          .written_chunks = chunks.written.value(),
          .not_written_chunks = chunks.not_written.value(),
          .shared_chunks = table.kv().shares,
          .opened_resident = leases.opened_resident.value(),
          .opened_partly = leases.opened_partly.value(),
          .opened_without = leases.opened_without.value(),
          .bytes = table.kv().Bytes(),
          .disk = disk};
}

}  // namespace withy::context_store
