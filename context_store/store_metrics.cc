#include "context_store/store_metrics.h"

namespace withy::context_store {
namespace {

using telemetry::Counter;
using telemetry::Gauge;
using telemetry::Recorder;
using telemetry::Unit;

Counter& Opened(Recorder& recorder, const char* kv) {
  return recorder.counter({.name = "withy_store_opened_contexts_total",
                           .help = "Contexts with KV that a call opened, by where it was.",
                           .label_key = "kv",
                           .label_value = kv});
}

Counter& Damage(Recorder& recorder, const char* kind) {
  return recorder.counter(
      {.name = "withy_store_kv_damage_total",
       .help = "Extents of KV on disk that could not be used, by what was found.",
       .label_key = "kind",
       .label_value = kind});
}

Gauge& ArenaBytes(Recorder& recorder, const char* state) {
  return recorder.gauge(
      {"withy_store_arena_bytes", "KV arena by state.", Unit::kBytes, "state", state});
}

Counter& Bytes(Recorder& recorder, const char* name, const char* help) {
  return recorder.counter({.name = name, .help = help, .unit = Unit::kBytes});
}

}  // namespace

LeaseMetrics::LeaseMetrics(Recorder& recorder)
    : commits(recorder.counter({"withy_store_commits_total", "Leases committed, durably."})),
      broken(recorder.counter(
          {"withy_store_broken_leases_total", "Leases that ended without commit or abort."})),
      refused_claims(recorder.counter(
          {"withy_store_refused_claims_total", "Claims that found no free space."})),
      open(recorder.gauge({"withy_store_open_leases", "Leases that hold a context or blocks."})),
      waiting_for_room(recorder.gauge(
          {.name = "withy_store_waiting_for_room",
           .help = "Calls that wait for room in the KV arena that other calls hold."})),
      opened_resident(Opened(recorder, "resident")),
      opened_partly(Opened(recorder, "partly")),
      opened_without(Opened(recorder, "absent")) {}

ChunkMetrics::ChunkMetrics(Recorder& recorder)
    : faults(recorder.counter(
          {"withy_store_chunk_faults_total", "KV chunks that did not match their identity."})),
      evicted(recorder.counter(
          {"withy_store_evicted_chunks_total", "KV chunks of idle contexts evicted."})),
      demoted(recorder.counter(
          {"withy_store_demoted_chunks_total", "KV chunks stored anew in a smaller format."})),
      hidden_bytes(Bytes(recorder, "withy_store_hidden_bytes_total",
                         "Bytes of the arena freed of KV that sliding windows hide.")),
      demoted_bytes(Bytes(recorder, "withy_store_demoted_bytes_total",
                          "Bytes of the arena freed by storing KV in fewer bits.")),
      written(recorder.counter({"withy_store_written_chunks_total", "KV chunks written to disk."})),
      not_written(recorder.counter({.name = "withy_store_unwritten_chunks_total",
                                    .help = "KV chunks not written, to spare the disk."})),
      read(recorder.counter({"withy_store_read_chunks_total", "KV chunks read from disk."})),
      recomputed(recorder.counter(
          {"withy_store_recomputed_chunks_total",
           "KV chunks that a load left to the worker to recompute while others were read."})),
      yielded(recorder.counter(
          {"withy_store_taken_over_chunks_total",
           "KV chunks that were to be read and were left to the worker while the load went on."})),
      kept(recorder.counter({"withy_store_kept_chunks_total",
                             "KV chunks in the arena that outlived a restart of context_store."})),
      not_kept(recorder.counter({"withy_store_unkept_chunks_total",
                                 "KV chunks in a kept arena that did not match their identity or "
                                 "checksum."})) {}

ArenaMetrics::ArenaMetrics(Recorder& recorder)
    : free(ArenaBytes(recorder, "free")),
      used(ArenaBytes(recorder, "used")),
      quarantined(ArenaBytes(recorder, "quarantined")),
      withheld(ArenaBytes(recorder, "withheld")),
      locked(recorder.gauge({"withy_store_arena_locked_bytes",
                             "KV arena that is locked into memory.", telemetry::Unit::kBytes})),
      missing(recorder.gauge(
          {"withy_store_arena_missing_bytes",
           "What the KV arena is smaller than configured, because memory is limited.",
           telemetry::Unit::kBytes})),
      usage(recorder.gauge({"withy_kv_usage_ratio", "Share of the KV arena that calls hold.",
                            telemetry::Unit::kMillionths})) {}

void ArenaMetrics::Record(const SlotPool::Counts& counts, uint64_t held_bytes,
                          uint64_t locked_bytes) {
  constexpr int64_t kMillion = 1'000'000;
  free.Set(counts.free);
  used.Set(counts.claimed + counts.resident);
  quarantined.Set(counts.quarantined);
  withheld.Set(counts.withheld);
  locked.Set(locked_bytes);
  usage.Set(counts.total == 0
                ? 0
                : static_cast<int64_t>(held_bytes) * kMillion / static_cast<int64_t>(counts.total));
}

StoreMetrics::StoreMetrics(Recorder& recorder)
    : leases(recorder),
      chunks(recorder),
      arena(recorder),
      failed_cleanups(recorder.counter(
          {.name = "withy_store_failed_cleanups_total",
           .help = "Tries to free what something deleted had that failed; each is repeated."})),
      cleanups_left(
          recorder.gauge({.name = "withy_store_cleanups_left",
                          .help = "Deleted contexts and keys whose space is not freed yet."})),
      without_disk(recorder.gauge(
          {.name = "withy_store_kv_without_disk",
           .help = "1 while no KV is kept on disk because its directory could not be used."})),
      kv_bytes_(Bytes(recorder, "withy_store_kv_bytes_total", "Bytes of KV given to the disk.")),
      written_bytes_(Bytes(recorder, "withy_store_kv_written_bytes_total",
                           "Bytes written to the disk for KV, checks and padding included.")),
      read_bytes_(Bytes(recorder, "withy_store_kv_read_bytes_total", "Bytes of KV read.")),
      given_up_(recorder.counter({.name = "withy_store_given_up_segments_total",
                                  .help = "Segments of KV deleted for room on the disk."})),
      missing_(Damage(recorder, "missing")),
      cut_(Damage(recorder, "cut")),
      wrong_(Damage(recorder, "wrong")),
      unread_(Damage(recorder, "unread")),
      left_out_(recorder.counter(
          {.name = "withy_store_kv_left_out_total",
           .help = "Entries of the KV directory that could not be used or deleted."})),
      day_bytes_(recorder.gauge({.name = "withy_store_kv_written_day_bytes",
                                 .help = "Bytes of KV written within the last 24 hours.",
                                 .unit = Unit::kBytes})),
      disk_bytes_(recorder.gauge({.name = "withy_store_kv_disk_bytes",
                                  .help = "Bytes of the segments of KV on disk.",
                                  .unit = Unit::kBytes})),
      shares_(recorder.counter(
          {.name = "withy_store_shares_total",
           .help = "KV chunks that a context took over from another one, instead of computing or "
                   "reading them."})),
      shared_slots_(recorder.gauge({.name = "withy_store_shared_chunks",
                                    .help = "KV chunks in the arena that several contexts have."})),
      saved_bytes_(recorder.gauge(
          {.name = "withy_store_shared_saved_bytes",
           .help = "Bytes that shared KV chunks would take more if each context had its own.",
           .unit = Unit::kBytes})) {
  for (int i = 1; i < engine::kKvFormats; ++i) {
    const char* const format = engine::KvFormatName(static_cast<KvFormat>(i));
    const auto at = static_cast<size_t>(i);
    resident_bytes_[at] = &recorder.gauge({.name = "withy_store_resident_bytes",
                                           .help = "KV of contexts in the arena, by format.",
                                           .unit = Unit::kBytes,
                                           .label_key = "format",
                                           .label_value = format});
    stored_bytes_[at] = &recorder.gauge({.name = "withy_store_stored_bytes",
                                         .help = "KV of contexts on disk, by format.",
                                         .unit = Unit::kBytes,
                                         .label_key = "format",
                                         .label_value = format});
  }
}

void StoreMetrics::Raise(Counter& counter, uint64_t total) {
  uint64_t& recorded = recorded_[&counter];
  if (total > recorded) counter.Add(total - recorded);
  recorded = total;
}

void StoreMetrics::RecordFormats(const BytesByFormat& bytes) {
  for (size_t i = 1; i < resident_bytes_.size(); ++i) {
    resident_bytes_[i]->Set(static_cast<int64_t>(bytes.resident[i]));
    stored_bytes_[i]->Set(static_cast<int64_t>(bytes.stored[i]));
  }
}

void StoreMetrics::RecordSharing(const ArenaKv& kv) {
  shares_.Add(kv.shares - recorded_shares_);
  recorded_shares_ = kv.shares;
  shared_slots_.Set(static_cast<int64_t>(kv.pool.counts().shared_slots));
  saved_bytes_.Set(static_cast<int64_t>(kv.pool.counts().saved));
}

void StoreMetrics::RecordDisk(const KvStorageStats& stats) {
  Raise(kv_bytes_, stats.segments.kv_bytes);
  Raise(written_bytes_, stats.segments.written_bytes);
  Raise(read_bytes_, stats.segments.read_bytes);
  Raise(given_up_, stats.given_up_segments);
  Raise(missing_, stats.damage.missing);
  Raise(cut_, stats.damage.cut);
  Raise(wrong_, stats.damage.wrong);
  Raise(unread_, stats.damage.unread);
  Raise(left_out_, stats.segments.left_out);
  day_bytes_.Set(static_cast<int64_t>(stats.written_day_bytes));
  disk_bytes_.Set(static_cast<int64_t>(stats.segments.disk_bytes));
}

}  // namespace withy::context_store
