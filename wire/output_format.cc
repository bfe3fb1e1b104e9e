#include "wire/output_format.h"

namespace withy::engine {

OutputFormat FormatFromWire(const v1::OutputFormat& wire, const std::string& tools_json) {
  using Kind = OutputFormat::Kind;
  switch (wire.form_case()) {
    case v1::OutputFormat::kJsonSchema:
      return {.kind = Kind::kJsonSchema, .text = wire.json_schema()};
    case v1::OutputFormat::kJsonObject:
      return {.kind = wire.json_object() ? Kind::kJsonObject : Kind::kFree};
    case v1::OutputFormat::kRegex:
      return {.kind = Kind::kRegex, .text = wire.regex()};
    case v1::OutputFormat::kGrammar:
      return {.kind = Kind::kEbnf, .text = wire.grammar()};
    case v1::OutputFormat::kToolCalls:
      return {.kind = Kind::kToolCalls,
              .text = tools_json,
              .tool = wire.tool_calls().tool(),
              .one_call = wire.tool_calls().one_call(),
              .free_text = wire.tool_calls().free_text(),
              .schema = wire.tool_calls().json_schema()};
    case v1::OutputFormat::FORM_NOT_SET:
      break;
  }
  return {};
}

}  // namespace withy::engine
