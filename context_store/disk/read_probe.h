// Measures how long the disk takes to give KV back, the way it is read: past the page cache,
// decrypted and checked. Neighbours: store.cc does it once for a disk and a power mode and keeps
// the result in the database; plans of loads use it (policy/kv/kv_load_plan.h).
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/board.h"
#include "base/clock.h"
#include "context_store/disk/kv_segments.h"
#include "context_store/records/record_db.h"

namespace withy::context_store {

// A read of n MiB takes fixed_ms + n * mib_ms. Both > 0.
struct ReadCosts {
  double fixed_ms = 0;
  double mib_ms = 0;
};

// Writes 8 MiB to a directory of its own beside the segments of `options`, reads them several times
// and deletes them. Blocks for a second on a disk of 40 MB/s. Errors: those of KvSegments::Open,
// Append and Sync; those of a read; FAILED_PRECONDITION (the clock stood still); CANCELLED
// (options.stop).
absl::StatusOr<ReadCosts> MeasureReadCosts(const KvSegmentsOptions& options, const Clock& clock);

// As measured earlier for this directory's disk and the board's power mode, or else measured now
// and kept. Errors: as above; those of the database.
absl::StatusOr<ReadCosts> FindReadCosts(const KvSegmentsOptions& options, const BoardInfo& board,
                                        RecordDb& db, const Clock& clock);

// The record, key meta/kv_read_costs (docs/formats-records.md). `place` names disk and power mode.
std::string EncodeReadCosts(const ReadCosts& costs, std::string_view place);
// Errors: DATA_LOSS (too short, or no numbers above 0), NOT_FOUND (of another place).
absl::StatusOr<ReadCosts> DecodeReadCosts(std::string_view payload, std::string_view place);

}  // namespace withy::context_store
