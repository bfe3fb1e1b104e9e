// Arbitrary bytes as a request of HTTP: refused with a status and words, or read within the limits,
// and the same however the bytes are cut. A request that is taken is written anew and read again.
// The body is then read as a call of OpenAI's API, with and without such a request around it.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "http/request_parser.h"
#include "orchestrator/call/validate.h"
#include "orchestrator/openai/openai_error.h"
#include "orchestrator/openai/openai_request.h"

namespace withy {
namespace {

using http::RequestParser;
using State = RequestParser::State;

constexpr http::Limits kLimits = {.head_bytes = 512, .body_bytes = 4096};

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

RequestParser Parse(std::string_view bytes, size_t piece, size_t* used) {
  RequestParser parser(kLimits);
  *used = 0;
  while (*used < bytes.size() && parser.state() != State::kDone &&
         parser.state() != State::kFailed) {
    const std::string_view next = bytes.substr(*used, piece);
    const size_t taken = parser.Feed(next);
    Require(taken > 0 && taken <= next.size(), "a feed takes bytes that there are");
    *used += taken;
  }
  return parser;
}

void CheckBounds(const RequestParser& parser) {
  size_t bytes = 0;
  for (const auto& [name, value] : parser.head().headers) {
    bytes += name.size() + value.size();
    Require(!name.empty(), "a header has a name");
    Require(value.find_first_of(std::string_view("\0\r\n", 3)) == std::string::npos,
            "a header's value is one line");
  }
  Require(bytes <= kLimits.head_bytes, "headers are bounded");
  Require(parser.body().size() <= kLimits.body_bytes, "the body is bounded");
  if (parser.state() == State::kFailed) {
    Require(parser.failure().status >= 400 && parser.failure().status <= 505 &&
                !parser.failure().message.empty(),
            "a refusal has a status and words");
    Require(
        !orchestrator::OpenAiHttpError(parser.failure().status, parser.failure().message).empty(),
        "a refusal has a document");
  }
}

// A request that was taken says the same when it is written in the plainest way.
void CheckWrittenAnew(const RequestParser& parser) {
  const http::RequestHead& head = parser.head();
  Require(!(head.chunked && head.content_length), "the body's end is said once");
  std::string request =
      absl::StrCat("POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: ", parser.body().size(),
                   "\r\n\r\n", parser.body());
  size_t used = 0;
  const RequestParser again = Parse(request, std::string::npos, &used);
  Require(again.state() == State::kDone && again.body() == parser.body(), "a body is what it is");
}

void CheckCall(std::string_view body, const orchestrator::HeaderOf& header) {
  using namespace orchestrator;
  for (const OpenAiKind kind : {OpenAiKind::kChat, OpenAiKind::kCompletion}) {
    auto call = ParseOpenAiCall(kind, body, header);
    absl::Status status = call.status();
    if (call.ok()) {
      v1::ModelDescription model;
      model.set_context_length(100);
      model.set_vocabulary(50);
      FitToModel(model, &call->request);
      Require(call->request.limits().max_tokens() <= 100, "a limit fits the window");
      Require(call->request.sampling().top_k() <= 50, "top_k fits the vocabulary");
      Require(call->request.sampling().seed() <= (uint64_t{1} << 53),
              "a seed is exact as a double");
      if (call->prompt_tokens.empty()) status = ValidateGenerate(call->request);
    }
    if (status.ok()) continue;
    Require(!status.message().empty(), "an error says why");
    Require(HttpStatusOf(status) == 400, "what a client sends is the client's fault");
    Require(!OpenAiError(status, "messages").empty(), "an error has a document");
  }
}

}  // namespace
}  // namespace withy

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using withy::RequestParser;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  size_t used = 0, used_in_pieces = 0;
  const RequestParser whole = withy::Parse(input, std::string_view::npos, &used);
  const RequestParser pieces =
      withy::Parse(input, 1 + (size == 0 ? 0 : data[size - 1] % 7), &used_in_pieces);
  withy::CheckBounds(whole);
  withy::Require(whole.state() == pieces.state(), "pieces make no difference");
  if (whole.state() != RequestParser::State::kFailed) {
    withy::Require(used == used_in_pieces && whole.body() == pieces.body(),
                   "pieces make no difference to the body");
  }
  const auto none = [](const char*) { return std::nullopt; };
  if (whole.state() == RequestParser::State::kDone) {
    withy::CheckWrittenAnew(whole);
    withy::CheckCall(whole.body(), [&](const char* name) -> std::optional<std::string> {
      const std::string* value = whole.head().Find(name);
      if (value == nullptr) return std::nullopt;
      return *value;
    });
  }
  withy::CheckCall(input, none);
  return 0;
}
