// The connections of a server. Neighbour: server.cc ends them.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace withy::rpc {

// Ends the connections that were accepted on one of `addresses` ("unix:PATH", "HOST:PORT" with the
// actual port): clients see them closed once they have read what
// was sent, and close them, for which they have `patience`. The descriptors stay with their owner.
void EndConnections(const std::vector<std::string>& addresses, absl::Duration patience);

}  // namespace withy::rpc
