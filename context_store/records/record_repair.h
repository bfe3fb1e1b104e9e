// Makes a database of records readable again that RocksDB does not open. Neighbours: record_db.h
// opens it, repair_main.cc is the program that an operator runs.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace withy::context_store {

struct RepairReport {
  bool was_intact = false;  // it opens: nothing was changed
  uint64_t records = 0;     // that are readable
  uint64_t apps = 0;        // of these
  uint64_t contexts = 0;
  uint64_t damaged = 0;   // that are there, but not as they were written; the store names each
  uint64_t salvaged = 0;  // of `records`: from tables that RocksDB's own repair gives up
  std::string kept;       // the directory as it was
};

// Repairs the database in the directory `path` of a stopped store. All work is done on a copy,
// which takes the place of the directory in one step, so that a repair that is interrupted has
// changed nothing; the directory as it was is kept beside it, under a name with `unix_s`. Records
// that were deleted shortly before the damage may be back. Files keep their owner. Errors:
// NOT_FOUND (no such directory), PERMISSION_DENIED, FAILED_PRECONDITION (a store has it open),
// RESOURCE_EXHAUSTED (no room for the copy), UNIMPLEMENTED (made by a newer build), DATA_LOSS
// (nothing is readable), UNAVAILABLE (the disk); all name the path, and nothing was changed.
absl::StatusOr<RepairReport> RepairRecords(const std::string& path, int64_t unix_s);

}  // namespace withy::context_store
