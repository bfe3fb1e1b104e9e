// Status helpers: early return on error, and errors made from errno. Only rpc/ converts a Status to
// a gRPC code.
#pragma once

#include <cerrno>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/strings.h"

#define WITHY_CONCAT_INNER(a, b) a##b
#define WITHY_CONCAT(a, b) WITHY_CONCAT_INNER(a, b)

// WITHY_RETURN_IF_ERROR(expr): returns the status of `expr` from the enclosing function unless OK.
#define WITHY_RETURN_IF_ERROR(expr)                                                       \
  do {                                                                                    \
    if (::absl::Status withy_status_ = (expr); !withy_status_.ok()) return withy_status_; \
  } while (false)

// WITHY_ASSIGN_OR_RETURN(auto x, expr): x = value of the StatusOr `expr`, or returns its status.
#define WITHY_ASSIGN_OR_RETURN(lhs, expr) \
  WITHY_ASSIGN_OR_RETURN_IMPL(WITHY_CONCAT(withy_statusor_, __LINE__), lhs, expr)
#define WITHY_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) return std::move(tmp).status();    \
  lhs = std::move(tmp).value()

namespace withy {

// An error from the current errno, e.g. ErrnoError("open models/a.gguf") -> NOT_FOUND "open
// models/a.gguf: No such file ...".
inline absl::Status ErrnoError(std::string_view what) {
  const int error = errno;
  return absl::ErrnoToStatus(error, absl::StrCat(ToAbsl(what)));
}

// Prepends `prefix: ` to the message of `status`; OK stays OK.
inline absl::Status Annotate(const absl::Status& status, std::string_view prefix) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(ToAbsl(prefix), ": ", status.message()));
}

// One error of several: the first one's code, all messages. OK if `problems` is empty.
inline absl::Status JoinProblems(std::span<const absl::Status> problems) {
  if (problems.empty()) return absl::OkStatus();
  std::string text;
  for (const absl::Status& problem : problems) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", problem.message());
  }
  return absl::Status(problems.front().code(), text);
}

}  // namespace withy
