// A gRPC server as an object: services in, a listening socket with health checking and reflection
// out. Neighbours: rpc/daemon.h runs one for the life of a process; tests start them in temporary
// directories.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "rpc/open_streams.h"

namespace grpc {
class CallbackGenericService;
class Server;
class Service;
}  // namespace grpc

namespace withy::rpc {

struct ServerOptions {
  // Process name for messages, e.g. "model_worker".
  std::string name;
  // "unix:PATH" or "HOST:PORT" (port 0: any free one). Several may be given.
  std::vector<std::string> listen;
  // Permission bits of unix sockets. Internal services are for their own user alone.
  unsigned socket_mode = 0600;
  // A longer request is RESOURCE_EXHAUSTED before anybody looks at it.
  int max_request_bytes = 64 << 20;
  // Counts the streamed answers that are not fully sent, which a shutdown waits for. Borrowed;
  // null: none are counted.
  const OpenStreams* answers = nullptr;
  // Answers what none of the services does. Borrowed; null: UNIMPLEMENTED.
  grpc::CallbackGenericService* all_else = nullptr;
};

// Thread-safe. The services are borrowed and must outlive it. Health ("" and each service) is
// NOT_SERVING until SetServing(true); Check and Watch are answered either way.
class Server {
 public:
  // Errors: ALREADY_EXISTS when another process serves on the socket or port (the message names it
  // and the remedy), INVALID_ARGUMENT for what is no address or a socket in no directory,
  // PERMISSION_DENIED and others of the file system.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       const std::vector<grpc::Service*>& services);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void SetServing(bool serving);
  // Waits until the counted answers are sent, then stops taking calls and lets running ones finish,
  // each for at most `grace`; cancels the rest. May be called more than once.
  void Shutdown(absl::Duration grace);
  // Where it listens, with real port numbers.
  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  class Waker;
  Server();

  std::vector<UniqueFd> locks_;
  std::vector<std::string> addresses_;
  const OpenStreams* answers_ = nullptr;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Waker> waker_;
};

}  // namespace withy::rpc
