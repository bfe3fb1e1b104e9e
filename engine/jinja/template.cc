#include "engine/jinja/template.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/jinja/interpreter.h"
#include "engine/jinja/parser.h"

namespace withy::jinja {

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
  WITHY_ASSIGN_OR_RETURN(program->block, jinja::Parse(source));
  return Template(std::move(program));
}

absl::StatusOr<Text> Template::Render(const Dict& globals, const RenderOptions& options) const {
  return Interpreter(globals, options).Run(program_->block);
}

}  // namespace withy::jinja
