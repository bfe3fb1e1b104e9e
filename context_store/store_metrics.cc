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

Counter& Bytes(Recorder& recorder, const char* name, const char* help) {
  return recorder.counter({.name = name, .help = help, .unit = Unit::kBytes});
}

}  // namespace

StoreMetrics::StoreMetrics(Recorder& recorder)
    : opened_resident(Opened(recorder, "resident")),
      opened_partly(Opened(recorder, "partly")),
      opened_without(Opened(recorder, "absent")),
      not_written(recorder.counter({.name = "withy_store_unwritten_chunks_total",
                                    .help = "KV chunks not written, to spare the disk."})),
      failed_cleanups(recorder.counter(
          {.name = "withy_store_failed_cleanups_total",
           .help = "Tries to free what something deleted had that failed; each is repeated."})),
      cleanups_left(
          recorder.gauge({.name = "withy_store_cleanups_left",
                          .help = "Deleted contexts and keys whose space is not freed yet."})),
      without_disk(recorder.gauge(
          {.name = "withy_store_kv_without_disk",
           .help = "1 while no KV is kept on disk because its directory could not be used."})),
      demoted_bytes(Bytes(recorder, "withy_store_demoted_bytes_total",
                          "Bytes of the arena freed by storing KV in fewer bits.")),
      waiting_for_room(recorder.gauge(
          {.name = "withy_store_waiting_for_room",
           .help = "Calls that wait for room in the KV arena that other calls hold."})),
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
