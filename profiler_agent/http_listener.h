// Serves a few pages over HTTP to a scraper and to browsers, whatever other clients do: idle and
// unfinished connections have deadlines, and if there are too many the oldest is closed for a new
// one. So no client can block another. Neighbours: exporter.h and live_json.h make the pages. No
// keep-alive, compression or TLS.
//
// A server with one thread per connection cannot guarantee that: as many silent connections as
// threads block all others until they time out.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/unique_fd.h"

namespace withy::profiler_agent {

struct HttpLimits {
  size_t connections = 64;         // maximum number of open connections
  size_t request_bytes = 8 << 10;  // maximum bytes of a request's line and headers
  // Time-outs: from connection to the end of the request's headers, from there to the last byte of
  // the answer, and then until the client closes.
  int64_t request_ns = 2 * kNanosPerSecond;
  int64_t answer_ns = 5 * kNanosPerSecond;
  int64_t hang_up_ns = kNanosPerSecond;
};

// What is served at one path.
struct HttpPage {
  std::string path;  // "/metrics"
  std::string type;  // of its content: "text/html; charset=utf-8"
  std::function<std::string()> body;
};

// Returns the HTTP response to `request` (its line and headers): a page for GET of its path, only
// the headers for HEAD, an error for all else. Pure, except that it calls the page's `body`.
std::string AnswerHttp(std::string_view request, const std::vector<HttpPage>& pages);

// One thread, from Start to destruction.
class HttpListener {
 public:
  // `listener` is a listening socket. Errors: those of eventfd(2).
  static absl::StatusOr<std::unique_ptr<HttpListener>> Start(UniqueFd listener,
                                                             std::vector<HttpPage> pages,
                                                             HttpLimits limits = {});
  ~HttpListener();
  HttpListener(const HttpListener&) = delete;
  HttpListener& operator=(const HttpListener&) = delete;

 private:
  enum class State {
    kHangingUp,
    kReading,
    kAnswering
  };  // in the order in which they are closed for a new connection
  struct Connection {
    UniqueFd fd;
    State state = State::kReading;
    std::string request;
    std::string answer;
    size_t sent = 0;
    int64_t deadline_ns = 0;
  };

  HttpListener(UniqueFd listener, std::vector<HttpPage> pages, HttpLimits limits);
  void Serve();
  int TimeoutMs() const;
  void AcceptAll();
  void MakeRoom();
  // Returns false if the connection is to be closed.
  bool Advance(Connection& connection);
  bool Read(Connection& connection);
  bool Write(Connection& connection);
  static bool AwaitHangUp(Connection& connection);

  UniqueFd listener_;
  UniqueFd stop_;  // an eventfd
  const std::vector<HttpPage> pages_;
  const HttpLimits limits_;
  std::vector<Connection> connections_;  // used by the thread only; oldest first
  std::thread thread_;
};

}  // namespace withy::profiler_agent
