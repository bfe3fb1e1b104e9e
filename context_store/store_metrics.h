// Metrics of KV in memory and on disk that are brought up to date together, by the store's
// background thread. Neighbour: store_stats.cc fills them in.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "context_store/arena/arena_kv.h"
#include "context_store/disk/kv_storage.h"
#include "telemetry/recorder.h"

namespace withy::context_store {

// Not thread-safe, but for RecordSharing: that is for the holder of the store's lock.
class StoreMetrics {
 public:
  explicit StoreMetrics(telemetry::Recorder& recorder);

  void RecordFormats(const BytesByFormat& bytes);
  void RecordDisk(const KvStorageStats& stats);
  void RecordSharing(const ArenaKv& kv);

  telemetry::Counter& opened_resident;
  telemetry::Counter& opened_partly;
  telemetry::Counter& opened_without;
  telemetry::Counter& not_written;
  telemetry::Counter& failed_cleanups;
  telemetry::Gauge& cleanups_left;
  telemetry::Gauge& without_disk;
  telemetry::Counter& demoted_bytes;
  telemetry::Gauge& waiting_for_room;

 private:
  // Adds what `total` has grown by since the last call for this counter.
  void Raise(telemetry::Counter& counter, uint64_t total);

  std::array<telemetry::Gauge*, engine::kKvFormats> resident_bytes_ = {};
  std::array<telemetry::Gauge*, engine::kKvFormats> stored_bytes_ = {};
  telemetry::Counter& kv_bytes_;
  telemetry::Counter& written_bytes_;
  telemetry::Counter& read_bytes_;
  telemetry::Counter& given_up_;
  telemetry::Counter& missing_;
  telemetry::Counter& cut_;
  telemetry::Counter& wrong_;
  telemetry::Counter& unread_;
  telemetry::Counter& left_out_;
  telemetry::Gauge& day_bytes_;
  telemetry::Gauge& disk_bytes_;
  telemetry::Counter& shares_;
  uint64_t recorded_shares_ = 0;
  telemetry::Gauge& shared_slots_;
  telemetry::Gauge& saved_bytes_;
  std::map<const telemetry::Counter*, uint64_t> recorded_;
};

}  // namespace withy::context_store
