// withyctl embed: the vectors of texts, a line of JSON each. Neighbours: score.cc tells how likely
// a text is.
#include <array>
#include <charconv>
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/prompt_flags.h"
#include "cli/utf8.h"

namespace withy::cli {
namespace {

constexpr absl::Duration kEmbedTimeout = absl::Minutes(10);

absl::StatusOr<v1::EmbedRequest> EmbedRequestOf(const Args& args) {
  WITHY_RETURN_IF_ERROR(CheckFlagsUtf8(args, {"model"}));
  v1::EmbedRequest request;
  request.set_model(args.Get("model"));
  for (const std::string& text : args.positional()) {
    WITHY_RETURN_IF_ERROR(CheckUtf8("TEXT", text));
    request.add_inputs()->set_text(text);
  }
  return request;
}

// {"index":0,"tokens":2,"embedding":[...]}, with the shortest digits that give each number back.
std::string VectorLine(int index, const v1::Embedding& embedding) {
  std::string line =
      absl::StrCat("{\"index\":", index, ",\"tokens\":", embedding.tokens(), ",\"embedding\":[");
  for (int i = 0; i < embedding.values_size(); ++i) {
    std::array<char, 32> digits;
    const std::to_chars_result end =
        std::to_chars(digits.data(), digits.data() + digits.size(), embedding.values(i));
    if (i > 0) line.push_back(',');
    line.append(digits.data(), end.ptr);
  }
  return line + "]}\n";
}

absl::Status PrintVectors(const Args& args, const v1::EmbedRequest& request) {
  WITHY_ASSIGN_OR_RETURN(const absl::Duration timeout, TimeoutFromArgs(args, kEmbedTimeout));
  WITHY_ASSIGN_OR_RETURN(const auto client, Client::Open(args));
  int index = 0;
  return client->Embed(request, timeout, [&](const v1::EmbedResponse& message) {
    for (const v1::Embedding& embedding : message.embeddings()) {
      std::cout << VectorLine(index++, embedding);
    }
  });
}

int RunEmbed(const Args& args) {
  if (args.positional().empty()) return FailUsage("embed takes at least one TEXT");
  const auto request = EmbedRequestOf(args);
  if (!request.ok()) return FailUsage(ToStd(request.status().message()));
  const absl::Status printed = PrintVectors(args, *request);
  return printed.ok() ? kExitOk : Fail(printed);
}

}  // namespace

std::vector<Command> EmbedCommands() {
  return {
      {"embed", "TEXT...", "vectors of texts, a line of JSON each: index, tokens, embedding",
       WithConnection({{"model", "NAME", "model that gives them (default: the target)"},
                       TimeoutFlag(kEmbedTimeout)}),
       RunEmbed},
  };
}

}  // namespace withy::cli
