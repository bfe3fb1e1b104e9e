// Where withyctl looks for the service, and why it may not use what it finds. Neighbours: client.cc
// connects.
#pragma once

#include <string>

#include "withy/v1/config.pb.h"

namespace withy::cli {

// The public socket of the service that systemd runs.
inline constexpr char kInstalledSocket[] = "/run/withy/withy.sock";

// The unix socket of `config` (with its defaults). Where no configuration was named and nothing is
// there, that of the installed service, if it is there: it runs as another user, who has other
// default directories.
std::string ServiceAddress(const v1::Config& config, bool config_named,
                           const std::string& installed = kInstalledSocket);

// Whether there is a socket that this user may not connect to.
bool MayNotConnect(const std::string& address);

}  // namespace withy::cli
