#include "context_store/lease_desk.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "base/status.h"
#include "context_store/arena/hidden_kv.h"

namespace withy::context_store {
namespace {

using telemetry::Phase;
using telemetry::ScopedSpan;

// What a load yields to the worker when it begins, as a share of the plan's time. It asks for more.
constexpr double kFirstShare = policy::KvLoadProgress::kFirstYieldShare;

uint32_t ChunksFor(uint32_t tokens) {
  constexpr auto kChunk = static_cast<uint32_t>(kChunkTokens);
  return tokens / kChunk + (tokens % kChunk == 0 ? 0 : 1);
}

}  // namespace

LeaseDesk::LeaseDesk(const LeaseDeskParts& parts)
    : parts_(parts),
      book_(parts.book),
      contexts_(parts.records.contexts()),
      metrics_(parts.metrics),
      claim_span_(parts.recorder.Name("claim")) {}

absl::StatusOr<LeaseOpening> LeaseDesk::Open(const LeaseSpec& spec,
                                             std::shared_ptr<LeaseListener> listener) {
  if (!spec.context_id.empty()) {
    WITHY_RETURN_IF_ERROR(contexts_.Find(spec.app_id, spec.context_id).status());
    if (!spec.rebuild) {
      WITHY_RETURN_IF_ERROR(parts_.records.CheckQuotas(spec.app_id, spec.context_id));
    }
  }
  const int64_t now = parts_.clock.SteadyNanos();
  absl::MutexLock lock(&book_.mutex());
  if (stopping_ && (spec.ahead() || spec.rebuild))
    return absl::UnavailableError("context_store is shutting down");
  WITHY_ASSIGN_OR_RETURN(const LeaseOpening opening,
                         book_.table().Open({.epoch = spec.epoch,
                                             .context_id = spec.context_id,
                                             .rebuild = spec.rebuild,
                                             .app_id = spec.app_id,
                                             .ahead = spec.ahead(),
                                             .need = ChunksFor(spec.need_tokens)}));
  book_.Add(opening.id, {spec, std::move(listener), now});
  book_.RecordGauges();
  return opening;
}

absl::Status LeaseDesk::Begin(LeaseId lease, std::string app_id, uint64_t call_id,
                              uint32_t need_tokens) {
  absl::MutexLock lock(&book_.mutex());
  OpenLease* open = book_.Find(lease);
  if (open == nullptr) return absl::AbortedError("the lease is over");
  LeaseSpec& spec = open->spec;
  if (!spec.ahead() || app_id.empty()) {
    return absl::InvalidArgumentError(
        "begin: only for a lease that was opened without an app; it must name one");
  }
  spec.app_id = std::move(app_id);
  spec.call_id = call_id;
  return book_.table().Begin(lease, ChunksFor(need_tokens));
}

void LeaseDesk::BeginStop() {
  LeaseBook::Listeners ended;
  {
    absl::MutexLock lock(&book_.mutex());
    if (std::exchange(stopping_, true)) return;
    for (const auto& [id, lease] : book_.leases()) {
      if (lease.spec.ahead() || lease.spec.rebuild) ended.push_back(lease.listener);
    }
  }
  for (const auto& listener : ended) {
    listener->OnEnded(absl::UnavailableError("context_store is shutting down"));
  }
}

absl::StatusOr<LoadedContext> LeaseDesk::Load(LeaseId lease) {
  WITHY_ASSIGN_OR_RETURN(const OpenLease opened, book_.Get(lease));
  ScopedSpan span(parts_.recorder, Phase::kLoad, opened.spec.call_id, /*sequence=*/0, TickClock());
  span.set_queued_ticks(opened.opened_ns);
  LoadedContext loaded;
  if (opened.spec.context_id.empty()) return loaded;
  const LeaseSpec& spec = opened.spec;
  CountOpening(spec);
  if (const uint64_t bytes = BytesToLoad(spec.context_id); bytes > 0) parts_.idle.MakeRoom(bytes);
  loaded.resident = BringBack(lease, spec);
  span.set_value(loaded.resident.size());
  WITHY_ASSIGN_OR_RETURN(loaded.segments, contexts_.ReadSegments(spec.app_id, spec.context_id));
  WITHY_ASSIGN_OR_RETURN(
      const SegmentRange replaced,
      contexts_.FindUnfinished(spec.app_id, spec.context_id, spec.request, loaded.segments));
  loaded.left_out = RemoveRange(replaced, &loaded.segments);
  absl::MutexLock lock(&book_.mutex());
  if (OpenLease* open = book_.Find(lease); open != nullptr) open->replaces = replaced;
  return loaded;
}

void LeaseDesk::CountOpening(const LeaseSpec& spec) {
  absl::MutexLock lock(&book_.mutex());
  const ChunkPlaces places = book_.table().kv().PlacesOf(spec.context_id);
  if (places.resident + places.stored_only == 0) return;
  if (places.stored_only == 0) {
    metrics_.leases.opened_resident.Add();
  } else if (places.resident > 0) {
    metrics_.leases.opened_partly.Add();
  } else {
    metrics_.leases.opened_without.Add();
  }
}

uint64_t LeaseDesk::BytesToLoad(const std::string& context_id) const {
  absl::MutexLock lock(&book_.mutex());
  return context_store::BytesToLoad(book_.table().kv(), context_id);
}

ResidentChunks LeaseDesk::BringBack(LeaseId lease, const LeaseSpec& spec) {
  std::shared_ptr<ContextLoad> load;
  ResidentChunks resident;
  {
    absl::MutexLock lock(&book_.mutex());
    uint64_t evicted = 0;
    LoadRules rules{.costs = parts_.costs.loads(),
                    .policy = parts_.load_policy,
                    .level_percent = spec.level_percent};
    if (rules.policy == policy::LoadPolicy::kPrefix) rules.claimed_share = kFirstShare;
    std::vector<ChunkLoad> loads = book_.table().chunks().BeginLoad(lease, rules, &evicted);
    metrics_.chunks.evicted.Add(evicted);
    resident = book_.table().chunks().Resident(lease);
    std::vector<ChunkSlot> to_compute;
    std::vector<KvSlot> others;
    for (const ResidentChunk& chunk : resident) {
      if (chunk.state == ResidentChunk::State::kToCompute) {
        to_compute.push_back(chunk.where);
      } else {
        others.push_back(chunk.where.slot);
      }
    }
    book_.Stamp(lease, spec.epoch, to_compute);
    book_.KeepInMemory(lease, others);
    metrics_.chunks.recomputed.Add(to_compute.size());
    book_.RecordGauges();
    if (loads.empty()) return resident;
    load = std::make_shared<ContextLoad>(
        LoadTools{book_, *parts_.disk, parts_.costs, metrics_, parts_.clock, parts_.load_policy},
        lease, spec, std::move(loads), resident, rules.costs);
    if (OpenLease* open = book_.Find(lease); open != nullptr) open->load = load;
  }
  load->Advance();
  return resident;
}

void LeaseDesk::Yield(LeaseId lease, uint32_t computed_before, uint32_t most) {
  std::shared_ptr<ContextLoad> load;
  std::shared_ptr<LeaseListener> listener;
  {
    absl::MutexLock lock(&book_.mutex());
    const OpenLease* open = book_.Find(lease);
    if (open == nullptr) return;
    listener = open->listener;
    load = open->load;
  }
  if (load != nullptr) return load->Yield(computed_before, most);
  // Everything is there.
  listener->OnLoad({{.kind = policy::KvLoadEvent::Kind::kYielded, .change = 1}});
}

absl::StatusOr<ClaimAnswer> LeaseDesk::Claim(LeaseId lease, uint32_t first, uint32_t count,
                                             bool may_wait) {
  WITHY_ASSIGN_OR_RETURN(const OpenLease opened, book_.Get(lease));
  ScopedSpan span(parts_.recorder, claim_span_, opened.spec.call_id);
  span.set_value(count);
  if (!opened.spec.rebuild) {
    if (opened.load != nullptr) opened.load->GiveUp(first);
    parts_.idle.MakeRoom(count * book_.NewChunkBytes());
  }
  uint64_t evicted = 0;
  absl::MutexLock lock(&book_.mutex());
  absl::StatusOr<ClaimAnswer> claimed =
      book_.table().Claim(lease, first, count, &evicted, may_wait);
  metrics_.chunks.evicted.Add(evicted);
  if (absl::IsResourceExhausted(claimed.status())) metrics_.leases.refused_claims.Add();
  if (!claimed.ok()) return claimed;
  book_.Stamp(lease, opened.spec.epoch, claimed->chunks);
  book_.RecordGauges();
  return claimed;
}

bool LeaseDesk::MakesRoom(uint32_t chunks) const {
  return parts_.idle.MakesRoom(chunks * book_.NewChunkBytes());
}

absl::StatusOr<ResidentChunks> LeaseDesk::Share(
    LeaseId lease, uint32_t first, const std::vector<LeaseChunks::Identities>& wanted) {
  WITHY_ASSIGN_OR_RETURN(const OpenLease opened, book_.Get(lease));
  absl::StatusOr<ResidentChunks> shared;
  {
    absl::MutexLock lock(&book_.mutex());
    shared = book_.table().chunks().Share(lease, first, wanted);
    if (!shared.ok()) return shared;
    std::vector<KvSlot> slots;
    for (const ResidentChunk& chunk : *shared) slots.push_back(chunk.where.slot);
    book_.KeepInMemory(lease, slots);
    book_.RecordGauges();
  }
  if (opened.load != nullptr && !shared->empty()) opened.load->GiveUp(first);
  return shared;
}

absl::Status LeaseDesk::Fault(LeaseId lease, uint32_t chunk, std::string_view reason) {
  WITHY_ASSIGN_OR_RETURN(const OpenLease opened, book_.Get(lease));
  {
    absl::MutexLock lock(&book_.mutex());
    WITHY_RETURN_IF_ERROR(book_.table().chunks().Fault(lease, chunk));
  }
  if (opened.load != nullptr) opened.load->GiveUp(chunk);
  metrics_.chunks.faults.Add();
  spdlog::warn("chunk {} of context {} does not match its identity: {}", chunk,
               opened.spec.context_id, PrintableKey(reason.substr(0, 200)));
  return absl::OkStatus();
}

absl::Status LeaseDesk::BeginCommit(LeaseId lease, const std::string& context_id,
                                    std::vector<ChunkIdentity> chunks) {
  absl::MutexLock lock(&book_.mutex());
  const engine::KvGeometry geometry = book_.table().kv().geometry.kv();
  const auto stamped = [&](KvSlot slot, uint64_t epoch) {
    return book_.arena().HasStamp(geometry, slot, epoch);
  };
  WITHY_ASSIGN_OR_RETURN(const uint32_t dropped,
                         book_.table().BeginCommit(lease, std::move(chunks), stamped));
  metrics_.chunks.faults.Add(dropped);
  if (dropped > 0) {
    spdlog::warn("{} chunks of context {} have a wrong epoch and are dropped", dropped, context_id);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> LeaseDesk::Commit(LeaseId lease, LeaseOutcome outcome) {
  WITHY_ASSIGN_OR_RETURN(const OpenLease opened, book_.Get(lease));
  if (opened.spec.rebuild &&
      (!outcome.segments.empty() || outcome.result.has_value() || outcome.unfinished.has_value())) {
    return absl::InvalidArgumentError("commit of a rebuild: it must not append segments");
  }
  ScopedSpan span(parts_.recorder, Phase::kCommit, opened.spec.call_id);
  span.set_value(outcome.segments.size());
  WITHY_RETURN_IF_ERROR(BeginCommit(lease, opened.spec.context_id, std::move(outcome.chunks)));
  const SegmentRange replaces = outcome.segments.empty() ? SegmentRange() : opened.replaces;
  absl::StatusOr<uint64_t> revision =
      contexts_.Commit({opened.spec.app_id, opened.spec.context_id, std::move(outcome.segments),
                        outcome.tokens, std::move(outcome.result), std::move(outcome.unfinished),
                        replaces, outcome.dropped, outcome.added_tokens});
  if (revision.ok()) metrics_.leases.commits.Add();
  parts_.records.Measure();
  LeaseNotices notices;
  {
    absl::MutexLock lock(&book_.mutex());
    Effects effects = book_.table().FinishCommit(lease, revision.ok());
    book_.Forget(lease);
    notices = book_.Apply(std::move(effects));
  }
  notices.Tell();
  book_.AdvanceWaiting();
  // A context that a call has again by now is left alone.
  if (!opened.spec.context_id.empty()) parts_.idle.TidyLater(opened.spec.context_id);
  return revision;
}

void LeaseDesk::Abort(LeaseId lease) { EndLease(lease, /*broken=*/false); }

void LeaseDesk::Break(LeaseId lease) { EndLease(lease, /*broken=*/true); }

void LeaseDesk::EndLease(LeaseId lease, bool broken) {
  LeaseNotices notices;
  {
    absl::MutexLock lock(&book_.mutex());
    LeaseTable& table = book_.table();
    if (book_.Find(lease) == nullptr || table.state().Committing(lease)) return;
    Effects effects = broken ? table.Break(lease) : table.Abort(lease);
    book_.Forget(lease);
    notices = book_.Apply(std::move(effects));
  }
  if (broken) metrics_.leases.broken.Add();
  notices.Tell();
  book_.AdvanceWaiting();
}

}  // namespace withy::context_store
