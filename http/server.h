// Serves HTTP/1.1 to clients of any kind: those that are silent, slow or endless hold no thread
// that another one needs. One thread reads the heads of all requests; a request whose head has
// arrived gets a thread of its own, which may then read the body and write the answer; or it is
// answered at once, by bytes that the one thread writes as the client takes them. Neighbours:
// request_parser.h reads requests, status.h has the words of a status.
//
// A connection takes one request after the other where the answer says so (Exchange::MayKeepOpen);
// between two it is the one thread's again, and the first to be closed where others need room. In
// TLS where it is asked for. No compression.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/executor.h"
#include "base/tls/tls_files.h"
#include "base/unique_fd.h"
#include "http/request_parser.h"
#include "http/socket.h"
#include "http/tls.h"

namespace withy::http {

struct ServerOptions {
  Limits limits;
  size_t threads = 64;       // requests that Handlers::answer works on at the same time
  size_t waiting = 64;       // those whose head has arrived and that wait for a thread
  size_t connections = 256;  // all others; for a new one the least promising is closed
  // Time-outs. From connection to the end of the head; until all of an answer that was there at
  // once is taken; without a byte of the body, and for all of it; until the client takes a piece of
  // the answer; until it closes behind the last answer.
  int64_t head_ns = 10 * kNanosPerSecond;
  int64_t answer_ns = 5 * kNanosPerSecond;
  int64_t body_idle_ns = 10 * kNanosPerSecond;
  int64_t body_ns = 60 * kNanosPerSecond;
  int64_t write_ns = 10 * kNanosPerSecond;
  int64_t hang_up_ns = 2 * kNanosPerSecond;
  // From an answer to the next request on its connection.
  int64_t idle_ns = 30 * kNanosPerSecond;
  // Clients must speak TLS; shared with the process's other servers. Null: they must not.
  std::shared_ptr<TlsSource> tls = nullptr;
};

// A request whose head has arrived, and the way to its client. For one thread.
class Exchange {
 public:
  // `stop`: an eventfd that is readable once the server ends; borrowed.
  Exchange(Socket socket, RequestParser parser, std::string rest, int stop,
           const ServerOptions& options);

  const RequestHead& head() const { return parser_.head(); }
  // The connection, to see whether the client is there.
  int fd() const { return socket_.fd(); }
  // As Socket::CertifiedName.
  std::string CertifiedName() const { return socket_.CertifiedName(); }

  // Reads the body to its end; a client that waits for 100 (Continue) gets it first. Nullopt, and
  // the body; or why there is none: what RequestParser refuses, 400 for a body that ends too early,
  // 408 for one that takes too long, 503 where the server ends.
  std::optional<Failure> ReadBody(std::string* body);
  // False: the client did not take it in time, or has gone.
  bool Send(std::string_view bytes);

  // Whether the connection may take another request behind this one: the client wants it, and all
  // of this request was read. Asked for before the answer, which then says how it ends (by its
  // length or in chunks); without it, it says `Connection: close`.
  bool MayKeepOpen() const;
  // The whole answer has been sent, and did not say that the connection closes.
  void KeepOpen() { keep_open_ = true; }
  bool kept_open() const { return keep_open_ && !broken_; }
  const ServerOptions& options() const { return options_; }

  Socket TakeSocket() { return std::move(socket_); }
  // What came behind the request.
  std::string TakeRest() { return std::move(rest_); }

 private:
  // Waits for `events`, or what TLS waits for instead. False: not by `deadline_ns`. Soon after the
  // server was told to end, too.
  bool Await(short events, int64_t deadline_ns);

  Socket socket_;
  RequestParser parser_;
  std::string rest_;  // came with the head, or with the end of the body
  const int stop_;
  bool stopping_ = false;
  bool broken_ = false;  // the client has not all that was sent
  bool keep_open_ = false;
  const ServerOptions& options_;
};

struct Handlers {
  // The whole response to a request whose head is enough; nullopt: `answer` answers. Called by the
  // thread that all clients share, so it returns soon. May be empty if `answer` is not, and the
  // other way round.
  std::function<std::optional<std::string>(const RequestHead&)> at_once = {};
  // Answers; called by one of many threads.
  std::function<void(Exchange&)> answer = {};
  // The whole response to a request that is not answered, as far as its head has arrived.
  std::function<std::string(const Failure&, const RequestHead&)> refuse = {};
};

class Server {
 public:
  // `listener` is a listening socket that does not block. Errors: those of eventfd(2).
  static absl::StatusOr<std::unique_ptr<Server>> Start(UniqueFd listener,
                                                       const ServerOptions& options,
                                                       Handlers handlers);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Takes no more requests, and waits for those that are being answered, whose clients get a second
  // for each piece. May be called more than once.
  void Stop();

 private:
  // In the order in which they are closed for others.
  enum class State { kHangingUp, kIdle, kReading, kAnswering };
  struct Connection {
    Socket socket;
    State state = State::kReading;  // kIdle: behind an answer, before the next request
    RequestParser parser;
    int64_t deadline_ns = 0;
    bool spoke = false;  // since the last answer
    std::string answer = {};
    size_t sent = 0;
  };

  // That a thread has answered.
  struct Answered {
    Socket socket;
    bool keep_open = false;
    std::string rest;  // the beginning of the next request
  };

  Server(UniqueFd listener, const ServerOptions& options, Handlers handlers);
  void Serve();
  int TimeoutMs(int64_t now_ns) const;
  void AcceptAll();
  void Accepted(UniqueFd fd);
  void MakeRoom();
  void TakeAnswered();
  // These return false if the connection is to be closed, or is another's now.
  bool Advance(Connection& connection);
  bool Read(Connection& connection);
  bool BeginIdle(Connection& connection, std::string_view rest);
  // Nullopt: more bytes are to be read.
  std::optional<bool> Take(Connection& connection, std::string_view bytes);
  bool Dispatch(Connection& connection, std::string rest);
  bool Refuse(Connection& connection, const Failure& failure, const RequestHead& head);
  bool BeginAnswer(Connection& connection, std::string answer);
  bool Write(Connection& connection);
  bool AwaitHangUp(Connection& connection);
  bool BeginHangUp(Connection& connection);

  const ServerOptions options_;
  const Handlers handlers_;
  const std::unique_ptr<TlsAcceptor> tls_;  // null: plain
  UniqueFd listener_;
  UniqueFd stop_;  // eventfds
  UniqueFd wake_;
  std::vector<Connection> connections_;  // of the thread that reads heads; oldest first
  int64_t accept_again_ns_ = 0;          // the process had no descriptors left
  absl::Mutex mutex_;
  std::vector<Answered> answered_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Executor> executor_;  // null: everything is answered at once
  std::thread thread_;
};

}  // namespace withy::http
