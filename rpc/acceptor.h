// Listens on addresses and hands each connection to whoever serves it. gRPC's own listener ends for
// good with the first connection that finds no file descriptor free (1.51, tcp_server_posix.cc);
// this one waits until there is one. Neighbour: server.cc gives the connections to gRPC.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/unique_fd.h"

namespace withy::rpc {

// Not thread-safe.
class Acceptor {
 public:
  // Takes ownership of a connection.
  using Take = std::function<void(UniqueFd connection)>;

  Acceptor() = default;
  ~Acceptor() { Stop(); }
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // Clients of `address` ("unix:PATH", claimed by the caller, or "HOST:PORT") wait until Start().
  // `name`: of the process, for errors; `mode`: permission bits of a unix socket. Errors:
  // ALREADY_EXISTS (another program listens there), UNAVAILABLE (no such host now), those of
  // bind(2).
  absl::Status Listen(const std::string& name, const std::string& address, unsigned mode,
                      Take take);
  // From now on connections are taken, by a thread of its own.
  void Start();
  // Closes the sockets: who connects now is refused. No connection is taken once it returns.
  void Stop();
  // What is listened on, with actual ports.
  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  void Run();

  std::vector<std::pair<UniqueFd, size_t>> listeners_;  // each with an index into takes_
  std::vector<Take> takes_;
  std::vector<std::string> addresses_;
  UniqueFd stop_;
  std::thread thread_;
};

}  // namespace withy::rpc
