// Serves in place of a process that cannot start yet and tells clients the reason. Neighbours:
// daemon.cc starts one while a process waits for disk space.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rpc/server.h"

namespace withy::rpc {

// Trailing metadata key that marks a stand-in's answers. The message says what the process waits
// for.
inline constexpr char kStandInKey[] = "withy-stand-in";

// Serves from Start to destruction. Health checks get NOT_SERVING; every other call gets
// UNAVAILABLE with the reason and a retry hint.
class StandIn {
 public:
  // `options` are those of the process's own server. Errors: those of Server::Start.
  static absl::StatusOr<std::unique_ptr<StandIn>> Start(ServerOptions options, std::string reason);
  ~StandIn();
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;

  // Of calls from now on. Any thread.
  void SetReason(std::string reason);

 private:
  class Service;
  explicit StandIn(std::string reason);

  std::unique_ptr<Service> service_;
  std::unique_ptr<Server> server_;
};

}  // namespace withy::rpc
