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

// Addresses the orchestrator listens on: orchestrator.listen, and RUN_DIR/withy.sock if that is
// another one, because apps are bound on a unix socket. `config` has its defaults filled in.
std::vector<std::string> AppAddresses(const proto::Config& config);

// Directory of the models that ship with the running program: models/ or share/withy/models beside
// or above the binary, else /usr/share/withy/models.
std::string DefaultModelsDir();

// What STATE_DIR/model_choice holds, as FillDefaults applies it to model.path; nullopt: nothing, or
// this user may not read it. Errors: INVALID_ARGUMENT (no such message), as ReadRegularFile.
absl::StatusOr<std::optional<proto::ModelChoice>> ReadModelChoice(const std::string& state_dir);
// Replaces it atomically, or removes it if `choice` has no path. Errors: as WriteAtomically.
absl::Status WriteModelChoice(const std::string& state_dir, const proto::ModelChoice& choice);

// Whether the draft is the default of an empty draft.path. `config` has its defaults filled in.
bool IsDefaultDraft(const proto::Config& config);

// The default of an empty orchestrator.tlm_path: withy-pocket-tlm*.gguf beside `model_path`, the
// last by name. Empty = there is none.
std::string DefaultTlmPath(const std::string& model_path);

}  // namespace withy
