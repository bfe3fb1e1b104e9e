#include "profiler_agent/pages.h"

#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "http/status.h"

namespace withy::profiler_agent {
namespace {

// The live page needs itself only: no other site's scripts, styles or data, and no frame around it.
constexpr char kHeaders[] =
    "\r\nConnection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff"
    "\r\nContent-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src "
    "'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'\r\n\r\n";

std::string Respond(int status, std::string_view type, std::string_view body, bool head_alone) {
  return absl::StrCat("HTTP/1.1 ", status, " ", ToAbsl(http::ReasonOf(status)),
                      "\r\nContent-Type: ", ToAbsl(type), "\r\nContent-Length: ", body.size(),
                      kHeaders, head_alone ? absl::string_view() : ToAbsl(body));
}

std::string Refuse(int status, std::string_view why, bool head_alone) {
  return Respond(status, "text/plain; charset=utf-8", absl::StrCat(ToAbsl(why), "\n"), head_alone);
}

}  // namespace

std::string AnswerPage(const http::RequestHead& request, const std::vector<Page>& pages) {
  const bool head_alone = request.method == "HEAD";
  if (request.method != "GET" && !head_alone) {
    return Refuse(405, "only GET and HEAD are served here", false);
  }
  std::string paths;
  for (const Page& page : pages) {
    if (request.path == page.path) return Respond(200, page.type, page.body(), head_alone);
    absl::StrAppend(&paths, paths.empty() ? "" : ", ", page.path);
  }
  return Refuse(404, absl::StrCat("there are ", paths), head_alone);
}

bool NamesThisMachine(const http::RequestHead& request) {
  const std::string* header = request.Find("host");
  if (header == nullptr) return true;  // no browser
  std::string_view host = *header;
  if (const size_t colon = host.rfind(':');
      colon != std::string_view::npos && host.find(']', colon) == std::string_view::npos) {
    host = host.substr(0, colon);
  }
  if (host.starts_with('[') || host.empty()) return true;
  return absl::EqualsIgnoreCase(ToAbsl(host), "localhost") ||
         host.find_first_not_of("0123456789.") == std::string_view::npos;
}

http::ServerOptions PageOptions() {
  return {.limits = {.head_bytes = 8 << 10, .body_bytes = 0},
          .connections = 64,
          .head_ns = 2 * kNanosPerSecond,
          .hang_up_ns = kNanosPerSecond};
}

absl::StatusOr<std::unique_ptr<http::Server>> ServePages(UniqueFd listener, std::vector<Page> pages,
                                                         bool this_machine_only,
                                                         const http::ServerOptions& options) {
  http::Handlers handlers;
  handlers.at_once = [pages = std::move(pages), this_machine_only](const http::RequestHead& head) {
    if (this_machine_only && !NamesThisMachine(head)) {
      return std::optional<std::string>(
          Refuse(403, "this is served to requests for localhost or an address: open it as such",
                 head.method == "HEAD"));
    }
    return std::optional<std::string>(AnswerPage(head, pages));
  };
  handlers.refuse = [](const http::Failure& failure, const http::RequestHead& head) {
    return Refuse(failure.status, failure.message, head.method == "HEAD");
  };
  return http::Server::Start(std::move(listener), options, std::move(handlers));
}

}  // namespace withy::profiler_agent
