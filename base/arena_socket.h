// The two datagrams of the side socket that hands out the KV arena (unix, SOCK_SEQPACKET).
// context_store listens; model_worker connects to the path that ContextStore.Attach returned.
// Numbers are in the machine's byte order: both ends are processes of one user on one machine.
//
//   worker -> store   ArenaHello          names the worker and its attach
//   store  -> worker  ArenaOffer + memfd  (SendFd); to refuse, the store closes the connection
//
// The connection then stays open and silent. If the worker's end closes, the worker is dead and its
// quarantined slots become free. If the store's end closes, the worker attaches again.
#pragma once

#include <cstdint>
#include <type_traits>

namespace withy {

inline constexpr uint32_t kArenaMagic = 0x41594857;  // "WHYA"
inline constexpr uint32_t kArenaVersion = 3;         // also changes with the layout of KV blocks

struct ArenaHello {
  uint32_t magic = kArenaMagic;
  uint32_t version = kArenaVersion;
  uint64_t worker_instance = 0;  // as in AttachRequest
  uint64_t epoch = 0;            // as AttachResponse gave it
};
static_assert(sizeof(ArenaHello) == 24 && std::is_trivially_copyable_v<ArenaHello>);

// `arena_bytes`: size of the file to map. `block_bytes`: of a block of 8 bits, as both ends lay it
// out.
struct ArenaOffer {
  uint32_t magic = kArenaMagic;
  uint32_t version = kArenaVersion;
  uint64_t epoch = 0;
  uint64_t arena_bytes = 0;
  uint32_t block_bytes = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(ArenaOffer) == 32 && std::is_trivially_copyable_v<ArenaOffer>);

}  // namespace withy
