// The model that an operator chose since the service was configured (withyctl models use).
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "withy/v1/config.pb.h"

namespace withy {

namespace proto = ::withy::v1;

// What STATE_DIR/model_choice holds, as FillDefaults applies it to model.path; nullopt: nothing, or
// this user may not read it. Errors: INVALID_ARGUMENT (no such message), as ReadRegularFile.
absl::StatusOr<std::optional<proto::ModelChoice>> ReadModelChoice(const std::string& state_dir);

// Replaces it atomically, or removes it if `choice` has no path. Errors: as WriteAtomically.
absl::Status WriteModelChoice(const std::string& state_dir, const proto::ModelChoice& choice);

}  // namespace withy
