#include "orchestrator/openai/web_origins.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace withy::orchestrator {

bool WebOrigins::Allows(std::string_view origin) const {
  return std::any_of(allowed_.begin(), allowed_.end(), [&](const std::string& one) {
    return one == "*" || absl::EqualsIgnoreCase(one, ToAbsl(origin));
  });
}

std::string WebOrigins::ForAnswer(const http::RequestHead& head) const {
  if (allowed_.empty()) return "";
  // A cache must not give one page's answer to another.
  std::string lines = "Vary: Origin\r\n";
  const std::string* origin = head.Find("origin");
  if (origin == nullptr || !Allows(*origin)) return lines;
  absl::StrAppend(&lines, "Access-Control-Allow-Origin: ", *origin,
                  "\r\nAccess-Control-Expose-Headers: x-request-id, x-withy-call-id, Retry-After, "
                  "retry-after-ms\r\n");
  return lines;
}

std::string WebOrigins::ForPreflight(const http::RequestHead& head) const {
  const std::string* origin = head.Find("origin");
  if (head.Find("access-control-request-method") == nullptr || origin == nullptr ||
      !Allows(*origin)) {
    return "";
  }
  std::string lines =
      "Access-Control-Allow-Methods: GET, HEAD, POST, OPTIONS\r\nAccess-Control-Max-Age: 600\r\n";
  // Clients send headers of their own, which are ignored.
  if (const std::string* asked = head.Find("access-control-request-headers")) {
    absl::StrAppend(&lines, "Access-Control-Allow-Headers: ", *asked, "\r\n");
  }
  // Of a page that came from the internet, to a board in the browser's own network.
  if (const std::string* local = head.Find("access-control-request-private-network");
      local != nullptr && *local == "true") {
    lines += "Access-Control-Allow-Private-Network: true\r\n";
  }
  return lines;
}

}  // namespace withy::orchestrator
