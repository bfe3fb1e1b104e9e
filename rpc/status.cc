#include "rpc/status.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace withy::rpc {
namespace {
constexpr char kPayloadUrl[] = "withy.dev/retry-after-ms";
}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.raw_code()), ValidUtf8(ToStd(status.message()))};
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

absl::Status WithRetryAfter(absl::Status status, int64_t retry_after_ms) {
  status.SetPayload(kPayloadUrl, absl::Cord(absl::StrCat(retry_after_ms)));
  return status;
}

std::optional<int64_t> RetryAfterMs(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayloadUrl);
  int64_t value = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &value)) return std::nullopt;
  return value;
}

}  // namespace withy::rpc
