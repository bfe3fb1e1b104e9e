// Serves in the place of a process that cannot start yet, so that who asks is told why. Neighbours:
// daemon.cc starts one while a process waits for room.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rpc/server.h"

namespace withy::rpc {

// Trailing metadata key of a stand-in's answers: the message says what the process waits for.
inline constexpr char kStandInKey[] = "withy-stand-in";

// Lives from Start to destruction; nothing else of it is called. Health checks are answered with
// NOT_SERVING, every other call with UNAVAILABLE, the reason, and the hint to retry.
class StandIn {
 public:
  // `options` as of the server that the process will be. Errors: those of Server::Start.
  static absl::StatusOr<std::unique_ptr<StandIn>> Start(ServerOptions options, std::string reason);
  ~StandIn();
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;

 private:
  class Service;
  explicit StandIn(std::string reason);

  std::unique_ptr<Service> service_;
  std::unique_ptr<Server> server_;
};

}  // namespace withy::rpc
