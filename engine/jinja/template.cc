#include "engine/jinja/template.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/jinja/interpreter.h"
#include "engine/jinja/parser.h"

namespace withy::jinja {

namespace {

// Names from the template may be cut within a character.
absl::Status AsText(const absl::Status& status) {
  return absl::Status(status.code(), ValidUtf8(ToStd(status.message())));
}

}  // namespace

struct Template::Program {
  Block block;
};

Template::Template(std::shared_ptr<const Program> program) : program_(std::move(program)) {}

absl::StatusOr<Template> Template::Parse(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the template has ", source.size(), " bytes; at most ", kMaxSourceBytes, " are read"));
  }
  if (ValidUtf8(source) != source) {
    return absl::InvalidArgumentError("the template is not valid UTF-8");
  }
  auto program = std::make_shared<Program>();
  absl::StatusOr<Block> block = jinja::Parse(source);
  if (!block.ok()) return AsText(block.status());
  program->block = *std::move(block);
  return Template(std::move(program));
}

absl::StatusOr<Text> Template::Render(const Dict& globals, const RenderOptions& options) const {
  absl::StatusOr<Text> text = absl::InternalError("the template did not run");
  const auto run = [&] { text = Interpreter(globals, options).Run(program_->block); };
  const bool ran = StackLeft() < options.stack_bytes && RunOnStack(options.stack_bytes, run);
  if (!ran) run();
  if (!text.ok()) return AsText(text.status());
  return text;
}

}  // namespace withy::jinja
