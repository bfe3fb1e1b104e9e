// Counters and gauges of the store, by what they tell of. The sums over all contexts are brought up
// to date together, by the store's background thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "context_store/arena/arena_kv.h"
#include "context_store/disk/kv_storage.h"
#include "telemetry/recorder.h"

namespace withy::context_store {

struct LeaseMetrics {
  explicit LeaseMetrics(telemetry::Recorder& recorder);

  telemetry::Counter& commits;
  telemetry::Counter& broken;
  telemetry::Counter& refused_claims;
  telemetry::Gauge& open;
  telemetry::Gauge& waiting_for_room;
  // Contexts with KV that a call opened, by where it was.
  telemetry::Counter& opened_resident;
  telemetry::Counter& opened_partly;
  telemetry::Counter& opened_without;
};

struct ChunkMetrics {
  explicit ChunkMetrics(telemetry::Recorder& recorder);

  telemetry::Counter& faults;
  telemetry::Counter& evicted;
  telemetry::Counter& demoted;
  telemetry::Counter& hidden_bytes;
  telemetry::Counter& demoted_bytes;
  telemetry::Counter& written;
  telemetry::Counter& not_written;  // to spare the disk
  telemetry::Counter& read;
  telemetry::Counter& recomputed;
  telemetry::Counter& yielded;
  telemetry::Counter& kept;
  telemetry::Counter& not_kept;
};

struct ArenaMetrics {
  explicit ArenaMetrics(telemetry::Recorder& recorder);
  // `held_bytes`: see LeaseTable.
  void Record(const SlotPool::Counts& counts, uint64_t held_bytes, uint64_t locked_bytes);

  telemetry::Gauge& free;
  telemetry::Gauge& used;
  telemetry::Gauge& quarantined;
  telemetry::Gauge& withheld;
  telemetry::Gauge& locked;
  telemetry::Gauge& missing;
  telemetry::Gauge& usage;
};

// Not thread-safe, but for the counters and gauges themselves, and for RecordSharing: that is for
// the holder of the store's lock.
class StoreMetrics {
 public:
  explicit StoreMetrics(telemetry::Recorder& recorder);

  void RecordFormats(const BytesByFormat& bytes);
  void RecordDisk(const KvStorageStats& stats);
  void RecordSharing(const ArenaKv& kv);

  LeaseMetrics leases;
  ChunkMetrics chunks;
  ArenaMetrics arena;
  telemetry::Counter& failed_cleanups;
  telemetry::Gauge& cleanups_left;
  telemetry::Gauge& without_disk;

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
