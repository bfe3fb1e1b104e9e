#include "context_store/store.h"

#include <signal.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/board.h"
#include "base/status.h"
#include "context_store/disk/read_probe.h"

namespace withy::context_store {
namespace {

using telemetry::Phase;
using telemetry::ScopedSpan;

// Low bits of an epoch count within one run of the store; the high bits are the run's number, so
// that epochs increase over restarts.
constexpr int kEpochBits = 32;
// Contexts that wait to be tidied. A context that finds no place is tidied after its next call.
constexpr size_t kTidyQueue = 1024;

uint32_t ChunksFor(uint32_t tokens) {
  constexpr auto kChunk = static_cast<uint32_t>(kChunkTokens);
  return tokens / kChunk + (tokens % kChunk == 0 ? 0 : 1);
}

bool StillRuns(const WorkerRecord& worker) {
  const auto pid = static_cast<pid_t>(worker.pid);
  // If we may not read a process's /proc entry (another user's), it counts as the same process
  // while its pid is in use.
  if (worker.start_ticks == 0) return kill(pid, 0) == 0 || errno == EPERM;
  return ProcessStartTicks(pid) == worker.start_ticks;
}

}  // namespace

Store::Store(StoreOptions options, const Clock& clock, telemetry::Recorder& recorder)
    : options_(std::move(options)),
      clock_(clock),
      recorder_(recorder),
      claim_span_(recorder.Name("claim")),
      commits_(recorder.counter({"withy_store_commits_total", "Leases committed, durably."})),
      broken_(recorder.counter(
          {"withy_store_broken_leases_total", "Leases that ended without commit or abort."})),
      faults_(recorder.counter(
          {"withy_store_chunk_faults_total", "KV chunks that did not match their identity."})),
      evicted_(recorder.counter(
          {"withy_store_evicted_chunks_total", "KV chunks of idle contexts evicted."})),
      refused_claims_(recorder.counter(
          {"withy_store_refused_claims_total", "Claims that found no free space."})),
      demoted_(recorder.counter(
          {"withy_store_demoted_chunks_total", "KV chunks stored anew in a smaller format."})),
      written_(
          recorder.counter({"withy_store_written_chunks_total", "KV chunks written to disk."})),
      read_(recorder.counter({"withy_store_read_chunks_total", "KV chunks read from disk."})),
      recomputed_(recorder.counter(
          {"withy_store_recomputed_chunks_total",
           "KV chunks that a load left to the worker to recompute while others were read."})),
      taken_over_(recorder.counter(
          {"withy_store_taken_over_chunks_total",
           "KV chunks that were to be read and were left to the worker while the load went on."})),
      kept_(recorder.counter({"withy_store_kept_chunks_total",
                              "KV chunks in the arena that outlived a restart of context_store."})),
      not_kept_(recorder.counter({"withy_store_unkept_chunks_total",
                                  "KV chunks in a kept arena that did not match their identity or "
                                  "checksum."})),
      space_free_(recorder.gauge({"withy_store_arena_bytes", "KV arena by state.",
                                  telemetry::Unit::kBytes, "state", "free"})),
      space_used_(recorder.gauge({"withy_store_arena_bytes", "KV arena by state.",
                                  telemetry::Unit::kBytes, "state", "used"})),
      space_quarantined_(recorder.gauge({"withy_store_arena_bytes", "KV arena by state.",
                                         telemetry::Unit::kBytes, "state", "quarantined"})),
      space_withheld_(recorder.gauge({"withy_store_arena_bytes", "KV arena by state.",
                                      telemetry::Unit::kBytes, "state", "withheld"})),
      space_locked_(
          recorder.gauge({"withy_store_arena_locked_bytes", "KV arena that is locked into memory.",
                          telemetry::Unit::kBytes})),
      space_missing_(recorder.gauge(
          {"withy_store_arena_missing_bytes",
           "What the KV arena is smaller than configured, because memory is limited.",
           telemetry::Unit::kBytes})),
      kv_usage_(recorder.gauge({"withy_kv_usage_ratio", "Share of the KV arena that calls hold.",
                                telemetry::Unit::kMillionths})),
      leases_gauge_(
          recorder.gauge({"withy_store_open_leases", "Leases that hold a context or blocks."})),
      record_bytes_gauge_(recorder.gauge(
          {"withy_store_record_bytes", "Conversations on disk.", telemetry::Unit::kBytes})),
      refused_by_quota_(recorder.counter(
          {"withy_store_quota_refusals_total", "Calls and contexts that a quota refused."})),
      metrics_(recorder),
      costs_(options_.kv_costs),
      calibrated_(costs_.load) {}

absl::StatusOr<std::unique_ptr<Store>> Store::Open(StoreOptions options, const Clock& clock,
                                                   telemetry::Recorder& recorder) {
  UniqueFd kept = std::move(options.kept_arena);
  std::unique_ptr<Store> store(new Store(std::move(options), clock, recorder));
  const StoreOptions& o = store->options_;
  WITHY_RETURN_IF_ERROR(store->OpenRecords());
  WITHY_ASSIGN_OR_RETURN(store->arena_,
                         Arena::Create(o.arena_bytes, std::move(kept), o.lock_limit_bytes));
  if (!o.kv.directory.empty()) WITHY_RETURN_IF_ERROR(store->OpenKv());
  store->space_missing_.Set(
      static_cast<int64_t>(std::max(o.wanted_arena_bytes, o.arena_bytes) - o.arena_bytes));
  WITHY_RETURN_IF_ERROR(store->LoadPreviousWorkers());
  store->directory_ =
      std::make_unique<ArenaDirectory>(store->arena_->directory(), store->arena_->bytes());
  {
    absl::MutexLock lock(&store->mutex_);
    store->table_ =
        std::make_unique<LeaseTable>(LeaseLimits{.arena_bytes = o.arena_bytes,
                                                 .open = o.max_leases,
                                                 .waiting = o.max_waiting_leases,
                                                 .eviction = o.eviction,
                                                 .compresses_ahead = o.compresses_ahead},
                                     store->FirstEpoch(), store->directory_.get());
  }
  store->tidy_ = std::make_unique<WorkPool>(1, kTidyQueue, clock);
  store->clean_up_ = std::make_unique<CleanUp>(
      [store = store.get()] { return store->CleanUpDeleted(); }, o.clean_up);
  if (store->keys_->expunge_left()) store->ExpungeOrLater("");
  store->tidy_->Run([store = store.get()] { store->RecordMetrics(); });
  if (store->kv_ != nullptr && o.probe_reads) {
    store->tidy_->Run([store = store.get()] { store->ProbeReads(); });
  }
  WITHY_RETURN_IF_ERROR(store->StartWatchingPressure());
  spdlog::info("{} apps, {} contexts in {}; arena of {} MiB{}", store->apps_->size(),
               store->contexts_->size(), o.db.path, o.arena_bytes >> 20,
               store->arena_->recovered() ? ", kept from the previous run" : "");
  if (const size_t damaged = store->apps_->damaged() + store->contexts_->damaged(); damaged > 0) {
    spdlog::error("{} records of apps and contexts in {} are damaged", damaged, o.db.path);
  }
  return store;
}

// Without its directory KV on disk is off, and every context is computed again after a restart.
absl::Status Store::OpenKv() {
  KvSegmentsOptions options = options_.kv;
  options.stop = &stop_;
  absl::StatusOr<std::unique_ptr<KvStorage>> opened =
      KvStorage::Open(std::move(options), *keys_, *db_, {options_.kv_daily_write_bytes, &clock_});
  if (absl::IsResourceExhausted(opened.status())) return opened.status();
  metrics_.without_disk.Set(opened.ok() ? 0 : 1);
  if (opened.ok()) {
    kv_ = *std::move(opened);
  } else {
    spdlog::error(
        "no KV is kept on disk until the next start, and contexts are computed again after it: {}; "
        "repair or remove {}",
        std::string(opened.status().message()), options_.kv.directory);
  }
  return absl::OkStatus();
}

// By now gRPC has ended every call and all their calls to the store. The lock shows this order to
// ThreadSanitizer, because every call has held it.
// Nothing must run that uses the rest.
Store::~Store() {
  StopWatchingPressure();
  clean_up_.reset();
  absl::Notification written;
  if (tidy_ != nullptr) {
    BeginStop();
    // If the queue is full, all of the time passes.
    (void)tidy_->TryRun([&] { written.Notify(); });
    written.WaitForNotificationWithTimeout(options_.last_writes);
  }
  stop_.Notify();
  if (const uint32_t left = idle_work_; left > 0) {
    spdlog::warn("KV of {} contexts is not on disk yet and will be computed again", left);
  }
  tidy_.reset();
  kv_.reset();
  const absl::MutexLock lock(&mutex_);
}

uint64_t Store::FirstEpoch() const { return db_->run() << kEpochBits; }

// Workers of an earlier store process matter only if its memory is kept.
absl::Status Store::LoadPreviousWorkers() {
  std::vector<WorkerRecord> workers;
  RecordBatch batch;
  const auto visit = [&](std::string_view key, const absl::StatusOr<std::string>& payload) {
    batch.Delete(key);
    WorkerRecord worker;
    if (payload.ok() && Decode(*payload, &worker).ok()) workers.push_back(worker);
    return true;
  };
  WITHY_RETURN_IF_ERROR(db_->Scan(kWorkerPrefix, visit));
  absl::MutexLock lock(&mutex_);
  if (arena_->recovered()) {
    previous_workers_ = std::move(workers);
    return absl::OkStatus();
  }
  return workers.empty() ? absl::OkStatus() : db_->Write(batch);
}

bool Store::PreviousWorkerLives(WorkerInstance attaching) {
  std::vector<WorkerRecord> workers;
  {
    absl::MutexLock lock(&mutex_);
    workers = previous_workers_;
  }
  std::erase_if(workers, [&](const WorkerRecord& worker) {
    return worker.instance == attaching || !StillRuns(worker);
  });
  absl::MutexLock lock(&mutex_);
  previous_workers_ = workers;
  return !workers.empty();
}

ContextKv Store::KvOf(std::string_view context_id) const {
  absl::MutexLock lock(&mutex_);
  return table_->KvOf(context_id);
}

std::vector<ContextChunk> Store::ChunksOf(std::string_view context_id) const {
  absl::MutexLock lock(&mutex_);
  return table_->ChunksOf(context_id);
}

std::optional<Store::Upgrade> Store::NextUpgrade() const {
  std::optional<IdleKv::Upgrade> next;
  {
    absl::MutexLock lock(&mutex_);
    next = table_->idle().NextUpgrade();
  }
  if (!next.has_value()) return std::nullopt;
  std::string app_id = contexts_->AppOf(next->context_id);
  if (app_id.empty()) return std::nullopt;  // being deleted
  return Upgrade{std::move(app_id), std::move(next->context_id), next->level_percent};
}

absl::StatusOr<Attached> Store::Attach(WorkerInstance worker, const Geometry& geometry,
                                       std::unordered_set<std::string> public_chunks) {
  for (const std::string& identity : public_chunks) {
    if (identity.size() == kIdentityBytes) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "public_chunks: an identity of ", identity.size(), " bytes; must be ", kIdentityBytes));
  }
  absl::MutexLock attaching(&attach_mutex_);
  if (PreviousWorkerLives(worker)) {
    return absl::FailedPreconditionError(
        "a worker from before the store's restart still has the arena mapped: it must attach "
        "first, "
        "or end");
  }
  Listeners ended;
  Attached attached;
  {
    absl::MutexLock lock(&mutex_);
    const auto written = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return writers_ == 0; };
    if (geometry != table_->geometry()) mutex_.Await(absl::Condition(&written));
    WITHY_ASSIGN_OR_RETURN(attached, table_->Attach(worker, geometry));
    table_->SetPublicChunks(std::move(public_chunks));
    ended = TakeEnded(attached.ended);
    RecordGauges();
  }
  if (attached.reset) WITHY_RETURN_IF_ERROR(AdoptEarlier(geometry));
  spdlog::info("worker {:x} attached: epoch {}, chunks of {} bytes, {} stale leases ended", worker,
               attached.epoch, geometry.ChunkBytes(KvFormat::kQ8), ended.size());
  for (const auto& listener : ended) {
    listener->OnEnded(
        absl::AbortedError("a worker attached again, the lease's epoch is over: attach again"));
  }
  return attached;
}

void Store::SetWorkerCosts(const KvCosts& costs) {
  absl::MutexLock lock(&mutex_);
  const policy::LoadCosts before = costs_.load;
  costs_ = costs;
  calibrated_ = costs.load;
  costs_.load.read_fixed_ms = before.read_fixed_ms;
  costs_.load.read_mib_ms = before.read_mib_ms;
}

void Store::ProbeReads() {
  KvSegmentsOptions options = options_.kv;
  options.stop = &stop_probe_;
  const absl::StatusOr<ReadCosts> costs = FindReadCosts(options, ReadBoard(), *db_, clock_);
  if (!costs.ok()) {
    spdlog::warn("the speed of {} is not known and is taken as {} ms for a MiB: {}",
                 options_.kv.directory, options_.kv_costs.load.read_mib_ms,
                 std::string(costs.status().message()));
    return;
  }
  spdlog::info("reading KV from {} takes {:.2f} ms and {:.2f} ms for a MiB", options_.kv.directory,
               costs->fixed_ms, costs->mib_ms);
  absl::MutexLock lock(&mutex_);
  costs_.load.read_fixed_ms = costs->fixed_ms;
  costs_.load.read_mib_ms = costs->mib_ms;
}

policy::LoadCosts Store::load_costs() const {
  absl::MutexLock lock(&mutex_);
  return costs_.load;
}

absl::StatusOr<ArenaOffer> Store::ConnectWorker(WorkerInstance worker, uint64_t epoch, pid_t pid) {
  const WorkerRecord record{worker, pid, ProcessStartTicks(pid).value_or(0)};
  ArenaOffer offer;
  {
    absl::MutexLock lock(&mutex_);
    if (epoch != table_->epoch()) {
      return absl::AbortedError(absl::StrCat("epoch ", epoch, " is over, the arena's is ",
                                             table_->epoch(), ": attach again"));
    }
    table_->WorkerConnected(worker);
    offer.epoch = epoch;
    offer.arena_bytes = arena_->bytes();
    offer.block_bytes = table_->geometry().block_bytes;
  }
  RecordBatch batch;
  batch.PutNote(WorkerKey(worker), Encode(record));  // a full disk refuses no worker
  // Without this record a restarted store would not know the worker, so the worker must not get the
  // memory.
  const absl::Status written = db_->Write(batch);
  if (!written.ok()) {
    DisconnectWorker(worker);
    return written;
  }
  return offer;
}

void Store::DisconnectWorker(WorkerInstance worker) {
  RecordBatch batch;
  batch.Delete(WorkerKey(worker));
  if (const absl::Status written = db_->Write(batch); !written.ok()) {
    spdlog::warn("worker {:x} is gone, its record stays: {}", worker,
                 std::string(written.message()));
  }
  Listeners ended;
  Notices notices;
  {
    absl::MutexLock lock(&mutex_);
    Effects effects = table_->WorkerGone(worker);
    ended = TakeEnded(effects.ended);
    notices = Apply(std::move(effects));
  }
  broken_.Add(ended.size());
  spdlog::info("worker {:x} is gone, {} leases ended", worker, ended.size());
  for (const auto& listener : ended) listener->OnEnded(absl::AbortedError("the worker is gone"));
  notices.Tell();
}

absl::StatusOr<LeaseOpening> Store::OpenLease(const LeaseSpec& spec,
                                              std::shared_ptr<LeaseListener> listener) {
  if (!spec.context_id.empty()) {
    WITHY_RETURN_IF_ERROR(contexts_->Find(spec.app_id, spec.context_id).status());
    if (!spec.rebuild) {
      WITHY_RETURN_IF_ERROR(CheckQuotas(spec.app_id, spec.context_id));
    }
  }
  const int64_t now = clock_.SteadyNanos();
  absl::MutexLock lock(&mutex_);
  if (stopping_ && (spec.ahead() || spec.rebuild))
    return absl::UnavailableError("context_store is shutting down");
  WITHY_ASSIGN_OR_RETURN(const LeaseOpening opening,
                         table_->Open({.epoch = spec.epoch,
                                       .context_id = spec.context_id,
                                       .rebuild = spec.rebuild,
                                       .app_id = spec.app_id,
                                       .ahead = spec.ahead(),
                                       .need = ChunksFor(spec.need_tokens)}));
  leases_.emplace(opening.id, OpenedLease{spec, std::move(listener), now});
  RecordGauges();
  return opening;
}

absl::Status Store::Begin(LeaseId lease, std::string app_id, uint64_t call_id,
                          uint32_t need_tokens) {
  absl::MutexLock lock(&mutex_);
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return absl::AbortedError("the lease is over");
  LeaseSpec& spec = found->second.spec;
  if (!spec.ahead() || app_id.empty()) {
    return absl::InvalidArgumentError(
        "begin: only for a lease that was opened without an app; it must name one");
  }
  spec.app_id = std::move(app_id);
  spec.call_id = call_id;
  return table_->Begin(lease, ChunksFor(need_tokens));
}

void Store::BeginStop() {
  Listeners ended;
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(stopping_, true)) return;
    stop_probe_.Notify();
    for (const auto& [id, lease] : leases_) {
      if (lease.spec.ahead() || lease.spec.rebuild) ended.push_back(lease.listener);
    }
  }
  for (const auto& listener : ended) {
    listener->OnEnded(absl::UnavailableError("context_store is shutting down"));
  }
}

absl::StatusOr<Store::OpenedLease> Store::Find(LeaseId lease) const {
  absl::MutexLock lock(&mutex_);
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return absl::AbortedError("the lease is over");
  return found->second;
}

absl::StatusOr<LoadedContext> Store::Load(LeaseId lease) {
  WITHY_ASSIGN_OR_RETURN(const OpenedLease opened, Find(lease));
  ScopedSpan span(recorder_, Phase::kLoad, opened.spec.call_id, /*sequence=*/0, TickClock());
  span.set_queued_ticks(opened.opened_ns);
  LoadedContext loaded;
  if (opened.spec.context_id.empty()) return loaded;
  const LeaseSpec& spec = opened.spec;
  CountOpening(spec);
  if (const uint64_t bytes = BytesToLoad(spec.context_id); bytes > 0) MakeRoom(bytes);
  loaded.resident = BringBack(lease, spec);
  span.set_value(loaded.resident.size());
  WITHY_ASSIGN_OR_RETURN(loaded.segments, contexts_->ReadSegments(spec.app_id, spec.context_id));
  WITHY_ASSIGN_OR_RETURN(
      const SegmentRange replaced,
      contexts_->FindUnfinished(spec.app_id, spec.context_id, spec.request, loaded.segments));
  loaded.left_out = RemoveRange(replaced, &loaded.segments);
  absl::MutexLock lock(&mutex_);
  if (const auto found = leases_.find(lease); found != leases_.end()) {
    found->second.replaces = replaced;
  }
  return loaded;
}

absl::StatusOr<ClaimAnswer> Store::Claim(LeaseId lease, uint32_t first, uint32_t count,
                                         bool may_wait) {
  WITHY_ASSIGN_OR_RETURN(const OpenedLease opened, Find(lease));
  ScopedSpan span(recorder_, claim_span_, opened.spec.call_id);
  span.set_value(count);
  if (!opened.spec.rebuild) MakeRoom(count * BytesOfNewChunk());
  uint64_t evicted = 0;
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<ClaimAnswer> claimed = table_->Claim(lease, first, count, &evicted, may_wait);
  evicted_.Add(evicted);
  if (absl::IsResourceExhausted(claimed.status())) refused_claims_.Add();
  if (!claimed.ok()) return claimed;
  TakeClaimed(lease, opened.spec.epoch, claimed->chunks);
  RecordGauges();
  return claimed;
}

void Store::TakeClaimed(LeaseId lease, uint64_t epoch, std::span<const ChunkSlot> chunks) {
  std::vector<KvSlot> slots;
  for (const ChunkSlot& chunk : chunks) {
    arena_->Stamp(table_->geometry().kv(), chunk.slot, epoch);
    slots.push_back(chunk.slot);
  }
  LockSlots(lease, slots);
}

absl::StatusOr<ResidentChunks> Store::Share(LeaseId lease, uint32_t first,
                                            const std::vector<LeaseTable::Identities>& wanted) {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<ResidentChunks> shared = table_->Share(lease, first, wanted);
  if (shared.ok()) {
    std::vector<KvSlot> slots;
    for (const ResidentChunk& chunk : *shared) slots.push_back(chunk.where.slot);
    LockSlots(lease, slots);
  }
  RecordGauges();
  return shared;
}

void Store::LockSlots(LeaseId lease, std::span<const KvSlot> slots) {
  std::vector<ByteRange> ranges;
  for (const KvSlot& slot : slots) {
    ranges.push_back({slot.offset(), table_->geometry().ChunkBytes(slot.format)});
  }
  arena_->locks().Hold(lease, std::move(ranges));
}

void Store::Forget(LeaseId lease) {
  leases_.erase(lease);
  arena_->locks().Drop(lease);
}

absl::Status Store::Fault(LeaseId lease, uint32_t chunk, std::string_view reason) {
  WITHY_ASSIGN_OR_RETURN(const OpenedLease opened, Find(lease));
  {
    absl::MutexLock lock(&mutex_);
    WITHY_RETURN_IF_ERROR(table_->Fault(lease, chunk));
  }
  faults_.Add();
  spdlog::warn("chunk {} of context {} does not match its identity: {}", chunk,
               opened.spec.context_id, PrintableKey(reason.substr(0, 200)));
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Store::Commit(LeaseId lease, LeaseOutcome outcome) {
  WITHY_ASSIGN_OR_RETURN(const OpenedLease opened, Find(lease));
  if (opened.spec.rebuild &&
      (!outcome.segments.empty() || outcome.result.has_value() || outcome.unfinished.has_value())) {
    return absl::InvalidArgumentError("commit of a rebuild: it must not append segments");
  }
  ScopedSpan span(recorder_, Phase::kCommit, opened.spec.call_id);
  span.set_value(outcome.segments.size());
  {
    absl::MutexLock lock(&mutex_);
    const auto stamped = [&](KvSlot slot, uint64_t epoch) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return arena_->HasStamp(table_->geometry().kv(), slot, epoch);
    };
    WITHY_ASSIGN_OR_RETURN(const uint32_t dropped,
                           table_->BeginCommit(lease, std::move(outcome.chunks), stamped));
    faults_.Add(dropped);
    if (dropped > 0) {
      spdlog::warn("{} chunks of context {} have a wrong epoch and are dropped", dropped,
                   opened.spec.context_id);
    }
  }
  const SegmentRange replaces = outcome.segments.empty() ? SegmentRange() : opened.replaces;
  absl::StatusOr<uint64_t> revision =
      contexts_->Commit({opened.spec.app_id, opened.spec.context_id, std::move(outcome.segments),
                         outcome.tokens, std::move(outcome.result), std::move(outcome.unfinished),
                         replaces, outcome.dropped, outcome.added_tokens});
  if (revision.ok()) commits_.Add();
  MeasureRecords();
  Notices notices;
  {
    absl::MutexLock lock(&mutex_);
    Effects effects = table_->FinishCommit(lease, revision.ok());
    Forget(lease);
    notices = Apply(std::move(effects));
  }
  notices.Tell();
  // A context that a call has again by now is left alone.
  if (!opened.spec.context_id.empty()) TidyLater(opened.spec.context_id);
  return revision;
}

void Store::Abort(LeaseId lease) { EndLease(lease, /*broken=*/false); }

void Store::Break(LeaseId lease) { EndLease(lease, /*broken=*/true); }

void Store::EndLease(LeaseId lease, bool broken) {
  Notices notices;
  {
    absl::MutexLock lock(&mutex_);
    if (!leases_.contains(lease) || table_->Committing(lease)) return;
    Effects effects = broken ? table_->Break(lease) : table_->Abort(lease);
    Forget(lease);
    notices = Apply(std::move(effects));
  }
  if (broken) broken_.Add();
  notices.Tell();
}

Store::Listeners Store::TakeEnded(const std::vector<LeaseId>& ended) {
  Listeners listeners;
  for (LeaseId id : ended) {
    const auto found = leases_.find(id);
    if (found == leases_.end()) continue;
    listeners.push_back(std::move(found->second.listener));
    Forget(id);
  }
  return listeners;
}

Store::Notices Store::Apply(Effects effects) {
  Notices notices;
  for (const LeaseId id : effects.granted) notices.granted.push_back(leases_.at(id).listener);
  for (LateClaim& claim : effects.claims) {
    const OpenedLease& lease = leases_.at(claim.lease);
    TakeClaimed(claim.lease, lease.spec.epoch, claim.chunks);
    if (!claim.refused.empty()) refused_claims_.Add();
    notices.claims.emplace_back(lease.listener, std::move(claim));
  }
  evicted_.Add(effects.evicted);
  RecordGauges();
  return notices;
}

void Store::Notices::Tell() {
  for (const auto& listener : granted) listener->OnGranted();
  for (auto& [listener, claim] : claims) {
    listener->OnClaimed(std::move(claim.chunks), std::move(claim.refused));
  }
}

void Store::AdvanceWaiting() {
  Notices notices;
  {
    absl::MutexLock lock(&mutex_);
    if (table_->waiting_for_room() == 0) return;
    notices = Apply(table_->Advance());
  }
  notices.Tell();
}

void Store::RecordGauges() {
  const SlotPool::Counts& counts = table_->slots().counts();
  space_free_.Set(counts.free);
  space_used_.Set(counts.claimed + counts.resident);
  space_quarantined_.Set(counts.quarantined);
  space_withheld_.Set(counts.withheld);
  constexpr int64_t kMillion = 1'000'000;
  kv_usage_.Set(counts.total == 0 ? 0
                                  : static_cast<int64_t>(table_->held_bytes()) * kMillion /
                                        static_cast<int64_t>(counts.total));
  metrics_.RecordSharing(table_->kv());
  space_locked_.Set(arena_->locks().locked_bytes());
  leases_gauge_.Set(table_->open_leases());
  metrics_.waiting_for_room.Set(table_->waiting_for_room());
}

}  // namespace withy::context_store
