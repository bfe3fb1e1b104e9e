// The one place where absl::Status and grpc::Status meet. Codes are the same numbers; the message
// travels as UTF-8, and a retry hint travels in the trailing metadata.
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <optional>

#include "absl/status/status.h"

namespace withy::rpc {

// Trailing metadata key of the hint when to try again, in milliseconds.
inline constexpr char kRetryAfterKey[] = "retry-after-ms";

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// Attaches (reads) the hint when to try again.
absl::Status WithRetryAfter(absl::Status status, int64_t retry_after_ms);
std::optional<int64_t> RetryAfterMs(const absl::Status& status);

}  // namespace withy::rpc
