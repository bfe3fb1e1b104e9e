// Encrypts the records that a build before encryption at rest stored in the clear. Neighbours:
// record_db.h, context_keys.h. Called by store.cc before anything else reads the records.
#pragma once

#include "absl/status/status.h"
#include "context_store/records/context_keys.h"
#include "context_store/records/record_db.h"

namespace withy::context_store {

// Afterwards all text in `db` is encrypted, no file has it in the clear any more, and text in the
// clear counts as damage (RecordDb::RequireEncryption). Does nothing if that was achieved before;
// continues what a kill interrupted. On a full disk it stops and returns OK: what is left is
// readable as it is, and the next start continues. Damaged records stay as they are. Errors: those
// of RecordDb and ContextKeys.
absl::Status EncryptRecords(RecordDb& db, ContextKeys& keys);

}  // namespace withy::context_store
