// Puts a configuration in force for the units: the file, and what their sandbox and order need for
// what the configuration names. Neighbours: config.cc is the command.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "withy/v1/config.pb.h"

namespace withy::cli {

// The drop-in of every unit: mounts and the network that are waited for, directories that may be
// written, homes that may be read. `config` has its defaults. Empty: the units are fine as they
// are. Pure.
std::string UnitDropIn(const v1::Config& config);

// Files that the configuration names and that are not there, as sentences: they may come later.
std::vector<std::string> MissingFiles(const v1::Config& config);

// Writes `text`, the file of `config`, to ROOT/etc/withy/withy.textproto and the drop-ins below
// ROOT/etc/systemd/system, each atomically; a drop-in that is not needed any more goes. Errors:
// those of the file system, naming the path.
absl::Status InstallConfig(const std::string& text, const v1::Config& config,
                           const std::string& root);

}  // namespace withy::cli
