// The worker's end of the KV arena: gets the sealed memfd over context_store's side socket and maps
// it. Neighbours: base/arena_socket.h has the two datagrams, lease_client.h attaches first.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/arena_socket.h"
#include "base/ids.h"
#include "base/shared_memory.h"
#include "base/unique_fd.h"
#include "serving/session/lease.h"

namespace withy::store_client {

class MappedArena final : public serving::Arena {
 public:
  MappedArena(SharedMemory memory, const ArenaOffer& offer)
      : memory_(std::move(memory)), offer_(offer), mapping_(RandomId64()) {}

  uint64_t epoch() const override { return offer_.epoch; }
  engine::KvMemory memory() const override { return {memory_.data(), memory_.size(), mapping_}; }

 private:
  SharedMemory memory_;
  ArenaOffer offer_;
  uint64_t mapping_;
};

struct ArenaConnection {
  std::shared_ptr<const serving::Arena> arena;
  UniqueFd socket;  // readable only when the store is gone
};

// Connects to the side socket at `path`, says hello, maps what is offered.
// Errors: UNAVAILABLE (no store there, or it refused), PERMISSION_DENIED (it is another user's),
// INVALID_ARGUMENT (an offer that does not fit `hello`, `block_bytes` or the file).
absl::StatusOr<ArenaConnection> ConnectArena(const std::string& path, const ArenaHello& hello,
                                             uint32_t block_bytes);

}  // namespace withy::store_client
