#include "http/request_parser.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>

#include "base/test_seed.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::http {
namespace {

using testing::HasSubstr;
using State = RequestParser::State;

// Feeds `bytes` in pieces of `piece` bytes until the request ends; `used`: bytes that belong to it.
RequestParser Parse(const std::string& bytes, size_t piece = std::string::npos,
                    const Limits& limits = {}, size_t* used = nullptr) {
  RequestParser parser(limits);
  size_t at = 0;
  while (at < bytes.size() && parser.state() != State::kDone && parser.state() != State::kFailed) {
    at += parser.Feed(std::string_view(bytes).substr(at, piece));
  }
  if (used != nullptr) *used = at;
  return parser;
}

std::string Post(const std::string& headers, const std::string& body) {
  return "POST /p HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n" + body;
}

int StatusOf(const std::string& bytes, const Limits& limits = {}) {
  const RequestParser parser = Parse(bytes, std::string::npos, limits);
  return parser.state() == State::kFailed ? parser.failure().status : 0;
}

TEST(RequestParserTest, AHeadIsTakenApart) {
  const RequestParser parser = Parse(
      "\r\nGET /v1/models/a%20b%2Fc?x=1 HTTP/1.1\r\nHost: x\r\nAuthorization:  Bearer t \r\n\r\n");
  ASSERT_EQ(parser.state(), State::kDone);
  EXPECT_EQ(parser.head().method, "GET");
  EXPECT_EQ(parser.head().path, "/v1/models/a b/c");
  ASSERT_NE(parser.head().Find("authorization"), nullptr);
  EXPECT_EQ(*parser.head().Find("authorization"), "Bearer t");
  EXPECT_EQ(parser.head().Find("x"), nullptr);
  EXPECT_EQ(Parse("GET http://h:80/p HTTP/1.1\r\nHost: h\r\n\r\n").head().path, "/p");
  EXPECT_EQ(Parse("GET http://h?q HTTP/1.1\r\nHost: h\r\n\r\n").head().path, "/");
  EXPECT_EQ(Parse("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n").head().path, "*");
  EXPECT_TRUE(Parse("GET / HTTP/1.0\n\n").head().http_1_0);
}

TEST(RequestParserTest, ABodyEndsWhereItsLengthSays) {
  size_t used = 0;
  const std::string request = Post("Content-Length: 5\r\n", "hello");
  const RequestParser parser = Parse(request + "GET", std::string::npos, {}, &used);
  EXPECT_EQ(parser.state(), State::kDone);
  EXPECT_EQ(parser.body(), "hello");
  EXPECT_EQ(used, request.size());
  EXPECT_EQ(Parse(Post("Content-Length: 2, 2\r\nContent-Length: 2\r\n", "ab")).body(), "ab");
  const RequestParser cut = Parse(Post("Content-Length: 5\r\n", "hel"));
  EXPECT_EQ(cut.state(), State::kBody);
  EXPECT_EQ(cut.Missing(), "3 of 5 bytes came");
}

TEST(RequestParserTest, ChunksMakeABodyWhateverTheirExtensions) {
  for (const char* chunks :
       {"5\r\nhello\r\n0\r\n\r\n", "5;a=b\r\nhello\r\n0;last\r\n\r\n",
        "2 \r\nhe\r\n3\t;q=\"x\"\r\nllo\r\n000\r\nX-Sum: 1\r\n\r\n", "005\r\nhello\r\n0\r\n\r\n"}) {
    const RequestParser parser = Parse(Post("Transfer-Encoding: Chunked\r\n", chunks));
    EXPECT_EQ(parser.state(), State::kDone) << chunks << parser.failure().message;
    EXPECT_EQ(parser.body(), "hello");
  }
}

// Wherever a request is cut, it is the same one, and every proper beginning of it is unfinished.
TEST(RequestParserTest, PiecesMakeNoDifference) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 300; ++round) {
    std::string body(random() % 40, '\0');
    for (char& c : body) c = static_cast<char>(random());
    const bool chunked = random() % 2 == 0;
    std::string sent;
    if (chunked) {
      for (size_t at = 0; at < body.size();) {
        const size_t size = std::min<size_t>(body.size() - at, 1 + random() % 7);
        sent += std::to_string(size) + (random() % 2 == 0 ? ";e=1\r\n" : "\r\n");
        sent += body.substr(at, size) + "\r\n";
        at += size;
      }
      sent += "0\r\n\r\n";
    } else {
      sent = body;
    }
    const std::string request =
        Post(chunked ? "Transfer-Encoding: chunked\r\n"
                     : "Content-Length: " + std::to_string(body.size()) + "\r\n",
             sent);
    for (const size_t piece : {size_t{1}, size_t{2}, size_t{3}, std::string::npos}) {
      const RequestParser parser = Parse(request, piece);
      ASSERT_EQ(parser.state(), State::kDone) << parser.failure().message;
      EXPECT_EQ(parser.body(), body);
    }
    const RequestParser cut = Parse(request.substr(0, random() % request.size()));
    EXPECT_TRUE(cut.state() == State::kHead || cut.state() == State::kBody) << request;
  }
}

TEST(RequestParserTest, WhatIsNoRequestIsRefused) {
  const std::string start = "GET / HTTP/1.1\r\nHost: x\r\n";
  for (const auto& [request, status] :
       std::map<std::string, int>{{"hello\r\n", 400},
                                  {"GET /\r\n", 400},
                                  {"GET / HTTP/2.0\r\n", 505},
                                  {"GET / HTTP/11\r\n", 400},
                                  {"GET  / HTTP/1.1\r\n", 400},
                                  {"GET /a b HTTP/1.1\r\n", 400},
                                  {"G@T / HTTP/1.1\r\n", 400},
                                  {"GET x HTTP/1.1\r\n", 400},
                                  {"GET * HTTP/1.1\r\n", 400},
                                  {"GET /%4 HTTP/1.1\r\n", 400},
                                  {"GET /%00 HTTP/1.1\r\n", 400},
                                  {"GET / HTTP/1.1\r\n\r\n", 400},
                                  {start + "Host: y\r\n\r\n", 400},
                                  {start + "X : y\r\n", 400},
                                  {start + "X: a\r\n b\r\n", 400},
                                  {start + "X: a\rb\r\n", 400},
                                  {start + std::string("X: a\0b\r\n", 8), 400},
                                  {start + "nothing\r\n", 400},
                                  {start + ": y\r\n", 400},
                                  {start + "Expect: 200-maybe\r\n\r\n", 417}}) {
    EXPECT_EQ(StatusOf(request), status) << request;
  }
}

TEST(RequestParserTest, BodiesWhoseEndIsNotCertainAreRefused) {
  for (const auto& [headers, status] :
       std::map<std::string, int>{{"Content-Length: x\r\n", 400},
                                  {"Content-Length: -1\r\n", 400},
                                  {"Content-Length: 1, 2\r\n", 400},
                                  {"Content-Length: 1\r\nContent-Length: 2\r\n", 400},
                                  {"Content-Length:\r\n", 400},
                                  {"Content-Length: 99999999999999999999999\r\n", 413},
                                  {"Content-Length: 5000000\r\n", 413},
                                  {"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", 400},
                                  {"Transfer-Encoding: gzip\r\n", 400},
                                  {"Transfer-Encoding: gzip, chunked\r\n", 501},
                                  {"Transfer-Encoding: chunked, chunked\r\n", 400},
                                  {"Transfer-Encoding: chunked, gzip\r\n", 400}}) {
    EXPECT_EQ(StatusOf(Post(headers, "")), status) << headers;
  }
  EXPECT_EQ(StatusOf("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
  for (const auto& [chunks, status] :
       std::map<std::string, int>{{"x\r\n", 400},
                                  {"\r\n", 400},
                                  {"-1\r\n", 400},
                                  {"0x5\r\n", 400},
                                  {"5 5\r\n", 400},
                                  {"5\nhello\r\n", 400},
                                  {"5\r\nhellos\r\n", 400},
                                  {"5\r\nhello\n", 400},
                                  {"500000\r\n", 413},
                                  {"fffffffffffffffff\r\n", 413},
                                  {"1;" + std::string(5000, 'e'), 400}}) {
    EXPECT_EQ(StatusOf(Post("Transfer-Encoding: chunked\r\n", chunks)), status) << chunks;
  }
}

TEST(RequestParserTest, EverythingIsBounded) {
  EXPECT_EQ(StatusOf("GET /" + std::string(40000, 'x')), 431);
  std::string many = "GET / HTTP/1.1\r\n";
  while (many.size() < 40000) many += "X: y\r\n";
  EXPECT_EQ(StatusOf(many), 431);
  EXPECT_EQ(StatusOf(std::string(40000, '\n')), 431);
  std::string extensions;
  while (extensions.size() < 60000) extensions += "1;" + std::string(1000, 'e') + "\r\nx\r\n";
  EXPECT_EQ(StatusOf(Post("Transfer-Encoding: chunked\r\n", extensions)), 400);
  std::string trailers = "0\r\n";
  while (trailers.size() < 40000) trailers += "X: y\r\n";
  EXPECT_EQ(StatusOf(Post("Transfer-Encoding: chunked\r\n", trailers)), 400);
  EXPECT_EQ(
      StatusOf(Post("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n3\r\n"), {.body_bytes = 5}),
      413);
}

TEST(RequestParserTest, AClientMayWaitBeforeItSendsItsBody) {
  RequestParser parser{Limits()};
  const std::string head = Post("Content-Length: 2\r\nExpect: 100-Continue\r\n", "");
  EXPECT_EQ(parser.Feed(head), head.size());
  EXPECT_EQ(parser.state(), State::kBody);
  EXPECT_TRUE(parser.head().expects_continue);
  EXPECT_FALSE(Parse("POST / HTTP/1.0\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
                   .head()
                   .expects_continue)
      << "who speaks HTTP/1.0 does not know 100";
}

TEST(RequestParserTest, AClientSaysWhetherItGoesOn) {
  for (const auto& [headers, closes] :
       std::map<std::string, bool>{{"", false},
                                   {"Connection: keep-alive\r\n", false},
                                   {"Connection: close\r\n", true},
                                   {"Connection: TE, CLOSE\r\n", true},
                                   {"Connection: TE\r\nConnection: close\r\n", true},
                                   {"Connection: closed\r\n", false}}) {
    EXPECT_EQ(Parse("GET / HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n").head().closes, closes)
        << headers;
  }
  EXPECT_TRUE(Parse("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").head().closes);
}

}  // namespace
}  // namespace withy::http
