// The cause of an error for programs, beside its code and its text: "QUEUE_FULL". It travels with
// the status as a payload. Neighbours: rpc/status.h sends it to clients.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "base/strings.h"

namespace withy {

inline constexpr char kReasonUrl[] = "withy.dev/reason";

inline absl::Status WithReason(absl::Status status, std::string_view reason) {
  if (!status.ok()) status.SetPayload(kReasonUrl, absl::Cord(ToAbsl(reason)));
  return status;
}

// Nullopt: nobody named it.
inline std::optional<std::string> NamedReason(const absl::Status& status) {
  const auto payload = status.GetPayload(kReasonUrl);
  if (!payload.has_value()) return std::nullopt;
  return std::string(*payload);
}

}  // namespace withy
