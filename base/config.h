// Reads the configuration file (textproto, schema proto/withy/v1/config.proto), applies overrides
// and fills defaults.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "withy/v1/config.pb.h"

namespace withy {

namespace proto = ::withy::v1;

inline constexpr std::string_view kDefaultConfigPath = "/etc/withy/withy.textproto";

// Reads `path`, applies `overrides` ("model.threads=2"; later ones win) and fills every default. An
// empty path means kDefaultConfigPath, the only file that may be missing. Errors: NOT_FOUND and
// others of open(2); INVALID_ARGUMENT naming the field's path, its value, the allowed values and
// the place: file, line and column, or the override; of several errors, all.
absl::StatusOr<proto::Config> LoadConfig(std::string_view path,
                                         std::span<const std::string> overrides = {});

struct CheckedConfig {
  proto::Config config;                // what is wrong in the file has its default
  std::vector<absl::Status> problems;  // in the order in which they are found
};
// The same for a file that may have errors. Errors: of open(2), and INVALID_ARGUMENT of an override
// that cannot be read.
absl::StatusOr<CheckedConfig> CheckConfig(std::string_view path,
                                          std::span<const std::string> overrides = {});

// Parses textproto without filling defaults. `name` appears in errors.
absl::StatusOr<proto::Config> ParseConfig(std::string_view text, std::string_view name);

// Sets one field: "store.arena_bytes=1048576". Errors: INVALID_ARGUMENT naming the field.
absl::Status ApplyOverride(std::string_view assignment, proto::Config* config);

// Fills unset fields (paths, sockets, sizes) and checks every value that does not depend on the
// model. Errors: INVALID_ARGUMENT as LoadConfig, without the place.
absl::Status FillDefaults(proto::Config* config);

}  // namespace withy
