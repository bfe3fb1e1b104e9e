// The only conversion between absl::Status and grpc::Status. Codes are equal numbers; messages are
// sent as UTF-8. Every error has details (google/rpc/error_details.proto): ErrorInfo with a reason
// for programs, and RetryInfo where a retry hint is attached, which is also sent in the trailing
// metadata.
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace grpc {
class ServerContextBase;
}

namespace withy::rpc {

// Trailing metadata keys of the retry hint, in milliseconds: withy's own, and the one that gRPC's
// own retries obey.
inline constexpr char kRetryAfterKey[] = "retry-after-ms";
inline constexpr char kPushbackKey[] = "grpc-retry-pushback-ms";

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// The cause, as base/error_reason.h; where nobody named it, one that follows from the code.
std::string ReasonOf(const absl::Status& status);

// Adds the retry hint, if there is one, to what is sent when the call is finished.
void AddRetryHint(const absl::Status& status, grpc::ServerContextBase* context);

// Attach and read the retry hint, in milliseconds.
absl::Status WithRetryAfter(absl::Status status, int64_t retry_after_ms);
std::optional<int64_t> RetryAfterMs(const absl::Status& status);

}  // namespace withy::rpc
