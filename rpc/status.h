// The only conversion between absl::Status and grpc::Status. Codes are equal numbers; messages are
// sent as UTF-8, and a retry hint is sent in the trailing metadata.
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <optional>

#include "absl/status/status.h"

namespace withy::rpc {

// Trailing metadata key of the retry hint, in milliseconds.
inline constexpr char kRetryAfterKey[] = "retry-after-ms";

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// Attach and read the retry hint, in milliseconds.
absl::Status WithRetryAfter(absl::Status status, int64_t retry_after_ms);
std::optional<int64_t> RetryAfterMs(const absl::Status& status);

}  // namespace withy::rpc
