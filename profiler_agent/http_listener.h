// One page over HTTP, for a scraper, however many others connect and whatever they do: idle and
// unfinished connections have a deadline, and the oldest gives way to a new one when there are too
// many, so that nobody keeps the page from anybody else. Neighbour: exporter.h makes the page. No
// keep-alive, no compression, no TLS.
//
// A thread for each connection, as civetweb has, cannot do this: as many connections that say
// nothing as there are threads hold up all others until their time is over.
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
  size_t connections = 64;         // open at one time
  size_t request_bytes = 8 << 10;  // of a request's line and headers
  // From the connection to the end of the request's headers, from there to the last byte of the
  // answer, and for the other side to hang up.
  int64_t request_ns = 2 * kNanosPerSecond;
  int64_t answer_ns = 5 * kNanosPerSecond;
  int64_t hang_up_ns = kNanosPerSecond;
};

// The head and body that answer `request` (its line and headers): the page for GET of `path`, the
// head alone for HEAD, an error for all else. Pure but for `page`, which is called for the page
// only.
std::string AnswerHttp(std::string_view request, std::string_view path,
                       const std::function<std::string()>& page);

// One thread, from Start to destruction.
class HttpListener {
 public:
  // `listener` is a socket that listens. Errors: those of eventfd(2).
  static absl::StatusOr<std::unique_ptr<HttpListener>> Start(UniqueFd listener, std::string path,
                                                             std::function<std::string()> page,
                                                             HttpLimits limits = {});
  ~HttpListener();
  HttpListener(const HttpListener&) = delete;
  HttpListener& operator=(const HttpListener&) = delete;

 private:
  enum class State { kHangingUp, kReading, kAnswering };  // whom a new connection costs first
  struct Connection {
    UniqueFd fd;
    State state = State::kReading;
    std::string request;
    std::string answer;
    size_t sent = 0;
    int64_t deadline_ns = 0;
  };

  HttpListener(UniqueFd listener, std::string path, std::function<std::string()> page,
               HttpLimits limits);
  void Serve();
  int TimeoutMs() const;
  void AcceptAll();
  void MakeRoom();
  // False when the connection is to be closed.
  bool Advance(Connection& connection);
  bool Read(Connection& connection);
  bool Write(Connection& connection);
  static bool AwaitHangUp(Connection& connection);

  UniqueFd listener_;
  UniqueFd stop_;  // an eventfd
  const std::string path_;
  const std::function<std::string()> page_;
  const HttpLimits limits_;
  std::vector<Connection> connections_;  // the thread's own; oldest first
  std::thread thread_;
};

}  // namespace withy::profiler_agent
