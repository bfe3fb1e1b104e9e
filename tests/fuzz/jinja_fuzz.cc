// Arbitrary bytes as a chat template: refused with a status, or rendered within the limits, with
// every byte of the messages' contents told apart from the template's own. The input's first line
// is a message's content, the rest the template.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/strings.h"
#include "base/utf8.h"
#include "engine/jinja/json.h"
#include "engine/jinja/template.h"
#include "tests/fuzz/small_stack.h"

namespace withy::jinja {
namespace {

constexpr int32_t kMessage = 0;

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

Dict Globals(std::string_view content) {
  Dict message;
  message.Set("role", Value::String("user"));
  message.Set("content", Value::String(content, kMessage));
  Dict globals;
  globals.Set("messages", Value::List({Value::Of(message), Value::Of(message)}));
  globals.Set("tools",
              FromJson(R"([{"name": "f", "x": [1, 2.5, {"a": null}]}])", kFromData).value());
  globals.Set("add_generation_prompt", Value::Bool(true));
  globals.Set("bos_token", Value::String("<s>"));
  return globals;
}

void Check(std::string_view content, std::string_view source) {
  const auto parsed = Template::Parse(source);
  Require(parsed.ok() || !parsed.status().message().empty(), "a refusal says why");
  if (!parsed.ok()) return;
  const RenderOptions options{
      .now = {}, .max_steps = 20'000, .max_bytes = 1 << 16, .stack_bytes = 0};
  const auto text = parsed->Render(Globals(content), options);
  if (!text.ok()) {
    const std::string_view message = ToStd(text.status().message());
    Require(!message.empty() && ValidUtf8(message) == message, "an error is text");
    return;
  }
  Require(text->size() <= options.max_bytes, "the output is bounded");
  size_t bytes = 0;
  for (const Text::Piece& piece : text->Pieces()) {
    bytes += piece.text.size();
    Require(!piece.text.empty(), "pieces are not empty");
    Require(piece.source >= kFromData && piece.source <= kMessage, "each byte has a known source");
  }
  Require(bytes == text->size(), "pieces cover the output");
}

}  // namespace
}  // namespace withy::jinja

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t line = input.find('\n');
  const size_t end = line == std::string_view::npos ? 0 : line;
  withy::OnSmallStack([&] {
    withy::jinja::Check(input.substr(0, end),
                        input.substr(line == std::string_view::npos ? 0 : end + 1));
  });
  return 0;
}
