// Names of the KV chunks of system prompts that the operator declared public. Contexts of all apps
// may share them. Neighbours: chunk_identity.h names chunks, lease_client.h tells the store.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "serving/session/chunk_identity.h"
#include "serving/session/session.h"

namespace withy::serving {

// The texts of these files, without a newline at the end. Errors, naming the file: NOT_FOUND (it
// cannot be read), INVALID_ARGUMENT (its size, or it is not UTF-8).
absl::StatusOr<std::vector<std::string>> ReadPublicPrompts(std::span<const std::string> files);

// The full chunks that all conversations which begin with one of these system prompts have in
// common, at each level of the model. Errors, naming the prompt by its first bytes:
// INVALID_ARGUMENT (the model's template has no system prompt), OUT_OF_RANGE (the window).
absl::StatusOr<std::vector<Identity>> NamePublicChunks(const SessionEnv& env,
                                                       std::span<const std::string> prompts);

}  // namespace withy::serving
