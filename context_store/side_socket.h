// The side socket: hands the arena's memfd to processes of our own user and notices their death.
// The datagrams are defined in base/arena_socket.h. Neighbour: arena_keeper.h decides who gets the
// arena.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "context_store/arena_keeper.h"

namespace withy::context_store {

// One thread, from Start to destruction. `keeper` is borrowed.
class SideSocket {
 public:
  static constexpr size_t kMaxConnections = 64;

  // Listens on `path` (mode 0600) and reserves it until destruction. Errors: those of ClaimSocket
  // (ALREADY_EXISTS: another store of the same run_dir), of bind(2).
  static absl::StatusOr<std::unique_ptr<SideSocket>> Start(const std::string& path,
                                                           ArenaKeeper& keeper);
  ~SideSocket();
  SideSocket(const SideSocket&) = delete;
  SideSocket& operator=(const SideSocket&) = delete;

  const std::string& path() const { return path_; }

 private:
  struct Connection {
    UniqueFd fd;
    pid_t pid = 0;
    WorkerInstance worker = 0;  // 0: no hello received yet
  };

  explicit SideSocket(ArenaKeeper& keeper) : keeper_(keeper) {}
  void Serve();
  void Accept();
  // Returns false if the connection is to be closed.
  bool HandleReadable(Connection& connection);
  absl::Status OfferArena(Connection& connection, const ArenaHello& hello);

  ArenaKeeper& keeper_;
  std::string path_;
  UniqueFd lock_;  // released after `path_` is unlinked
  UniqueFd listener_;
  UniqueFd stop_;                        // an eventfd
  std::vector<Connection> connections_;  // used by the thread only
  std::thread thread_;
};

}  // namespace withy::context_store
