#include "profiler_agent/http_listener.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/status.h"

namespace withy::profiler_agent {
namespace {

// The live page needs itself only: no other site's scripts, styles or data, and no frame around it.
constexpr char kHeaders[] =
    "\r\nConnection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff"
    "\r\nContent-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src "
    "'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'\r\n\r\n";

std::string Respond(std::string_view status, std::string_view type, std::string_view body,
                    bool head_alone) {
  return absl::StrCat("HTTP/1.1 ", ToAbsl(status), "\r\nContent-Type: ", ToAbsl(type),
                      "\r\nContent-Length: ", body.size(), kHeaders,
                      head_alone ? absl::string_view() : ToAbsl(body));
}

std::string Refuse(std::string_view status) {
  return Respond(status, "text/plain; charset=utf-8", absl::StrCat(ToAbsl(status), "\n"), false);
}

bool IsWhole(std::string_view request) {
  return request.find("\r\n\r\n") != std::string_view::npos ||
         request.find("\n\n") != std::string_view::npos;
}

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

std::string AnswerHttp(std::string_view request, const std::vector<HttpPage>& pages) {
  const std::string_view line = request.substr(0, request.find_first_of("\r\n"));
  const size_t method_end = line.find(' ');
  const size_t target_end = method_end == std::string_view::npos ? std::string_view::npos
                                                                 : line.find(' ', method_end + 1);
  if (target_end == std::string_view::npos || !line.substr(target_end + 1).starts_with("HTTP/")) {
    return Refuse("400 Bad Request");
  }
  const std::string_view method = line.substr(0, method_end);
  std::string_view target = line.substr(method_end + 1, target_end - method_end - 1);
  target = target.substr(0, target.find('?'));
  if (method != "GET" && method != "HEAD") return Refuse("405 Method Not Allowed");
  for (const HttpPage& page : pages) {
    if (target == page.path) return Respond("200 OK", page.type, page.body(), method == "HEAD");
  }
  return Refuse("404 Not Found");
}

HttpListener::HttpListener(UniqueFd listener, std::vector<HttpPage> pages, HttpLimits limits)
    : listener_(std::move(listener)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      pages_(std::move(pages)),
      limits_(limits) {}

absl::StatusOr<std::unique_ptr<HttpListener>> HttpListener::Start(UniqueFd listener,
                                                                  std::vector<HttpPage> pages,
                                                                  HttpLimits limits) {
  std::unique_ptr<HttpListener> self(
      new HttpListener(std::move(listener), std::move(pages), limits));
  if (!self->stop_.valid()) return ErrnoError("make an eventfd");
  self->thread_ = std::thread([raw = self.get()] { raw->Serve(); });
  return self;
}

HttpListener::~HttpListener() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void HttpListener::Serve() {
  while (true) {
    std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Connection& connection : connections_) {
      const bool answers = connection.state == State::kAnswering;
      polled.push_back({connection.fd.get(), static_cast<short>(answers ? POLLOUT : POLLIN), 0});
    }
    if (poll(polled.data(), polled.size(), TimeoutMs()) < 0) continue;
    if (polled[0].revents != 0) return;
    const int64_t now = Clock::Real().SteadyNanos();
    for (size_t i = connections_.size(); i-- > 0;) {
      const bool ready = polled[i + 2].revents != 0;
      if (ready ? Advance(connections_[i]) : connections_[i].deadline_ns > now) continue;
      connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (polled[1].revents != 0) AcceptAll();
  }
}

int HttpListener::TimeoutMs() const {
  int64_t first = INT64_MAX;
  for (const Connection& connection : connections_) {
    first = std::min(first, connection.deadline_ns);
  }
  if (connections_.empty()) return -1;
  const int64_t left = std::max<int64_t>(0, first - Clock::Real().SteadyNanos());
  return static_cast<int>(left / kNanosPerMilli + 1);
}

void HttpListener::AcceptAll() {
  // Limits the number of accepts, so that open connections get their turn.
  for (size_t i = 0; i < limits_.connections; ++i) {
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      if (errno == EMFILE || errno == ENFILE) MakeRoom();
      return;
    }
    if (connections_.size() >= limits_.connections) MakeRoom();
    Connection connection;
    connection.fd = std::move(fd);
    connection.deadline_ns = Clock::Real().SteadyNanos() + limits_.request_ns;
    // A scraper's request usually arrives with its connection.
    if (Advance(connection)) connections_.push_back(std::move(connection));
  }
}

void HttpListener::MakeRoom() {
  const auto least = std::min_element(
      connections_.begin(), connections_.end(), [](const Connection& a, const Connection& b) {
        return std::pair(a.state, a.deadline_ns) < std::pair(b.state, b.deadline_ns);
      });
  if (least != connections_.end()) connections_.erase(least);
}

bool HttpListener::Advance(Connection& connection) {
  // The deadline also applies to a peer that keeps the connection busy.
  if (Clock::Real().SteadyNanos() >= connection.deadline_ns) return false;
  switch (connection.state) {
    case State::kReading:
      return Read(connection);
    case State::kAnswering:
      return Write(connection);
    case State::kHangingUp:
      return AwaitHangUp(connection);
  }
  return false;
}

bool HttpListener::Read(Connection& connection) {
  std::array<char, 4096> bytes;
  while (!IsWhole(connection.request) && connection.request.size() <= limits_.request_bytes) {
    const ssize_t got = recv(connection.fd.get(), bytes.data(), bytes.size(), 0);
    if (got < 0) return WouldBlock();
    if (got == 0) return false;
    connection.request.append(bytes.data(), static_cast<size_t>(got));
  }
  connection.answer = IsWhole(connection.request) ? AnswerHttp(connection.request, pages_)
                                                  : Refuse("431 Request Header Fields Too Large");
  connection.state = State::kAnswering;
  connection.deadline_ns = Clock::Real().SteadyNanos() + limits_.answer_ns;
  return Write(connection);
}

bool HttpListener::Write(Connection& connection) {
  while (connection.sent < connection.answer.size()) {
    const ssize_t sent = send(connection.fd.get(), connection.answer.data() + connection.sent,
                              connection.answer.size() - connection.sent, MSG_NOSIGNAL);
    if (sent < 0) return WouldBlock();
    connection.sent += static_cast<size_t>(sent);
  }
  // Closing at once would discard unread data if the peer sends more.
  shutdown(connection.fd.get(), SHUT_WR);
  connection.state = State::kHangingUp;
  connection.deadline_ns = Clock::Real().SteadyNanos() + limits_.hang_up_ns;
  return AwaitHangUp(connection);
}

bool HttpListener::AwaitHangUp(Connection& connection) {
  std::array<char, 4096> ignored;
  const ssize_t got = recv(connection.fd.get(), ignored.data(), ignored.size(), 0);
  return got > 0 || (got < 0 && WouldBlock());
}

}  // namespace withy::profiler_agent
