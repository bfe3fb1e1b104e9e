#include "rpc/status.h"

#include <google/protobuf/any.pb.h>
#include <grpcpp/server_context.h>

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "google/rpc/error_details.pb.h"
#include "rpc/error_reason.h"

namespace withy::rpc {
namespace {

constexpr char kRetryUrl[] = "withy.dev/retry-after-ms";
constexpr char kDomain[] = "withy";

// Where nobody names the cause.
std::string DefaultReason(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return "INVALID_REQUEST";
    case absl::StatusCode::kUnavailable:
      return "PROCESS_AWAY";
    case absl::StatusCode::kResourceExhausted:
      return "LIMIT_REACHED";
    case absl::StatusCode::kFailedPrecondition:
      return "SLO_UNATTAINABLE";
    case absl::StatusCode::kAborted:
      return "CONFLICTING_CALL";
    case absl::StatusCode::kAlreadyExists:
      return "REQUEST_ID_USED";
    case absl::StatusCode::kUnauthenticated:
      return "TOKEN_REFUSED";
    case absl::StatusCode::kDataLoss:
      return "RECORD_DAMAGED";
    default:
      return absl::StatusCodeToString(code);
  }
}

std::string Details(const absl::Status& status, const std::string& message) {
  google::rpc::Status sent;
  sent.set_code(status.raw_code());
  sent.set_message(message);
  google::rpc::ErrorInfo info;
  info.set_reason(ReasonOf(status));
  info.set_domain(kDomain);
  sent.add_details()->PackFrom(info);
  if (const auto retry_ms = RetryAfterMs(status)) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(*retry_ms / 1000);
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(*retry_ms % 1000) * 1'000'000);
    sent.add_details()->PackFrom(retry);
  }
  return sent.SerializeAsString();
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string message = ValidUtf8(ToStd(status.message()));
  return {static_cast<grpc::StatusCode>(status.raw_code()), message, Details(status, message)};
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status received(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return received;
  for (const google::protobuf::Any& detail : details.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::RetryInfo retry;
    if (detail.UnpackTo(&info) && info.reason() != ReasonOf(received)) {
      received = WithReason(received, info.reason());
    } else if (detail.UnpackTo(&retry)) {
      const auto& delay = retry.retry_delay();
      received = WithRetryAfter(received, delay.seconds() * 1000 + delay.nanos() / 1'000'000);
    }
  }
  return received;
}

std::string ReasonOf(const absl::Status& status) {
  return NamedReason(status).value_or(DefaultReason(status.code()));
}

absl::Status WithRetryAfter(absl::Status status, int64_t retry_after_ms) {
  status.SetPayload(kRetryUrl, absl::Cord(absl::StrCat(retry_after_ms)));
  return status;
}

std::optional<int64_t> RetryAfterMs(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryUrl);
  int64_t value = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &value)) return std::nullopt;
  return value;
}

void AddRetryHint(const absl::Status& status, grpc::ServerContextBase* context) {
  const auto retry_ms = RetryAfterMs(status);
  if (!retry_ms.has_value()) return;
  context->AddTrailingMetadata(kRetryAfterKey, std::to_string(*retry_ms));
  context->AddTrailingMetadata(kPushbackKey, std::to_string(*retry_ms));
}

}  // namespace withy::rpc
