// Compiler where XGrammar is not there: CheckFormat refuses every form.
#include <utility>

#include "base/status.h"
#include "grammar/compiler.h"
#include "grammar/format_check.h"

namespace withy::grammar {

struct Compiler::Matcher {};

Compiler::Compiler(const engine::Tokenizer& tokenizer, int32_t vocab_size, engine::CallText calls)
    : tokenizer_(tokenizer), vocab_size_(vocab_size), calls_(std::move(calls)) {}
Compiler::~Compiler() = default;

absl::StatusOr<std::shared_ptr<const engine::OutputGrammar>> Compiler::Compile(
    const engine::OutputFormat& format) {
  WITHY_RETURN_IF_ERROR(CheckFormat(format));
  return nullptr;
}

}  // namespace withy::grammar
