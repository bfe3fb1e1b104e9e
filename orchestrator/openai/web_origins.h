// Which web pages may use the HTTP API: browsers ask before they send another site's page's
// request, and read the answer to it only if it says so (CORS). Pure. Neighbour: http_door.cc.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "http/request_parser.h"

namespace withy::orchestrator {

// Immutable.
class WebOrigins {
 public:
  // "SCHEME://HOST[:PORT]" each, or "*" for all. None: no other site's page may.
  explicit WebOrigins(std::vector<std::string> allowed) : allowed_(std::move(allowed)) {}

  // Lines of headers, each with its CR LF: for every answer to this request, errors included; and
  // those that the answer to an OPTIONS request has beside them.
  std::string ForAnswer(const http::RequestHead& head) const;
  std::string ForPreflight(const http::RequestHead& head) const;

 private:
  bool Allows(std::string_view origin) const;

  const std::vector<std::string> allowed_;
};

}  // namespace withy::orchestrator
