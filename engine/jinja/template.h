// Executes the Jinja that model files carry as tokenizer.chat_template: the subset that published
// templates use, with the settings of transformers (trim_blocks, lstrip_blocks, loop controls,
// {% generation %}, tojson without ASCII escapes, immutable lists and dicts). What a template can
// take of time, memory and stack is bounded. Neighbour: engine/chat/ gives it messages.
//
//   WITHY_ASSIGN_OR_RETURN(Template parsed, Template::Parse(source));
//   Dict globals;
//   globals.Set("messages", …);
//   WITHY_ASSIGN_OR_RETURN(Text text, parsed.Render(globals, {}));
//
// Not executed: include, import, extends, block, recursive loops, *arguments, autoescape.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/stack_left.h"
#include "engine/jinja/text.h"
#include "engine/jinja/value.h"

namespace withy::jinja {

struct RenderOptions {
  std::tm now = {};                     // what strftime_now() tells
  int64_t max_steps = 4'000'000;        // evaluated nodes; 16 bytes of text count as one
  size_t max_bytes = size_t{64} << 20;  // of the output and of each value
  int max_nesting = 400;                // of evaluation, macros included
  // Where the calling thread has less stack left, the template runs on a thread of its own with
  // this much: enough for max_nesting, so that a chat has one result on all threads.
  size_t stack_bytes = kFrameScale * (size_t{600} << 10);
};

// Immutable, thread-safe, cheap to copy.
class Template {
 public:
  static constexpr size_t kMaxSourceBytes = size_t{1} << 20;

  // `source`: UTF-8; other bytes are refused. Errors: INVALID_ARGUMENT for text that is no template
  // or too long, UNIMPLEMENTED for parts of the language that are not executed. Both name line and
  // construct.
  static absl::StatusOr<Template> Parse(std::string_view source);

  // Errors: FAILED_PRECONDITION with the template's own words for raise_exception();
  // INVALID_ARGUMENT for an operation that its values do not allow; RESOURCE_EXHAUSTED naming the
  // limit; UNIMPLEMENTED. All but the first begin with the line.
  absl::StatusOr<Text> Render(const Dict& globals, const RenderOptions& options) const;

 private:
  struct Program;
  explicit Template(std::shared_ptr<const Program> program);

  std::shared_ptr<const Program> program_;  // shared by copies
};

}  // namespace withy::jinja
