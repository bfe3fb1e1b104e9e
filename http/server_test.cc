// The server over real sockets.
#include "http/server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/strings.h"
#include "base/tcp_listener.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::http {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

struct Client {
  explicit Client(int port) : fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  void Send(std::string_view bytes) const {
    (void)!send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Until the server closes, or `until` has come.
  std::string Read(const std::string& until = "") const {
    std::string all;
    char piece[4096];
    while (until.empty() || all.find(until) == std::string::npos) {
      const ssize_t got = recv(fd.get(), piece, sizeof piece, 0);
      if (got <= 0) break;
      all.append(piece, static_cast<size_t>(got));
    }
    return all;
  }
  UniqueFd fd;
};

std::string Say(int status, std::string_view text) {
  return absl::StrCat("HTTP/1.1 ", status, " X\r\nConnection: close\r\n\r\n", ToAbsl(text));
}

std::string Keep(std::string_view text) {
  return absl::StrCat("HTTP/1.1 200 X\r\nContent-Length: ", text.size(), "\r\n\r\n", ToAbsl(text));
}

// Answers with the body; "/kept" on a connection that stays open; "/early" before it is read,
// "/held" when it is let go.
class ServerTest : public ::testing::Test {
 protected:
  void Start(const ServerOptions& options = {}) {
    absl::StatusOr<UniqueFd> listener = ListenTcp("127.0.0.1:0", "test", "fix it");
    ASSERT_TRUE(listener.ok()) << listener.status();
    const std::string address = BoundAddress(*listener, "127.0.0.1:0");
    port_ = std::stoi(address.substr(address.rfind(':') + 1));
    auto server = Server::Start(
        *std::move(listener), options,
        {.answer =
             [this](Exchange& exchange) {
               if (exchange.head().path == "/early") {
                 exchange.Send(Say(403, "early"));
                 return;
               }
               if (exchange.head().path == "/held") {
                 if (!started_.HasBeenNotified()) started_.Notify();
                 release_.WaitForNotification();
               }
               std::string body;
               const auto failure = exchange.ReadBody(&body);
               if (exchange.head().path == "/kept" && exchange.MayKeepOpen()) {
                 if (exchange.Send(Keep(body))) exchange.KeepOpen();
                 return;
               }
               exchange.Send(failure ? Say(failure->status, failure->message) : Say(200, body));
             },
         .refuse = [](const Failure& failure,
                      const RequestHead&) { return Say(failure.status, failure.message); }});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::string Exchanged(const std::string& request) const {
    const Client client(port_);
    client.Send(request);
    return client.Read();
  }

  absl::Notification started_, release_;
  int port_ = 0;
  std::unique_ptr<Server> server_;
};

std::string PostTo(const std::string& path, const std::string& headers, const std::string& body) {
  return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: x\r\n", headers, "\r\n", body);
}

TEST_F(ServerTest, BodiesOfBothKindsArrive) {
  Start();
  const std::string large(1 << 20, 'x');
  EXPECT_THAT(Exchanged(PostTo("/", absl::StrCat("Content-Length: ", large.size(), "\r\n"), large)),
              EndsWith("\r\n\r\n" + large));
  EXPECT_THAT(Exchanged(PostTo("/", "Transfer-Encoding: chunked\r\n", "2;e\r\nhi\r\n0\r\n\r\n")),
              EndsWith("\r\n\r\nhi"));
}

TEST_F(ServerTest, AClientThatWaitsIsToldToContinueUnlessItIsRefused) {
  Start();
  const std::string wants = "Content-Length: 2\r\nExpect: 100-continue\r\n";
  const Client client(port_);
  client.Send(PostTo("/", wants, ""));
  EXPECT_EQ(client.Read("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("hi");
  EXPECT_THAT(client.Read(), AllOf(StartsWith("HTTP/1.1 200"), EndsWith("hi")));
  EXPECT_THAT(Exchanged(PostTo("/early", wants, "")), StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(Exchanged(PostTo("/", "Content-Length: 2\r\nExpect: a wonder\r\n", "")),
              StartsWith("HTTP/1.1 417"));
  EXPECT_THAT(Exchanged(PostTo("/", "Content-Length: 99999999\r\nExpect: 100-continue\r\n", "")),
              StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(Exchanged(PostTo("/", wants, "hi")), StartsWith("HTTP/1.1 200"))
      << "who did not wait is not told";
}

TEST_F(ServerTest, ABodyThatStopsIsNoBody) {
  ServerOptions options;
  options.body_idle_ns = 100 * kNanosPerMilli;
  for (const std::string& unfinished :
       {PostTo("/", "Content-Length: 5\r\n", "hi"),
        PostTo("/", "Transfer-Encoding: chunked\r\n", "2\r\nhi\r\n")}) {
    Start(options);
    EXPECT_THAT(Exchanged(unfinished), StartsWith("HTTP/1.1 408"));
    Start();  // a busy machine has time to close
    const Client closes(port_);
    closes.Send(unfinished);
    shutdown(closes.fd.get(), SHUT_WR);
    EXPECT_THAT(closes.Read(), StartsWith("HTTP/1.1 400"));
  }
}

TEST_F(ServerTest, AnEarlyAnswerReachesAClientThatStillSends) {
  Start();
  const std::string much(8 << 20, 'x');
  EXPECT_THAT(Exchanged(PostTo("/early", "Content-Length: 4000000\r\n", much)),
              StartsWith("HTTP/1.1 403"));
}

// More silent and unfinished connections than there is room for.
TEST_F(ServerTest, SilentClientsBlockNobody) {
  ServerOptions options;
  options.threads = 2;
  options.connections = 16;
  Start(options);
  std::vector<std::unique_ptr<Client>> silent;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(std::make_unique<Client>(port_));
    if (i % 2 == 0) silent.back()->Send("POST / HTTP/1.1\r\nX: ");
  }
  EXPECT_THAT(Exchanged(PostTo("/", "Content-Length: 2\r\n", "hi")), EndsWith("hi"));
}

TEST_F(ServerTest, ARequestWithoutAnEndIsToldSoInTime) {
  ServerOptions options;
  options.head_ns = kNanosPerSecond;  // in which a busy machine sends the beginning
  Start(options);
  const Client client(port_);
  client.Send("GET / HTTP/1.1\r\nX: ");
  EXPECT_THAT(client.Read(), StartsWith("HTTP/1.1 408"));
  EXPECT_EQ(Client(port_).Read(), "");
}

TEST_F(ServerTest, RequestsBeyondAllThreadsAreRefused) {
  ServerOptions options;
  options.threads = 1;
  options.waiting = 1;
  Start(options);
  const std::string held = PostTo("/held", "", "");
  const Client answered(port_);
  answered.Send(held);
  started_.WaitForNotification();
  // One of these waits for the thread.
  const Client second(port_), third(port_);
  second.Send(held);
  third.Send(held);
  pollfd polled[] = {{second.fd.get(), POLLIN, 0}, {third.fd.get(), POLLIN, 0}};
  ASSERT_EQ(poll(polled, 2, -1), 1);
  EXPECT_THAT((polled[0].revents != 0 ? second : third).Read(), StartsWith("HTTP/1.1 503"));
  release_.Notify();
  EXPECT_THAT(answered.Read(), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT((polled[0].revents != 0 ? third : second).Read(), StartsWith("HTTP/1.1 200"));
}

TEST_F(ServerTest, StopEndsWhatWaitsForClients) {
  Start();
  const Client client(port_);
  client.Send(PostTo("/", "Content-Length: 5\r\nExpect: 100-continue\r\n", ""));
  EXPECT_THAT(client.Read("\r\n\r\n"), HasSubstr("100 Continue"));
  const int64_t began = Clock::Real().SteadyNanos();
  server_->Stop();
  EXPECT_LT(Clock::Real().SteadyNanos() - began, 5 * kNanosPerSecond);
  EXPECT_THAT(client.Read(), StartsWith("HTTP/1.1 503"));
}

std::string KeptPost(const std::string& body, const std::string& headers = "") {
  return PostTo("/kept", absl::StrCat("Content-Length: ", body.size(), "\r\n", headers), body);
}

TEST_F(ServerTest, AConnectionTakesRequestsUntilOneIsTheLast) {
  Start();
  const Client client(port_);
  for (const std::string body : {"one", "two"}) {
    client.Send(KeptPost(body));
    EXPECT_EQ(client.Read("\r\n\r\n" + body), Keep(body));
  }
  // Behind one another, with the empty line that old clients send, and one without a body.
  client.Send(KeptPost("three") + "\r\n" + KeptPost("four") +
              "GET /kept HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.Read("Content-Length: 0\r\n\r\n"), Keep("three") + Keep("four") + Keep(""));
  client.Send(PostTo("/kept", "Transfer-Encoding: chunked\r\n", "2\r\nhi\r\n0\r\n\r\n"));
  EXPECT_EQ(client.Read("\r\n\r\nhi"), Keep("hi"));
  client.Send(KeptPost("last", "Connection: x, Close\r\n"));
  EXPECT_EQ(client.Read(), Say(200, "last"));
}

TEST_F(ServerTest, WhatIsNotReadOrTooOldKeepsNothingOpen) {
  Start();
  EXPECT_THAT(Exchanged(PostTo("/early", "Content-Length: 2\r\n", "hi")),
              StartsWith("HTTP/1.1 403"));
  EXPECT_EQ(
      Exchanged("POST /kept HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi"),
      Say(200, "hi"));
  const Client client(port_);
  client.Send(KeptPost("one"));
  EXPECT_EQ(client.Read("\r\n\r\none"), Keep("one"));
  client.Send("no request\r\n\r\n");
  EXPECT_THAT(client.Read(), StartsWith("HTTP/1.1 400"));
}

// They hold no thread, and go first where others need room.
TEST_F(ServerTest, IdleConnectionsBlockNobody) {
  ServerOptions options;
  options.threads = 1;
  options.waiting = 1;
  options.connections = 4;
  Start(options);
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 20; ++i) {
    idle.push_back(std::make_unique<Client>(port_));
    idle.back()->Send(KeptPost("hi"));
    EXPECT_EQ(idle.back()->Read("\r\n\r\nhi"), Keep("hi")) << i;
  }
  EXPECT_EQ(idle.front()->Read(), "") << "closed for the others";
  EXPECT_EQ(Exchanged(KeptPost("more", "Connection: close\r\n")), Say(200, "more"));
}

TEST_F(ServerTest, AnIdleConnectionIsClosedWithoutAWord) {
  ServerOptions options;
  options.idle_ns = 200 * kNanosPerMilli;
  Start(options);
  const Client client(port_);
  client.Send(KeptPost("hi"));
  EXPECT_EQ(client.Read("\r\n\r\nhi"), Keep("hi"));
  client.Send("\r\n");
  EXPECT_EQ(client.Read(), "");
}

TEST_F(ServerTest, StopClosesIdleConnections) {
  Start();
  const Client client(port_);
  client.Send(KeptPost("hi"));
  EXPECT_EQ(client.Read("\r\n\r\nhi"), Keep("hi"));
  server_->Stop();
  EXPECT_EQ(client.Read(), "");
}

}  // namespace
}  // namespace withy::http
