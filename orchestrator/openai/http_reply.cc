#include "orchestrator/openai/http_reply.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/strings.h"
#include "http/status.h"
#include "orchestrator/openai/openai_error.h"
#include "rpc/status.h"

namespace withy::orchestrator {
namespace {

constexpr int64_t kLongestClientWaitMs = 60'000;
constexpr size_t kMostRequestIdBytes = 128;

// The client's name for its request, or a new one.
std::string RequestId(const http::RequestHead& head) {
  const std::string* given = head.Find("x-request-id");
  const bool usable = given != nullptr && !given->empty() && given->size() <= kMostRequestIdBytes &&
                      std::all_of(given->begin(), given->end(),
                                  [](unsigned char c) { return absl::ascii_isgraph(c); });
  return usable ? *given : absl::StrCat("req_", absl::Hex(RandomId64(), absl::kZeroPad16));
}

}  // namespace

std::string HttpResponse(const http::RequestHead& head, int status, std::string_view body,
                         std::string_view headers, std::string_view type) {
  std::string response =
      absl::StrCat("HTTP/1.1 ", status, " ", ToAbsl(http::ReasonOf(status)), "\r\n");
  if (status != 204) {
    absl::StrAppend(&response, "Content-Type: ", ToAbsl(type), "\r\nContent-Length: ", body.size(),
                    "\r\n");
  }
  absl::StrAppend(&response, ToAbsl(headers), "\r\n");
  if (head.method != "HEAD") response += body;
  return response;
}

HttpReply::HttpReply(http::Exchange& exchange, const WebOrigins& origins)
    : exchange_(exchange),
      shared_headers_(absl::StrCat(origins.ForAnswer(exchange.head()),
                                   "x-request-id: ", RequestId(exchange.head()), "\r\n")) {}

std::string HttpReply::ConnectionHeaders() {
  keeps_open_ = exchange_.MayKeepOpen();
  if (!keeps_open_) return std::string(kConnectionCloses);
  return absl::StrCat("Keep-Alive: timeout=", exchange_.options().idle_ns / kNanosPerSecond,
                      "\r\n");
}

void HttpReply::End(bool sent) {
  if (sent && keeps_open_) exchange_.KeepOpen();
}

void HttpReply::Respond(int status, std::string_view body, std::string_view headers,
                        std::string_view type) {
  const std::string lines = absl::StrCat(ConnectionHeaders(), SharedHeaders(), ToAbsl(headers));
  End(exchange_.Send(HttpResponse(exchange_.head(), status, body, lines, type)));
}

void HttpReply::RespondError(const absl::Status& status, std::string_view prompt_field) {
  std::string headers;
  if (const std::optional<int64_t> retry_ms = rpc::RetryAfterMs(status)) {
    headers = absl::StrCat("Retry-After: ", (*retry_ms + 999) / 1000,
                           "\r\nretry-after-ms: ", *retry_ms, "\r\n");
    // OpenAI's clients take a long wait for none, and try again at once.
    if (*retry_ms > kLongestClientWaitMs) headers += "x-should-retry: false\r\n";
  }
  if (absl::IsUnauthenticated(status)) headers += "WWW-Authenticate: Bearer\r\n";
  Respond(HttpStatusOf(status), errors_->of_call(status, prompt_field), headers);
}

void HttpReply::RespondFailure(const http::Failure& failure) {
  Respond(failure.status, errors_->of_http(failure.status, failure.message));
}

bool HttpReply::SendEvent(const ServerEvent& sent, std::string_view call_id) {
  const bool chunked = !exchange_.head().http_1_0;  // which knows the end by the connection's
  std::string bytes;
  if (!std::exchange(events_begun_, true)) {
    bytes = absl::StrCat(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n",
        chunked ? "Transfer-Encoding: chunked\r\n" : "", ConnectionHeaders(), SharedHeaders(),
        "x-withy-call-id: ", ToAbsl(call_id), "\r\n\r\n");
  }
  const std::string event =
      absl::StrCat(sent.name.empty() ? "" : "event: ", sent.name, sent.name.empty() ? "" : "\n",
                   "data: ", sent.data, "\n\n");
  if (chunked) {
    absl::StrAppend(&bytes, absl::Hex(event.size()), "\r\n", event, "\r\n");
  } else {
    bytes += event;
  }
  return exchange_.Send(bytes);
}

void HttpReply::EndEvents() {
  if (!exchange_.head().http_1_0) End(exchange_.Send("0\r\n\r\n"));
}

}  // namespace withy::orchestrator
