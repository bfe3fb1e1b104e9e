#include "cli/config/service_address.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/config.h"
#include "base/config/defaults.h"
#include "base/listen_address.h"

namespace withy::cli {

std::string ServiceAddress(const v1::Config& config, bool config_named,
                           const std::string& installed) {
  const std::string own = AppAddresses(config).back();
  std::error_code ignored;
  const auto there = [&](const std::string& path) {
    return std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
  };
  if (config_named || there(own.substr(kUnixPrefix.size())) || !there(installed)) return own;
  return std::string(kUnixPrefix) + installed;
}

bool MayNotConnect(const std::string& address) {
  return address.starts_with(kUnixPrefix) &&
         access(address.c_str() + kUnixPrefix.size(), R_OK | W_OK) != 0 && errno == EACCES;
}

}  // namespace withy::cli
