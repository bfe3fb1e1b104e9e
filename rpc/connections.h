// The sockets of this process that belong to a server's addresses. Neighbour: server.cc ends them.
#pragma once

#include <string>
#include <vector>

namespace withy::rpc {

// Shuts down the sockets that listen on one of `addresses` ("unix:PATH", "HOST:PORT" with the actual
// port) or were accepted there: clients see them closed once they have read what was sent. The
// descriptors stay with their owner.
void EndConnections(const std::vector<std::string>& addresses);

}  // namespace withy::rpc
