// The one configuration file (textproto, schema proto/withy/v1/config.proto), read, overridden and
// filled with defaults.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "withy/v1/config.pb.h"

namespace withy {

namespace proto = ::withy::v1;

inline constexpr std::string_view kDefaultConfigPath = "/etc/withy/withy.textproto";

// Reads `path`, applies `overrides` ("model.threads=2", later ones win), fills every default. An
// empty path means kDefaultConfigPath, which alone may be missing. Errors: NOT_FOUND (the named
// file) and others of open(2); INVALID_ARGUMENT with the field's path, its value, what it may be
// and where it was written: file, line and column, or the override.
absl::StatusOr<proto::Config> LoadConfig(std::string_view path,
                                         std::span<const std::string> overrides = {});

// Parses textproto; `name` stands in errors. No defaults are filled.
absl::StatusOr<proto::Config> ParseConfig(std::string_view text, std::string_view name);

// Sets one field: "store.arena_bytes=1048576". Errors: INVALID_ARGUMENT naming the field.
absl::Status ApplyOverride(std::string_view assignment, proto::Config* config);

// Fills unset fields (paths, sockets, sizes) and checks every value that can be checked without the
// model. Errors: INVALID_ARGUMENT as LoadConfig, without the place.
absl::Status FillDefaults(proto::Config* config);

// Where the orchestrator listens: orchestrator.listen, and withy.sock in run_dir where that is
// another, because apps are bound on a unix socket. `config` is filled.
std::vector<std::string> AppAddresses(const proto::Config& config);

// The directory of the running program's models: models/ or share/withy/models beside or above the
// binary, else /usr/share/withy/models.
std::string DefaultModelsDir();

// Whether the draft is the one that an empty draft.path stands for. `config` is filled.
bool IsDefaultDraft(const proto::Config& config);

// The file that an empty orchestrator.tlm_path stands for: withy-pocket-tlm*.gguf beside
// `model_path`, the last by name; empty = there is none.
std::string DefaultTlmPath(const std::string& model_path);

}  // namespace withy
