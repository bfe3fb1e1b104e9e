#include "bench/quality/real_door.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <sys/socket.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "bench/service/own_service.h"

namespace withy::bench {
namespace {

constexpr absl::Duration kDoorCall = absl::Minutes(2);
constexpr int kDoorTokens = 2;

// A TCP port of this machine that is free now; 0: there is none.
int FreeTcpPort() {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener.get(), any, sizeof address) != 0) return 0;
  if (getsockname(listener.get(), any, &length) != 0) return 0;
  return ntohs(address.sin_port);
}

// Differs in every round from its beginning, so that no KV of it is there.
std::string PromptOf(int round) {
  return absl::StrCat("Round ", 10'000 + round * 7919 % 10'007,
                      ": name three things that are found in a kitchen, and say in one sentence "
                      "for each of them what it is used for and how it is cleaned afterwards.");
}

double MillisSince(int64_t begun_ns) {
  return static_cast<double>(Clock::Real().SteadyNanos() - begun_ns) / 1e6;
}

absl::StatusOr<double> AskOverGrpc(OwnService& service, int round) {
  WITHY_ASSIGN_OR_RETURN(const ServedAnswer answer,
                         service.Ask(GreedyRequest(PromptOf(round), kDoorTokens)));
  return answer.ttft_ms;
}

struct HttpAnswer {
  int64_t begun_ns = 0;
  double first_ms = 0;
  std::string body;
};

size_t TakeBody(char* data, size_t size, size_t count, void* to) {
  auto& answer = *static_cast<HttpAnswer*>(to);
  answer.body.append(data, size * count);
  // The chunk before the first token has the role alone, with an empty content or none.
  constexpr std::string_view kContent = "\"content\":\"";
  for (size_t at = answer.body.find(kContent); at != std::string::npos && answer.first_ms == 0;
       at = answer.body.find(kContent, at + 1)) {
    const size_t begin = at + kContent.size();
    if (begin < answer.body.size() && answer.body[begin] != '"') {
      answer.first_ms = MillisSince(answer.begun_ns);
    }
  }
  return size * count;
}

absl::StatusOr<double> AskOverHttp(const std::string& address, const std::string& token,
                                   int round) {
  const nlohmann::json body = {{"model", "target"},
                               {"stream", true},
                               {"temperature", 0},
                               {"max_tokens", kDoorTokens},
                               {"messages", {{{"role", "user"}, {"content", PromptOf(round)}}}}};
  const std::string text = body.dump();
  const std::unique_ptr<CURL, void (*)(CURL*)> curl(curl_easy_init(), curl_easy_cleanup);
  curl_slist* list = curl_slist_append(nullptr, ("Authorization: Bearer " + token).c_str());
  list = curl_slist_append(list, "Content-Type: application/json");
  const std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(list, curl_slist_free_all);
  HttpAnswer answer;
  curl_easy_setopt(curl.get(), CURLOPT_URL, (address + "/v1/chat/completions").c_str());
  curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, text.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_NOPROXY, "*");
  curl_easy_setopt(curl.get(), CURLOPT_TCP_NODELAY, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT_MS, absl::ToInt64Milliseconds(kDoorCall));
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, TakeBody);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &answer);
  answer.begun_ns = Clock::Real().SteadyNanos();
  const CURLcode code = curl_easy_perform(curl.get());
  if (code != CURLE_OK || answer.first_ms == 0) {
    return absl::InternalError(
        absl::StrCat(address, ": ", curl_easy_strerror(code), ": ", answer.body.substr(0, 300)));
  }
  return answer.first_ms;
}

}  // namespace

absl::StatusOr<DoorTimes> MeasureDoor(const std::string& model, int threads, int rounds) {
  const int port = FreeTcpPort();
  const std::string http = absl::StrCat("127.0.0.1:", port);
  WITHY_ASSIGN_OR_RETURN(
      const auto service,
      OwnService::Start(
          {.orchestrator = absl::StrCat("probe_off: true http_listen: \"", http, "\""),
           .model = absl::StrCat("path: \"", model, "\" threads: ", threads)}));
  const std::string& token = service->token();
  WITHY_RETURN_IF_ERROR(AskOverHttp("http://" + http, token, 1).status());
  DoorTimes times;
  for (int round = 0; round < rounds; ++round) {
    WITHY_ASSIGN_OR_RETURN(times.grpc_ms.emplace_back(), AskOverGrpc(*service, 2 + 2 * round));
    WITHY_ASSIGN_OR_RETURN(times.http_ms.emplace_back(),
                           AskOverHttp("http://" + http, token, 3 + 2 * round));
  }
  return times;
}

}  // namespace withy::bench
