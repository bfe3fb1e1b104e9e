// Other connections must not affect a scrape.
#include "profiler_agent/pages.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::profiler_agent {
namespace {

using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kRequest[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

std::string Answer(const std::string& method, const std::string& path) {
  http::RequestHead request;
  request.method = method;
  request.path = path;
  return AnswerPage(
      request,
      {{"/metrics", "text/plain; version=0.0.4", [] { return std::string("withy_up 1\n"); }},
       {"/", "text/html; charset=utf-8", [] { return std::string("<html>"); }}});
}

TEST(AnswerPage, ThePageAndNothingElse) {
  EXPECT_THAT(Answer("GET", "/metrics"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Content-Length: 11\r\n"),
                    HasSubstr("version=0.0.4"), HasSubstr("\r\n\r\nwithy_up 1\n")));
  EXPECT_THAT(Answer("HEAD", "/metrics"), AllOf(HasSubstr(" 200 "), HasSubstr("Content-Length: 11"),
                                                Not(HasSubstr("withy_up"))));
  EXPECT_THAT(Answer("GET", "/"),
              AllOf(HasSubstr(" 200 "), HasSubstr("text/html"), HasSubstr("\r\n\r\n<html>")));
  EXPECT_THAT(Answer("GET", "/other"), AllOf(HasSubstr(" 404 "), HasSubstr("/metrics")));
  EXPECT_THAT(Answer("POST", "/metrics"), HasSubstr(" 405 "));
}

TEST(NamesThisMachine, AddressesAndLocalhostDoAndNamesOfOthersDoNot) {
  const auto names = [](const char* host) {
    http::RequestHead head;
    head.headers = {{"host", host}};
    return NamesThisMachine(head);
  };
  for (const char* host : {"127.0.0.1:9464", "127.0.0.1", "localhost:8000", "LocalHost", "[::1]",
                           "[::1]:9464", "10.0.0.2:9464", ""}) {
    EXPECT_TRUE(names(host)) << host;
  }
  for (const char* host : {"evil.example:9464", "evil.example", "localhost.evil.example",
                           "127.0.0.1.evil.example:9464", "1.2.3.4x"}) {
    EXPECT_FALSE(names(host)) << host;
  }
  EXPECT_TRUE(NamesThisMachine(http::RequestHead()));
}

class PagesTest : public ::testing::Test {
 protected:
  void Start(const http::ServerOptions& options = PageOptions(), size_t page_bytes = 1000) {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    to_.sin_family = AF_INET;
    to_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof to_;
    ASSERT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&to_), sizeof to_), 0);
    ASSERT_EQ(listen(fd.get(), SOMAXCONN), 0);
    ASSERT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&to_), &size), 0);
    page_ = std::string(page_bytes, 'x') + "end";
    auto started = ServePages(std::move(fd), {{"/metrics", "text/plain", [this] { return page_; }}},
                              /*this_machine_only=*/true, options);
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
  }
  // A connection that stops waiting after ten seconds.
  UniqueFd Connect(int receive_bytes = 0) const {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval patience{10, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (receive_bytes > 0) {
      setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    }
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to_), sizeof to_), 0);
    return fd;
  }
  static bool Send(const UniqueFd& fd, std::string_view text) {
    return send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(text.size());
  }
  static std::string ReadAll(const UniqueFd& fd) {
    std::string answer;
    char buffer[65536];
    for (ssize_t n; (n = recv(fd.get(), buffer, sizeof buffer, 0)) > 0;) {
      answer.append(buffer, static_cast<size_t>(n));
    }
    return answer;
  }
  void ExpectScrapesWithin(std::chrono::seconds limit, const char* beside) const {
    const auto started = steady_clock::now();
    const UniqueFd fd = Connect();
    ASSERT_TRUE(Send(fd, kRequest));
    EXPECT_THAT(ReadAll(fd), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("end"))) << beside;
    EXPECT_LT(steady_clock::now() - started, limit) << beside;
  }

  sockaddr_in to_{};
  std::string page_;
  std::unique_ptr<http::Server> server_;
};

// Far below the time limit of a request times the number of open connections, and far above what a
// busy machine needs.
constexpr auto kSoon = std::chrono::seconds(5);

TEST_F(PagesTest, ARequestForAnotherNameIsRefused) {
  Start();
  const UniqueFd fd = Connect();
  ASSERT_TRUE(Send(fd, "GET /metrics HTTP/1.1\r\nHost: evil.example:9464\r\n\r\n"));
  EXPECT_THAT(ReadAll(fd), AllOf(StartsWith("HTTP/1.1 403"), Not(HasSubstr("xxx"))));
}

TEST_F(PagesTest, IdleUnfinishedAndDeafConnectionsHoldUpNoScrape) {
  Start(PageOptions(), /*page_bytes=*/4 << 20);
  std::vector<UniqueFd> others;
  for (int i = 0; i < 300; ++i) {
    others.push_back(Connect(i % 3 == 2 ? 2048 : 0));
    if (i % 3 == 1) Send(others.back(), "GET /metr");
    if (i % 3 == 2) Send(others.back(), kRequest);  // and never reads the response
    if (i % 50 == 49) ExpectScrapesWithin(kSoon, "300 others");
  }
  for (size_t i = 0; i < others.size(); i += 4) shutdown(others[i].get(), SHUT_WR);
  ExpectScrapesWithin(kSoon, "300 others, some half open");
}

TEST_F(PagesTest, AnUnfinishedRequestIsCutOffInTimeHoweverSlowlyItGoesOn) {
  http::ServerOptions options = PageOptions();
  options.head_ns = kNanosPerSecond / 5;
  Start(options);
  const UniqueFd idle = Connect();
  const UniqueFd slow = Connect();
  const auto started = steady_clock::now();
  int sent = 0;
  // Sends a byte now and then until the peer closes.
  while (Send(slow, "x") && sent < 1000) {
    ++sent;
    usleep(10'000);
  }
  EXPECT_LT(sent, 1000);
  EXPECT_EQ(ReadAll(idle), "");
  EXPECT_LT(steady_clock::now() - started, std::chrono::seconds(5));
  ExpectScrapesWithin(kSoon, "none");
}

TEST_F(PagesTest, AnAnswerThatIsNotReadIsCutOffInTime) {
  http::ServerOptions options = PageOptions();
  options.answer_ns = kNanosPerSecond / 5;
  Start(options, /*page_bytes=*/16 << 20);
  const UniqueFd deaf = Connect(2048);
  ASSERT_TRUE(Send(deaf, kRequest));
  usleep(2'000'000);  // a busy machine looks late
  EXPECT_LT(ReadAll(deaf).size(), page_.size());
}

TEST_F(PagesTest, AHeadWithoutEndIsRefused) {
  Start();
  const UniqueFd fd = Connect();
  ASSERT_TRUE(Send(fd, "GET /metrics HTTP/1.1\r\nA: " + std::string(9000, 'a')));
  EXPECT_THAT(ReadAll(fd), StartsWith("HTTP/1.1 431 "));
}

TEST_F(PagesTest, ARequestMayComeInPiecesAndHalfClosed) {
  Start();
  const UniqueFd fd = Connect();
  for (const char c : std::string_view(kRequest)) ASSERT_TRUE(Send(fd, std::string(1, c)));
  shutdown(fd.get(), SHUT_WR);
  EXPECT_THAT(ReadAll(fd), HasSubstr("end"));
}

TEST_F(PagesTest, StopsAtOnceWithConnectionsOpen) {
  Start();
  const UniqueFd idle = Connect();
  const auto started = steady_clock::now();
  server_.reset();
  EXPECT_LT(steady_clock::now() - started, kSoon);
}

}  // namespace
}  // namespace withy::profiler_agent
