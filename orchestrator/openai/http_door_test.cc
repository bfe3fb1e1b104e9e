// The HTTP door over real sockets, with scripted processes behind the orchestrator.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "orchestrator/testing.h"

namespace withy::orchestrator {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

v1::Config WithHttp(uint32_t queue_limit = 8) {
  v1::Config config;
  config.mutable_orchestrator()->set_http_listen("127.0.0.1:0");
  config.mutable_orchestrator()->set_queue_limit(queue_limit);
  return config;
}

struct Client {
  explicit Client(const Board& board) : fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const std::string listens = board.http_address();
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(listens.substr(listens.rfind(':') + 1), &port)) << listens;
    address.sin_port = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  void Send(std::string_view bytes) const {
    // An answer may come, and the connection close, before all has been sent.
    (void)!send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Until the server closes, or `until` has come.
  std::string Read(const std::string& until = "") const {
    std::string all;
    char piece[4096];
    while (until.empty() || !absl::StrContains(all, until)) {
      const ssize_t got = recv(fd.get(), piece, sizeof piece, 0);
      if (got <= 0) break;
      all.append(piece, static_cast<size_t>(got));
    }
    return all;
  }
  UniqueFd fd;
};

std::string Post(const std::string& path, const std::string& body,
                 const std::string& headers = "Authorization: Bearer good\r\n",
                 const std::string& connection = "Connection: close\r\n") {
  return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: x\r\n", headers, connection,
                      "Content-Length: ", body.size(), "\r\n\r\n", body);
}

// On a connection of its own.
std::string Exchange(const Board& board, std::string request) {
  const Client client(board);
  if (!absl::StrContains(request, "Connection: ")) {
    request.insert(request.find("\r\n") + 2, "Connection: close\r\n");
  }
  client.Send(request);
  return client.Read();
}

json BodyOf(const std::string& response) {
  const size_t at = response.find("\r\n\r\n");
  return at == std::string::npos ? json() : json::parse(response.substr(at + 4), nullptr, false);
}

// For tests that leave it as they found it.
class HttpDoorTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { board_ = std::make_unique<Board>(WithHttp()); }
  static void TearDownTestSuite() { board_.reset(); }
  static const Board& board() { return *board_; }
  static size_t runs() { return board_->worker.runs().size(); }
  static v1::RunRequest last_run() { return board_->worker.runs().back(); }

 private:
  static std::unique_ptr<Board> board_;
};

std::unique_ptr<Board> HttpDoorTest::board_;

constexpr char kHello[] = R"({"messages": [{"role": "user", "content": "hello"}]})";
constexpr char kChatPath[] = "/v1/chat/completions";

TEST_F(HttpDoorTest, AChatIsAnsweredWhole) {
  const std::string response = Exchange(board(), Post(kChatPath, kHello));
  EXPECT_THAT(response, StartsWith("HTTP/1.1 200 OK"));
  const json body = BodyOf(response);
  EXPECT_EQ(body["choices"][0]["message"]["content"], "abc");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_THAT(response, HasSubstr(absl::StrCat("x-withy-call-id: ",
                                               body["withy"]["call_id"].get<std::string>())));
}

TEST_F(HttpDoorTest, AToolTurnContinuesItsConversation) {
  json messages = {{{"role", "system"}, {"content", std::string(1100, 'x')}},
                   {{"role", "user"}, {"content", "call"}}};
  const json tools = {{{"type", "function"}, {"function", {{"name", "look"}}}}};
  const json first = BodyOf(
      Exchange(board(), Post(kChatPath, json{{"messages", messages}, {"tools", tools}}.dump())));
  const json choice = first["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls") << first;
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["message"]["tool_calls"][0]["id"], "i1");
  EXPECT_THAT(last_run().prompt().messages().tools_json(), HasSubstr("look"));

  messages.push_back(choice["message"]);
  // Written anew by the client.
  messages.back()["tool_calls"][0]["function"]["arguments"] = R"({"at":1})";
  messages.push_back({{"role", "tool"}, {"tool_call_id", "i1"}, {"content", "a cat"}});
  const json second =
      BodyOf(Exchange(board(), Post(kChatPath, json{{"messages", messages}}.dump())));
  EXPECT_EQ(second["choices"][0]["message"]["content"], "abc") << second;
  const v1::Messages sent = last_run().prompt().messages();
  EXPECT_FALSE(last_run().context_id().empty());
  ASSERT_EQ(sent.messages_size(), 1) << "the rest is in the context";
  EXPECT_EQ(sent.messages(0).role(), "tool");
  EXPECT_EQ(sent.messages(0).tool_call_id(), "i1");
  EXPECT_EQ(sent.tools_json(), "[]") << "this call gives none";

  const json wrong = BodyOf(Exchange(
      board(),
      Post(kChatPath, R"({"messages": [{"role": "user", "content": "x"}], "tools": [5]})")));
  EXPECT_THAT(wrong["error"]["message"].get<std::string>(), HasSubstr("tools[0]"));
}

TEST_F(HttpDoorTest, SeveralAnswersAreChoicesOfOneDocument) {
  const json body = BodyOf(Exchange(
      board(), Post(kChatPath,
                    R"({"n": 2, "seed": 5, "messages": [{"role": "user", "content": "hello"}]})")));
  ASSERT_EQ(body["choices"].size(), 2u) << body;
  EXPECT_EQ(body["choices"][1]["index"], 1);
  EXPECT_EQ(body["choices"][1]["message"]["content"], "abc");
  EXPECT_EQ(last_run().sampling().seed(), 6u);
  const std::string events = Exchange(
      board(), Post("/v1/completions", R"({"prompt": ["hello", "hello"], "stream": true})"));
  EXPECT_THAT(events, HasSubstr("\"index\":1"));
  const size_t done = events.find("data: [DONE]");
  ASSERT_NE(done, std::string::npos);
  EXPECT_EQ(events.find("data: [DONE]", done + 1), std::string::npos);
}

TEST_F(HttpDoorTest, TheMessagesApiIsServed) {
  constexpr char kAsk[] =
      R"({"max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]})";
  const std::string key = "x-api-key: good\r\nanthropic-version: 2023-06-01\r\n";
  const json body = BodyOf(Exchange(board(), Post("/v1/messages", kAsk, key)));
  EXPECT_EQ(body["type"], "message") << body;
  EXPECT_EQ(body["content"][0]["text"], "abc");
  std::string streaming = kAsk;
  streaming.insert(1, R"("stream": true, )");
  const std::string events = Exchange(board(), Post("/v1/messages", streaming, key));
  EXPECT_THAT(events, HasSubstr("event: message_start\ndata: {\"type\":\"message_start\""));
  EXPECT_THAT(events, HasSubstr("event: message_stop\n"));
  const json counted = BodyOf(Exchange(board(), Post("/v1/messages/count_tokens", kAsk, key)));
  EXPECT_GT(counted["input_tokens"], 0) << counted;
  const json refused = BodyOf(Exchange(board(), Post("/v1/messages", kAsk, "x-api-key: bad\r\n")));
  EXPECT_EQ(refused["error"]["type"], "authentication_error") << refused;
}

TEST_F(HttpDoorTest, TheResponsesApiIsServed) {
  const json body =
      BodyOf(Exchange(board(), Post("/v1/responses", R"({"input": "hello", "store": true})")));
  EXPECT_EQ(body["object"], "response") << body;
  EXPECT_EQ(body["output"][0]["content"][0]["text"], "abc");
  const std::string events =
      Exchange(board(), Post("/v1/responses", R"({"input": "hello", "stream": true})"));
  EXPECT_THAT(events, HasSubstr("event: response.created\n"));
  EXPECT_THAT(events, HasSubstr("event: response.completed\n"));
  const json refused = BodyOf(Exchange(
      board(), Post("/v1/responses", R"({"input": "x", "previous_response_id": "resp_1"})")));
  EXPECT_EQ(refused["error"]["param"], "previous_response_id") << refused;
}

TEST_F(HttpDoorTest, ARequestsNameIsReturned) {
  EXPECT_THAT(Exchange(board(), Post(kChatPath, kHello,
                                     "Authorization: Bearer good\r\nX-Request-Id: mine-7\r\n")),
              HasSubstr("x-request-id: mine-7\r\n"));
  EXPECT_THAT(Exchange(board(), Post(kChatPath, "{")), HasSubstr("x-request-id: req_"));
}

TEST_F(HttpDoorTest, AStreamIsEventsInChunks) {
  const std::string response =
      Exchange(board(), Post("/v1/completions", R"({"prompt": "hello", "stream": true})"));
  EXPECT_THAT(response, HasSubstr("Content-Type: text/event-stream"));
  std::string text;
  for (const absl::string_view line : absl::StrSplit(response, '\n')) {
    if (!absl::StartsWith(line, "data: {")) continue;
    text += json::parse(std::string(line.substr(6)))["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, "abc");
  EXPECT_THAT(response, HasSubstr("data: [DONE]\n\n"));
  EXPECT_TRUE(absl::EndsWith(response, "\r\n0\r\n\r\n"));
}

TEST_F(HttpDoorTest, ACallThatBreaksOffSaysSoInTheStream) {
  const std::string response =
      Exchange(board(), Post("/v1/completions", R"({"prompt": "die late", "stream": true})"));
  EXPECT_THAT(response, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(response, HasSubstr("\"type\":\"server_error\""));
  EXPECT_THAT(response, Not(HasSubstr("[DONE]")));
}

TEST_F(HttpDoorTest, ModelsAreListed) {
  const std::string get =
      "GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\n\r\n";
  const json list = BodyOf(Exchange(board(), get));
  ASSERT_FALSE(list["data"].empty());
  const std::string name = list["data"][0]["id"];
  const auto one = [&](const std::string& model) {
    return Exchange(board(),
                    absl::StrCat("GET /v1/models/", model,
                                 " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\n\r\n"));
  };
  EXPECT_EQ(BodyOf(one(name))["id"], name);
  EXPECT_THAT(one("gpt-x"), StartsWith("HTTP/1.1 404"));
}

TEST_F(HttpDoorTest, NobodyIsServedWithoutAToken) {
  const size_t before = runs();
  for (const std::string headers :
       {"", "Authorization: Bearer bad\r\n", "Authorization: good\r\n"}) {
    const std::string response = Exchange(board(), Post(kChatPath, kHello, headers));
    EXPECT_THAT(response, StartsWith("HTTP/1.1 401")) << headers;
    EXPECT_EQ(BodyOf(response)["error"]["code"], "invalid_api_key");
  }
  EXPECT_THAT(Exchange(board(), "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"),
              StartsWith("HTTP/1.1 401"));
  EXPECT_EQ(runs(), before);
}

TEST_F(HttpDoorTest, WrongRequestsGetAnErrorThatNamesThem) {
  const auto status = [&](const std::string& request, const std::string& named) {
    const std::string response = Exchange(board(), request);
    EXPECT_THAT(BodyOf(response)["error"]["message"].get<std::string>(), HasSubstr(named))
        << response;
    return response.substr(9, 3);
  };
  EXPECT_EQ(status(Post(kChatPath, "{"), "JSON"), "400");
  EXPECT_EQ(status(Post(kChatPath, R"({"messages": 5})"), "messages"), "400");
  EXPECT_EQ(
      status(Post(kChatPath, R"({"model": "x", "messages": [{"role": "user", "content": "hi"}]})"),
             "\"x\""),
      "404");
  EXPECT_EQ(status(Post("/v1/images", "{}"), "/v1/images is not served"), "404");
  EXPECT_EQ(status("GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n", "POST"), "405");
}

TEST_F(HttpDoorTest, TextsAndTokensGetVectors) {
  const auto ask = [&](const std::string& body) {
    return BodyOf(Exchange(board(), Post("/v1/embeddings", body)));
  };
  const json one = ask(R"({"input": "hello", "model": "fake"})");
  EXPECT_EQ(one["object"], "list") << one;
  EXPECT_EQ(one["model"], "fake");
  ASSERT_EQ(one["data"].size(), 1u);
  EXPECT_EQ(one["data"][0]["object"], "embedding");
  EXPECT_EQ(one["data"][0]["embedding"], json({5.0, 0.25, -0.5, 0.0}));
  EXPECT_EQ(one["usage"], json({{"prompt_tokens", 5}, {"total_tokens", 5}}));
  const json several = ask(R"({"input": [[1, 2], [3]], "dimensions": 4})");
  ASSERT_EQ(several["data"].size(), 2u) << several;
  EXPECT_EQ(several["data"][1]["index"], 1);
  EXPECT_EQ(several["data"][1]["embedding"][0], 1.0);
  const json encoded = ask(R"({"input": "hello", "encoding_format": "base64"})");
  EXPECT_EQ(encoded["data"][0]["embedding"], "AACgQAAAgD4AAAC/AAAAAA==") << encoded;
}

TEST_F(HttpDoorTest, WhatGetsNoVectorIsNamed) {
  const auto refusal = [&](const std::string& body) {
    return BodyOf(Exchange(board(), Post("/v1/embeddings", body)))["error"];
  };
  EXPECT_EQ(refusal("{}")["param"], "input");
  EXPECT_EQ(refusal(R"({"input": "x", "model": "gpt"})")["code"], "model_not_found");
  const json shorter = refusal(R"({"input": "x", "dimensions": 2})");
  EXPECT_EQ(shorter["param"], "dimensions");
  EXPECT_THAT(shorter["message"].get<std::string>(), HasSubstr("have 4 numbers"));
  const json lengthy = refusal(json{{"input", std::string((1 << 20) + 1, 'x')}}.dump());
  EXPECT_EQ(lengthy["code"], "context_length_exceeded") << lengthy;
  EXPECT_EQ(lengthy["param"], "input[0]");
  EXPECT_THAT(Exchange(board(), Post("/v1/embeddings", R"({"input": "x"})",
                                     "Authorization: Bearer bad\r\n")),
              StartsWith("HTTP/1.1 401"));
}

TEST(HttpDoorBoardTest, MetricsAreTheAgents) {
  const auto get = [](const Board& board, const std::string& path, const std::string& token) {
    return Exchange(board, absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\n",
                                        "Authorization: Bearer ", token, "\r\n\r\n"));
  };
  {
    const Board alone(WithHttp());
    const std::string away = get(alone, "/metrics", "good");
    EXPECT_THAT(away, StartsWith("HTTP/1.1 503"));
    EXPECT_THAT(away, HasSubstr("profiler_agent"));
  }
  Board board(WithHttp());
  board.StartProfiler();
  const std::string there = get(board, "/metrics", "good");
  EXPECT_THAT(there, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(there, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(there, HasSubstr("\r\n\r\nwithy_whole 1\n"));
  EXPECT_THAT(get(board, "/metrics/lean", "good"), HasSubstr("withy_lean 1"));
  EXPECT_THAT(get(board, "/metrics", "bad"), StartsWith("HTTP/1.1 401"));
}

TEST_F(HttpDoorTest, AConnectionTakesOneRequestAfterTheOther) {
  const Client client(board());
  for (const std::string stream : {"false", "true", "false"}) {
    client.Send(Post("/v1/completions",
                     absl::StrCat(R"({"prompt": "hello", "stream": )", stream, "}"),
                     "Authorization: Bearer good\r\n", /*connection=*/""));
    const std::string response = client.Read(stream == "true" ? "\r\n0\r\n\r\n" : "\"usage\"");
    EXPECT_THAT(response, StartsWith("HTTP/1.1 200")) << stream;
    EXPECT_THAT(response, Not(HasSubstr("Connection: close"))) << stream;
    EXPECT_THAT(response, HasSubstr("Keep-Alive: timeout=")) << stream;
    if (stream == "false") {
      const size_t head = response.find("\r\n\r\n");
      const size_t at = response.find("Content-Length: ") + strlen("Content-Length: ");
      size_t length = 0;
      ASSERT_TRUE(absl::SimpleAtoi(response.substr(at, response.find("\r\n", at) - at), &length));
      for (size_t have = response.size() - head - 4; have < length;) {
        char rest[4096];
        const ssize_t got = recv(client.fd.get(), rest, std::min(sizeof rest, length - have), 0);
        ASSERT_GT(got, 0);
        have += static_cast<size_t>(got);
      }
    }
  }
  // An error that has read the whole request keeps it open, too; who asks for it is closed.
  client.Send(Post(kChatPath, "{", "Authorization: Bearer good\r\n", /*connection=*/""));
  EXPECT_THAT(client.Read("\"code\""), StartsWith("HTTP/1.1 400"));
}

TEST_F(HttpDoorTest, LargeBodiesAreRefusedBeforeTheyAreRead) {
  const Client client(board());
  client.Send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\n"
      "Content-Length: 104857600\r\n\r\n{");
  EXPECT_THAT(client.Read(), StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(Exchange(board(), Post(kChatPath, kHello)), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpDoorTest, ABodyThatIsNotWholeIsNoRequest) {
  const size_t before = runs();
  for (const std::string headers : {"Content-Length: 200\r\n", "Transfer-Encoding: chunked\r\n"}) {
    const Client client(board());
    client.Send(absl::StrCat("POST ", kChatPath, " HTTP/1.1\r\nHost: x\r\n", headers,
                             "Authorization: Bearer good\r\n\r\n",
                             headers[0] == 'T' ? "35\r\n" : "", kHello));
    shutdown(client.fd.get(), SHUT_WR);
    EXPECT_THAT(client.Read(), StartsWith("HTTP/1.1 400"));
  }
  EXPECT_EQ(runs(), before);
}

TEST_F(HttpDoorTest, AClientThatWaitsIsJudgedByItsHeaders) {
  const auto head = [&](const std::string& further) {
    return absl::StrCat("POST ", kChatPath, " HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n",
                        "Connection: close\r\nContent-Length: ", strlen(kHello), "\r\n", further,
                        "\r\n");
  };
  const Client client(board());
  client.Send(head("Authorization: Bearer good\r\n"));
  EXPECT_EQ(client.Read("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send(kHello);
  EXPECT_THAT(client.Read(), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Exchange(board(), head("")), StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(Exchange(board(), head("Authorization: Bearer good\r\nx-slo-strict: maybe\r\n")),
              AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("\"param\":\"x-slo-strict\"")));
}

TEST_F(HttpDoorTest, HeadIsGetWithoutABody) {
  const std::string rest = " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\n\r\n";
  for (const std::string path : {"/health", "/v1/models", "/v1/models/target", "/v1/models/none"}) {
    const std::string got = Exchange(board(), "GET " + path + rest);
    const std::string head = Exchange(board(), "HEAD " + path + rest);
    EXPECT_EQ(head.substr(0, 12), got.substr(0, 12));
    EXPECT_TRUE(absl::EndsWith(head, "\r\n\r\n")) << head;
    EXPECT_THAT(head, HasSubstr("Content-Length: "));
  }
  EXPECT_THAT(Exchange(board(), absl::StrCat("HEAD ", kChatPath, rest)),
              AllOf(StartsWith("HTTP/1.1 405"), HasSubstr("Allow: POST, OPTIONS\r\n")));
}

TEST_F(HttpDoorTest, AModelIsFoundByEveryNameThatCallsMayGive) {
  const auto look = [&](const std::string& name) {
    return Exchange(board(), absl::StrCat("GET /v1/models/", name, " HTTP/1.1\r\nHost: x\r\n",
                                          "Authorization: Bearer good\r\n\r\n"));
  };
  EXPECT_EQ(BodyOf(look("target"))["id"], "fake");
  EXPECT_EQ(BodyOf(look("f%61ke"))["id"], "fake");
  EXPECT_EQ(BodyOf(look("no%20such"))["error"]["code"], "model_not_found");
}

TEST_F(HttpDoorTest, PagesOfOtherSitesAreNotPermittedUnlessTheyAreNamed) {
  const std::string origin = "Origin: http://page\r\n";
  const std::string preflight = absl::StrCat("OPTIONS ", kChatPath, " HTTP/1.1\r\nHost: x\r\n",
                                             origin, "Access-Control-Request-Method: POST\r\n\r\n");
  const std::string token = "Authorization: Bearer good\r\n";
  const auto all = [&](const Board& asked) {
    return std::vector<std::string>{
        Exchange(asked, preflight),
        Exchange(asked, Post(kChatPath, kHello, origin + token)),
        Exchange(asked, Post(kChatPath, "{", origin + token)),
        Exchange(asked, Post(kChatPath, kHello, origin)),
        Exchange(asked, Post(kChatPath, kHello, origin + "Expect: x\r\n")),
        Exchange(asked, Post("/v1/completions", R"({"prompt": "hello", "stream": true})",
                             origin + token))};
  };
  for (const std::string& response : all(board())) {
    EXPECT_THAT(response, Not(HasSubstr("Access-Control"))) << response;
  }
  v1::Config config = WithHttp();
  config.mutable_orchestrator()->add_http_web_origins("http://page");
  const Board open(config);
  for (const std::string& response : all(open)) {
    EXPECT_THAT(response, HasSubstr("Access-Control-Allow-Origin: http://page\r\n")) << response;
    EXPECT_THAT(response, HasSubstr("Vary: Origin\r\n"));
  }
}

TEST_F(HttpDoorTest, ALimitAboveTheWindowMeansTheWindow) {
  for (const char* field : {"max_tokens", "max_completion_tokens"}) {
    json body = json::parse(kHello);
    body[field] = 1'000'000'000;
    EXPECT_THAT(Exchange(board(), Post(kChatPath, body.dump())), StartsWith("HTTP/1.1 200"));
    EXPECT_EQ(last_run().limits().max_tokens(), 32'768u);
  }
}

TEST_F(HttpDoorTest, StreamsToOldClientsHaveNoChunks) {
  const std::string body = R"({"prompt": "hello", "stream": true})";
  const std::string response =
      Exchange(board(), absl::StrCat("POST /v1/completions HTTP/1.0\r\nAuthorization: Bearer "
                                     "good\r\nContent-Length: ",
                                     body.size(), "\r\n\r\n", body));
  EXPECT_THAT(response, Not(HasSubstr("chunked")));
  EXPECT_TRUE(absl::EndsWith(response, "data: [DONE]\n\n")) << response;
}

TEST_F(HttpDoorTest, HeadersWithoutEndAreRefused) {
  const Client client(board());
  client.Send("GET / HTTP/1.1\r\nX: ");
  const std::string part(4096, 'x');
  for (int i = 0; i < 64; ++i) client.Send(part);
  EXPECT_THAT(client.Read(), testing::AnyOf(StartsWith("HTTP/1.1 4"), testing::IsEmpty()));
  EXPECT_THAT(Exchange(board(), Post(kChatPath, kHello)), StartsWith("HTTP/1.1 200"));
}

TEST(HttpDoorBoardTest, AFullQueueSaysWhenToTryAgain) {
  Board board(WithHttp(/*queue_limit=*/1));
  const OpenCall held(board, Ask("hold"));
  const std::string response = Exchange(board, Post(kChatPath, kHello));
  EXPECT_THAT(response, StartsWith("HTTP/1.1 429"));
  EXPECT_THAT(response, HasSubstr("Retry-After: "));
  EXPECT_EQ(BodyOf(response)["error"]["type"], "rate_limit_error");
}

TEST(HttpDoorBoardTest, ClosingTheConnectionCancels) {
  for (const bool stream : {false, true}) {
    Board board(WithHttp());
    {
      const Client client(board);
      client.Send(Post("/v1/completions", absl::StrCat(R"({"prompt": "hold", "stream": )",
                                                       stream ? "true}" : "false}")));
      ASSERT_TRUE(board.worker.AwaitRuns(1));
      if (stream) {
        EXPECT_THAT(client.Read("\"text\":\"a\""), HasSubstr("\"text\":\"a\""));
      }
    }
    EXPECT_TRUE(board.worker.AwaitCancelled(1)) << "stream " << stream;
  }
}

TEST(HttpDoorBoardTest, AnAnswerThatIsOnItsWayIsFinishedByADrain) {
  Board board(WithHttp());
  const Client client(board);
  client.Send(Post("/v1/completions", R"({"prompt": "hold"})"));
  ASSERT_TRUE(board.worker.AwaitRuns(1));
  std::thread drain([&] { board.Drain(); });
  board.worker.Release();
  EXPECT_EQ(BodyOf(client.Read())["choices"][0]["text"], "abc");
  drain.join();
}

// A short chat is stateless; a long one has a context, which the next turn continues.
TEST_F(HttpDoorTest, AConversationContinuesInItsContext) {
  const std::string rules(2000, 'r');
  json messages = {{{"role", "system"}, {"content", rules}},
                   {{"role", "user"}, {"content", "one"}}};
  const auto ask = [&] {
    const json body =
        BodyOf(Exchange(board(), Post(kChatPath, json{{"messages", messages}}.dump())));
    messages.push_back(body["choices"][0]["message"]);
    return board().worker.runs().back();
  };
  v1::RunRequest run = ask();
  EXPECT_EQ(run.context_id(), "ctx_of_app_1");
  ASSERT_EQ(run.prompt().messages().messages_size(), 1) << "the system prompt is the context's";
  EXPECT_EQ(run.prompt().messages().messages(0).content(), "one");
  messages.push_back({{"role", "user"}, {"content", "two"}});
  run = ask();
  EXPECT_EQ(run.context_id(), "ctx_of_app_1");
  ASSERT_EQ(run.prompt().messages().messages_size(), 1);
  EXPECT_EQ(run.prompt().messages().messages(0).content(), "two");
  // Another answer than the one that was given: another conversation.
  messages[2]["content"] = "edited";
  messages.push_back({{"role", "user"}, {"content", "three"}});
  run = ask();
  EXPECT_EQ(run.prompt().messages().messages_size(), 5);

  EXPECT_THAT(Exchange(board(), Post(kChatPath, kHello)), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(board().worker.runs().back().context_id(), "");
}

// What the service keeps is marked as its own; what an app makes is not, whatever its title.
TEST(HttpDoorBoardTest, OnlyWhatTheServiceKeepsIsMarked) {
  Board board(WithHttp());
  const json body = {{"messages", {{{"role", "user"}, {"content", std::string(2000, 'u')}}}}};
  EXPECT_THAT(Exchange(board, Post(kChatPath, body.dump())), StartsWith("HTTP/1.1 200"));
  v1::CreateContextRequest create;
  create.set_title("openai");
  grpc::ClientContext context;
  Authorise(&context);
  v1::CreateContextResponse response;
  ASSERT_TRUE(board.stub().CreateContext(&context, create, &response).ok());
  const auto created = board.store.created();
  ASSERT_EQ(created.size(), 2u);
  EXPECT_TRUE(created[0].kept_by_service());
  EXPECT_FALSE(created[1].kept_by_service());
}

// As evaluation harnesses ask: the prompt's tokens with their log-probabilities, and one token or
// none.
TEST_F(HttpDoorTest, APromptIsEchoedWithItsLogprobs) {
  const auto ask = [&](const std::string& further) {
    return BodyOf(Exchange(
        board(), Post("/v1/completions",
                      R"({"prompt": "h\u00e9y", "echo": true, "logprobs": 1)" + further + "}")));
  };
  const size_t before = runs();
  const json alone = ask(R"(, "max_tokens": 0)");
  EXPECT_EQ(runs(), before) << "nothing is generated";
  EXPECT_EQ(alone["choices"][0]["text"], "h\u00e9y") << alone;
  EXPECT_EQ(alone["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(alone["usage"]["prompt_tokens"], 4);
  const json& scored = alone["choices"][0]["logprobs"];
  EXPECT_EQ(scored["tokens"], json({"h", "bytes:\\xc3", "bytes:\\xa9", "y"}));
  EXPECT_EQ(scored["token_logprobs"], json({nullptr, -1, -1, -1}));
  EXPECT_EQ(scored["text_offset"], json({0, 1, 1, 2})) << "characters";
  EXPECT_EQ(scored["top_logprobs"][0], nullptr);
  EXPECT_EQ(scored["top_logprobs"][3], json({{"e", -0.5}, {"y", -1}}));

  const json more = ask("");
  EXPECT_EQ(runs(), before + 1);
  EXPECT_EQ(more["choices"][0]["text"], "h\u00e9yabc");
  const json& whole = more["choices"][0]["logprobs"];
  EXPECT_EQ(whole["tokens"].size(), whole["text_offset"].size());
  EXPECT_EQ(whole["tokens"][0], "h");
  const std::string plain = Exchange(
      board(), Post("/v1/completions", R"({"prompt": "hi", "echo": true, "max_tokens": 0})"));
  EXPECT_EQ(BodyOf(plain)["choices"][0]["text"], "hi");
  EXPECT_EQ(runs(), before + 1);
  EXPECT_THAT(Exchange(board(), Post("/v1/completions", R"({"prompt": [1, 2]})")),
              HasSubstr("send the text"));
}

TEST(HttpDoorBoardTest, WithoutRoomForContextsChatsAreStateless) {
  Board board(WithHttp());
  board.store.RefuseContexts();
  const json body = {{"messages", {{{"role", "user"}, {"content", std::string(2000, 'u')}}}}};
  EXPECT_THAT(Exchange(board, Post(kChatPath, body.dump())), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(board.worker.runs().back().context_id(), "");
}

TEST_F(HttpDoorTest, AnAddressThatIsTakenIsNamed) {
  v1::Config config;
  config.mutable_orchestrator()->set_http_listen(
      std::string(absl::StripPrefix(board().http_address(), "http://")));
  const absl::Status status = board().StartAnother(config);
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("orchestrator.http_listen"));
}

TEST(HttpDoorBoardTest, ClosingTheConnectionEndsItsVectors) {
  Board board(WithHttp());
  {
    const Client client(board);
    client.Send(Post("/v1/embeddings", R"({"input": ["first", "hold"]})"));
    ASSERT_TRUE(board.worker.AwaitEmbeds(1));
  }
  EXPECT_TRUE(board.worker.AwaitCancelled(1));
}

TEST(HttpRefusalsTest, WhatIsRefusedBeforeItIsACallIsToldOnce) {
  Board board(WithHttp(/*queue_limit=*/1));
  board.StartProfiler();
  const auto expect = [&](const std::string& method, const std::string& reason) {
    const v1::CallReport report = board.profiler.Next();
    EXPECT_EQ(report.method(), method);
    EXPECT_EQ(report.reason(), reason);
    EXPECT_EQ(report.app(), "one");
    EXPECT_EQ(report.refusals(), 1u);
  };
  Exchange(board, Post(kChatPath, "{"));
  expect("", "INVALID_REQUEST");
  Exchange(board, Post("/v1/messages/count_tokens", "{"));
  expect("CountTokens", "INVALID_REQUEST");
  for (const char* body : {"{", R"({"input": "x", "dimensions": 2})"}) {
    Exchange(board, Post("/v1/embeddings", body));
    expect("Embed", "INVALID_REQUEST");
  }
  Exchange(board, Post("/v1/completions", R"({"prompt": "", "echo": true})"));
  expect("", "INVALID_REQUEST");
  Exchange(board, Post(kChatPath,
                       R"({"model": "nobody", "messages": [{"role": "user", "content": "x"}]})"));
  expect("", "NOT_FOUND");
  const Client held(board);
  held.Send(Post("/v1/completions", R"({"prompt": "hold", "stream": true})"));
  held.Read("data:");
  Exchange(board, Post(kChatPath, kHello));
  expect("", "QUEUE_FULL");
  board.worker.Release();
  held.Read();
  EXPECT_EQ(board.profiler.Next().status_code(), 0u) << "of the one that was held";
}

TEST(HttpRefusalsTest, APromptThatIsScoredFirstIsToldOnce) {
  v1::Config config = WithHttp();
  v1::AppBudget& budget = *config.mutable_orchestrator()->add_app_budgets();
  budget.set_app("one");
  budget.set_tokens_per_day(1);
  Board board(config);
  board.StartProfiler();
  Exchange(board, Post(kChatPath, kHello));
  EXPECT_EQ(board.profiler.Next().status_code(), 0u) << "the call that uses the budget up";
  EXPECT_THAT(Exchange(board, Post("/v1/completions",
                                   R"({"prompt": "hello", "echo": true, "logprobs": 1})")),
              HasSubstr("tokens_per_day"));
  EXPECT_EQ(board.profiler.Next().method(), "Score");
  Exchange(board, Post("/v1/completions", R"({"prompt": "hello", "echo": true, "max_tokens": 0})"));
  EXPECT_EQ(board.profiler.Next().method(), "CountTokens");
  Exchange(board, Post(kChatPath, "{"));
  EXPECT_EQ(board.profiler.Next().reason(), "INVALID_REQUEST") << "nothing came between";
}

}  // namespace
}  // namespace withy::orchestrator
