// The model that an operator chose since the service was configured (withyctl models use).
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "withy/v1/config.pb.h"

namespace withy {

namespace proto = ::withy::v1;

// What STATE_DIR/model_choice holds: the last choice, whether it could be served or not; nullopt:
// nothing, or this user may not read it. Errors: INVALID_ARGUMENT (no such message), as
// ReadRegularFile.
absl::StatusOr<std::optional<proto::ModelChoice>> ReadModelChoice(const std::string& state_dir);

// The same of STATE_DIR/model_choice.before: the choice that was served when the last one was made.
absl::StatusOr<std::optional<proto::ModelChoice>> ReadChoiceBefore(const std::string& state_dir);

// The choice that FillDefaults applies to model.path where that is its configured_path: the last
// one, or, where that was begun and never served, the one before it; nullopt: the configured model
// is served. Errors: as ReadModelChoice.
absl::StatusOr<std::optional<proto::ModelChoice>> HeldModelChoice(const std::string& state_dir);

// Replaces the last choice atomically, or removes it if `choice` has no path. Errors: as
// WriteAtomically.
absl::Status WriteModelChoice(const std::string& state_dir, const proto::ModelChoice& choice);

// The same for the choice before: to be written ahead of a choice that replaces it, and to be
// removed once that one is served.
absl::Status WriteChoiceBefore(const std::string& state_dir, const proto::ModelChoice& choice);

}  // namespace withy
