// A gRPC server as an object: listens for the given services and adds health checking and
// reflection. Neighbours: rpc/daemon.h runs one for the life of a process; tests start them in
// temporary directories.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/tls/tls_files.h"
#include "base/unique_fd.h"
#include "rpc/acceptor.h"
#include "rpc/open_streams.h"

namespace grpc {
class CallbackGenericService;
class Server;
class ServerCredentials;
class Service;
}  // namespace grpc

namespace withy::rpc {

struct ServerOptions {
  // Process name in messages, e.g. "model_worker".
  std::string name;
  // "unix:PATH" or "HOST:PORT" (port 0: any free one), one or more.
  std::vector<std::string> listen;
  // Permission bits of unix sockets. By default only the process's own user may connect.
  unsigned socket_mode = 0600;
  // A longer request gets RESOURCE_EXHAUSTED before any service sees it.
  int max_request_bytes = 64 << 20;
  // Counts streamed answers that are not fully sent; Shutdown waits for them. Borrowed; null: no
  // waiting.
  const OpenStreams* answers = nullptr;
  // Handles every method that no service implements. Borrowed; null: UNIMPLEMENTED.
  grpc::CallbackGenericService* all_else = nullptr;
  // Of the addresses that it covers; the others are not encrypted.
  TcpTls tls = {};
};

// Thread-safe. The services are borrowed and must outlive the server. Health ("" and each service)
// is NOT_SERVING until SetServing(true); Check and Watch are answered in both states.
class Server {
 public:
  // Errors: ALREADY_EXISTS (another process serves on the socket or port; the message names it and
  // the remedy), INVALID_ARGUMENT (no valid address, or a socket without a directory),
  // PERMISSION_DENIED and others of the file system.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       const std::vector<grpc::Service*>& services);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void SetServing(bool serving);
  // Waits until the counted answers are sent, for at most `grace`; then refuses and closes
  // connections, as if the process had ended: calls that run or come now get UNAVAILABLE. May be
  // called more than once.
  void Shutdown(absl::Duration grace);
  // The listen addresses with actual port numbers.
  const std::vector<std::string>& addresses() const { return acceptor_.addresses(); }

 private:
  class Waker;
  Server();

  std::vector<UniqueFd> locks_;
  // Shared with gRPC, whose builder lets go of them while its server still uses them.
  std::vector<std::shared_ptr<grpc::ServerCredentials>> credentials_;
  Acceptor acceptor_;
  const OpenStreams* answers_ = nullptr;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Waker> waker_;
};

}  // namespace withy::rpc
