// How a process that cannot start yet waits: it tells clients why, and ends the wait early where
// what it waits for may be there. Neighbours: daemon.cc, stand_in.h.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "rpc/server.h"
#include "rpc/stand_in.h"

namespace withy::v1 {
class Config;
}

namespace withy::rpc {

// Options of the future server of process `name`, as far as clients can see them.
ServerOptions ServerOf(std::string_view name, const v1::Config& config);

// Tells systemd's status and clients what a start does that takes long, from the first Tell until
// its destruction, which must come before the process's own server. Single-threaded.
class StartReport {
 public:
  StartReport(std::string_view name, const v1::Config& config);  // both outlive it
  ~StartReport();
  StartReport(const StartReport&) = delete;
  StartReport& operator=(const StartReport&) = delete;

  void Tell(const std::string& what);

 private:
  const std::string_view name_;
  const v1::Config& config_;
  bool told_ = false;
  std::unique_ptr<StandIn> stand_in_;  // null: not told yet, or no socket could be had
};

// Waits for `pause`, or until something has changed that may let a start succeed (a file that the
// configuration names, an address that can be listened on; if `for_room`, the room in the
// directories, which changes often), but for `least`. Meanwhile clients get UNAVAILABLE with
// `reason`, as far as the sockets can be had.
void WaitForChange(std::string_view name, const v1::Config& config, const std::string& reason,
                   absl::Duration least, absl::Duration pause, bool for_room);

}  // namespace withy::rpc
