#include "http/server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/status.h"

namespace withy::http {
namespace {

// What is left to a client's taking or sending once the server ends.
constexpr int64_t kLastWordsNs = kNanosPerSecond;
constexpr int64_t kDescriptorsNs = 100 * kNanosPerMilli;
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

int64_t SteadyNow() { return Clock::Real().SteadyNanos(); }

bool TryAgain() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

int MillisLeft(int64_t deadline_ns, int64_t now_ns) {
  return static_cast<int>(std::max<int64_t>(0, deadline_ns - now_ns) / kNanosPerMilli + 1);
}

void Raise(const UniqueFd& event) {
  const uint64_t one = 1;
  (void)!write(event.get(), &one, sizeof one);
}

}  // namespace

Exchange::Exchange(Socket socket, RequestParser parser, std::string rest, int stop,
                   const ServerOptions& options)
    : socket_(std::move(socket)),
      parser_(std::move(parser)),
      rest_(std::move(rest)),
      stop_(stop),
      options_(options) {}

bool Exchange::Await(short events, int64_t deadline_ns) {
  while (true) {
    const int64_t now = SteadyNow();
    if (now >= deadline_ns) return false;
    pollfd polled[] = {{socket_.fd(), socket_.EventsFor(events), 0},
                       {stopping_ ? -1 : stop_, POLLIN, 0}};
    if (poll(polled, 2, MillisLeft(deadline_ns, now)) < 0) continue;
    if (polled[0].revents != 0) return true;
    if (polled[1].revents == 0) continue;
    stopping_ = true;
    deadline_ns = std::min(deadline_ns, SteadyNow() + kLastWordsNs);
  }
}

std::optional<Failure> Exchange::ReadBody(std::string* body) {
  std::array<char, 16384> bytes;
  std::string_view next = rest_;
  const int64_t whole_ns = SteadyNow() + options_.body_ns;
  if (head().expects_continue && rest_.empty() && parser_.state() == RequestParser::State::kBody &&
      !Send(kContinue)) {
    return Failure{408, "the client did not take 100 (Continue)"};
  }
  while (parser_.state() == RequestParser::State::kBody) {
    if (!next.empty()) {
      next.remove_prefix(parser_.Feed(next));
      continue;
    }
    // Not polled before: TLS may have decrypted more than was taken.
    const bool late = SteadyNow() >= whole_ns;
    const ssize_t got = late ? -1 : socket_.Receive(bytes.data(), bytes.size());
    if (late || (got < 0 && TryAgain())) {
      if (Await(POLLIN, std::min(whole_ns, SteadyNow() + options_.body_idle_ns))) continue;
      if (stopping_) return Failure{503, "the service ends: try again"};
      return Failure{408, "the request's body did not arrive in time: " + parser_.Missing()};
    }
    if (got <= 0) {
      return Failure{400, "the request's body ended too early: " + parser_.Missing()};
    }
    next = std::string_view(bytes.data(), static_cast<size_t>(got));
  }
  if (parser_.state() == RequestParser::State::kFailed) return parser_.failure();
  rest_ = std::string(next);
  *body = parser_.TakeBody();
  return std::nullopt;
}

bool Exchange::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = socket_.Send(bytes);
    if (sent < 0) {
      if (!TryAgain() || !Await(POLLOUT, SteadyNow() + options_.write_ns)) {
        broken_ = true;
        return false;
      }
      continue;
    }
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool Exchange::MayKeepOpen() const {
  return options_.idle_ns > 0 && !head().closes && !stopping_ && !broken_ &&
         parser_.state() == RequestParser::State::kDone;
}

Server::Server(UniqueFd listener, const ServerOptions& options, Handlers handlers)
    : options_(options),
      handlers_(std::move(handlers)),
      tls_(options.tls == nullptr ? nullptr : std::make_unique<TlsAcceptor>(options.tls)),
      listener_(std::move(listener)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      executor_(handlers_.answer
                    ? std::make_unique<Executor>(options.threads, options.waiting, Clock::Real())
                    : nullptr) {}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(UniqueFd listener,
                                                      const ServerOptions& options,
                                                      Handlers handlers) {
  std::unique_ptr<Server> self(new Server(std::move(listener), options, std::move(handlers)));
  if (!self->stop_.valid() || !self->wake_.valid()) return ErrnoError("make an eventfd");
  self->thread_ = std::thread([raw = self.get()] { raw->Serve(); });
  return self;
}

Server::~Server() { Stop(); }

void Server::Stop() {
  if (!thread_.joinable()) return;
  Raise(stop_);
  thread_.join();
  executor_.reset();  // waits
  std::erase_if(connections_, [](const Connection& one) { return one.state == State::kIdle; });
  absl::MutexLock lock(&mutex_);
  answered_.clear();
}

void Server::Serve() {
  while (true) {
    const int64_t before = SteadyNow();
    const bool accepts = before >= accept_again_ns_;
    std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0},
                                  {wake_.get(), POLLIN, 0},
                                  {accepts ? listener_.get() : -1, POLLIN, 0}};
    for (const Connection& connection : connections_) {
      const bool answers = connection.state == State::kAnswering;
      polled.push_back(
          {connection.socket.fd(), connection.socket.EventsFor(answers ? POLLOUT : POLLIN), 0});
    }
    if (poll(polled.data(), polled.size(), TimeoutMs(before)) < 0) continue;
    if (polled[0].revents != 0) return;
    const int64_t now = SteadyNow();
    for (size_t i = connections_.size(); i-- > 0;) {
      const bool ready = polled[i + 3].revents != 0;
      if (ready || connections_[i].deadline_ns <= now ? Advance(connections_[i]) : true) continue;
      connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (polled[1].revents != 0) TakeAnswered();
    if (polled[2].revents != 0) AcceptAll();
  }
}

int Server::TimeoutMs(int64_t now_ns) const {
  int64_t first = accept_again_ns_ > now_ns ? accept_again_ns_ : INT64_MAX;
  for (const Connection& connection : connections_) {
    first = std::min(first, connection.deadline_ns);
  }
  return first == INT64_MAX ? -1 : MillisLeft(first, now_ns);
}

void Server::AcceptAll() {
  // Limits the number of accepts, so that open connections get their turn.
  for (size_t i = 0; i < options_.connections; ++i) {
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      if (errno != EMFILE && errno != ENFILE) return;
      MakeRoom();
      accept_again_ns_ = SteadyNow() + kDescriptorsNs;
      return;
    }
    Accepted(std::move(fd));
  }
}

void Server::Accepted(UniqueFd fd) {
  const int yes = 1;  // an answer's tokens are sent one by one
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  absl::StatusOr<Socket> socket =
      tls_ == nullptr ? absl::StatusOr<Socket>(Socket(std::move(fd))) : tls_->Begin(std::move(fd));
  if (!socket.ok()) return;  // the client sees the connection closed
  if (connections_.size() >= options_.connections) MakeRoom();
  Connection connection{.socket = *std::move(socket),
                        .parser = RequestParser(options_.limits),
                        .deadline_ns = SteadyNow() + options_.head_ns};
  // A request usually arrives with its connection.
  if (Advance(connection)) connections_.push_back(std::move(connection));
}

void Server::MakeRoom() {
  const auto least = std::min_element(
      connections_.begin(), connections_.end(), [](const Connection& a, const Connection& b) {
        return std::pair(a.state, a.deadline_ns) < std::pair(b.state, b.deadline_ns);
      });
  if (least != connections_.end()) connections_.erase(least);
}

void Server::TakeAnswered() {
  uint64_t ignored = 0;
  (void)!read(wake_.get(), &ignored, sizeof ignored);
  std::vector<Answered> answered;
  {
    absl::MutexLock lock(&mutex_);
    answered.swap(answered_);
  }
  for (Answered& one : answered) {
    if (connections_.size() >= options_.connections) MakeRoom();
    Connection connection{.socket = std::move(one.socket),
                          .parser = RequestParser(options_.limits)};
    const bool stays = one.keep_open ? BeginIdle(connection, one.rest) : BeginHangUp(connection);
    if (stays) connections_.push_back(std::move(connection));
  }
}

// The next request may be there already: behind the one before, or decrypted by TLS.
bool Server::BeginIdle(Connection& connection, std::string_view rest) {
  connection.state = State::kIdle;
  connection.deadline_ns = SteadyNow() + options_.idle_ns;
  if (!rest.empty()) {
    if (const std::optional<bool> over = Take(connection, rest)) return *over;
  }
  return Read(connection);
}

bool Server::Advance(Connection& connection) {
  // The deadline also applies to a peer that keeps the connection busy.
  if (SteadyNow() >= connection.deadline_ns) {
    // One that is idle is closed without a word: its client may be about to send a request, and
    // would take the word for the answer.
    if (connection.state != State::kReading || !connection.spoke) return false;
    return Refuse(connection, {408, "the request's line and headers did not arrive in time"},
                  connection.parser.head());
  }
  switch (connection.state) {
    case State::kIdle:
    case State::kReading:
      return Read(connection);
    case State::kAnswering:
      return Write(connection);
    case State::kHangingUp:
      return AwaitHangUp(connection);
  }
  return false;
}

bool Server::Read(Connection& connection) {
  std::array<char, 4096> bytes;
  while (true) {
    const ssize_t got = connection.socket.Receive(bytes.data(), bytes.size());
    // A refused handshake: its alert is to arrive before the connection is closed.
    if (got < 0) return TryAgain() || (connection.socket.encrypted() && BeginHangUp(connection));
    if (got == 0) return false;
    const std::string_view came(bytes.data(), static_cast<size_t>(got));
    if (const std::optional<bool> over = Take(connection, came)) return *over;
  }
}

std::optional<bool> Server::Take(Connection& connection, std::string_view bytes) {
  connection.spoke = true;
  const size_t used = connection.parser.Feed(bytes);
  if (connection.state == State::kIdle && connection.parser.begun()) {
    connection.state = State::kReading;
    connection.deadline_ns = SteadyNow() + options_.head_ns;
  }
  switch (connection.parser.state()) {
    case RequestParser::State::kHead:
      return std::nullopt;
    case RequestParser::State::kFailed:
      return Refuse(connection, connection.parser.failure(), connection.parser.head());
    case RequestParser::State::kBody:
    case RequestParser::State::kDone:
      return Dispatch(connection, std::string(bytes.substr(used)));
  }
  return false;
}

bool Server::Dispatch(Connection& connection, std::string rest) {
  if (handlers_.at_once) {
    std::optional<std::string> answer = handlers_.at_once(connection.parser.head());
    if (answer.has_value()) return BeginAnswer(connection, *std::move(answer));
  }
  if (executor_ == nullptr) return false;
  // Shared with the queue, which copies its tasks.
  const auto exchange =
      std::make_shared<Exchange>(std::move(connection.socket), std::move(connection.parser),
                                 std::move(rest), stop_.get(), options_);
  const auto answer = [this, exchange] {
    handlers_.answer(*exchange);
    {
      absl::MutexLock lock(&mutex_);
      answered_.push_back({exchange->TakeSocket(), exchange->kept_open(), exchange->TakeRest()});
    }
    Raise(wake_);
  };
  if (executor_->Run(answer)) return false;
  connection.socket = exchange->TakeSocket();
  return Refuse(connection, {503, "all threads for HTTP are taken: try again later"},
                exchange->head());
}

bool Server::Refuse(Connection& connection, const Failure& failure, const RequestHead& head) {
  return BeginAnswer(connection, handlers_.refuse(failure, head));
}

bool Server::BeginAnswer(Connection& connection, std::string answer) {
  connection.answer = std::move(answer);
  connection.sent = 0;
  connection.state = State::kAnswering;
  connection.deadline_ns = SteadyNow() + options_.answer_ns;
  return Write(connection);
}

bool Server::Write(Connection& connection) {
  while (connection.sent < connection.answer.size()) {
    const ssize_t sent =
        connection.socket.Send(std::string_view(connection.answer).substr(connection.sent));
    if (sent < 0) return TryAgain();
    connection.sent += static_cast<size_t>(sent);
  }
  return BeginHangUp(connection);
}

// To close at once would discard the answer where the client still sends.
bool Server::BeginHangUp(Connection& connection) {
  connection.socket.EndSending();
  connection.state = State::kHangingUp;
  connection.deadline_ns = SteadyNow() + options_.hang_up_ns;
  return AwaitHangUp(connection);
}

bool Server::AwaitHangUp(Connection& connection) {
  const ssize_t got = connection.socket.Discard();
  return got > 0 || (got < 0 && TryAgain());
}

}  // namespace withy::http
