// Ring files that their writers have left. Neighbours: recorder.cc clears those of its own process
// name, reader.cc those that it cannot read.
#pragma once

#include <string>

namespace withy::telemetry {

// Removes `path` when it is a ring file of our user whose lock nobody holds: then no writer will
// come back to it. Anything else stays as it is: other files, directories, links, pipes, devices.
void RemoveIfOrphan(const std::string& path);

}  // namespace withy::telemetry
