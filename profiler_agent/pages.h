// Pages over HTTP for a scraper and for browsers. Neighbours: exporter.h and live_json.h make them,
// http/server.h serves them: no client can block another.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "http/server.h"

namespace withy::profiler_agent {

// What is served at one path.
struct Page {
  std::string path;  // "/metrics"
  std::string type;  // of its content: "text/html; charset=utf-8"
  std::function<std::string()> body;
};

// The whole response to a request: a page for GET of its path, only the headers for HEAD, an error
// for all else. Pure, except that it calls the page's `body`.
std::string AnswerPage(const http::RequestHead& request, const std::vector<Page>& pages);

// Whether a request names this machine by an address or as localhost. A page of another site whose
// name was made to mean this machine (DNS rebinding) has that name. Pure.
bool NamesThisMachine(const http::RequestHead& request);

// For clients whose requests are short and whose answers are there at once.
http::ServerOptions PageOptions();

// `listener`: as http::Server::Start, with its errors. `this_machine_only`: it listens on the
// loopback, and requests for other names are refused.
absl::StatusOr<std::unique_ptr<http::Server>> ServePages(
    UniqueFd listener, std::vector<Page> pages, bool this_machine_only,
    const http::ServerOptions& options = PageOptions());

}  // namespace withy::profiler_agent
