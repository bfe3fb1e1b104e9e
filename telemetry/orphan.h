// Removes ring files whose writers are gone. Neighbours: recorder.cc removes those of its own
// process name, reader.cc those that it cannot read.
#pragma once

#include <string>

namespace withy::telemetry {

// Removes `path` if it is a ring file of our user and no process holds its lock: no writer will
// come back to it. Leaves everything else: other files, directories, links, pipes, devices.
void RemoveIfOrphan(const std::string& path);

}  // namespace withy::telemetry
