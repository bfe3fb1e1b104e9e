// Arbitrary JSON as tools, and as the schemas in them, told by templates that walk over schemas as
// published ones do: macros that call themselves for properties, items and unions, and for what
// they do not know. Rendered within the limits, or refused with a reason.
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

// In each, `walk` is called with a schema. The first two end only where the schema does.
constexpr std::string_view kMacros[] = {
    R"({% macro walk(s) %}{% if s is mapping %}{% for key, inner in s | items %}{{ key }}:)"
    R"({{ walk(inner) }},{% endfor %}{% elif s is iterable and s is not string %})"
    R"({% for inner in s %}[{{ walk(inner) }}]{% endfor %}{% else %}{{ s }}{% endif %})"
    R"({% endmacro %})",
    R"({% macro walk(s) %}{% if s.type == 'object' %}{% for name in s.properties or {} %})"
    R"({{ name }}{{ '' if name in (s.required or []) else '?' }}: {{ walk(s.properties[name]) }}; )"
    R"({% endfor %}{% elif s.type == 'array' %}{{ walk(s['items']) | trim }}[])"
    R"({% elif s.anyOf %}{{ s.anyOf | map('tojson') | join(' | ') }})"
    R"({% elif s.type is string %}{{ s.type }}{% else %}any{% endif %}{% endmacro %})",
    // What it does not know, it takes for the name of another schema, for ever.
    R"({% macro walk(s) %}{% if s.type in ['string', 'number'] %}{{ s.type }}{% else %})"
    R"({% set told %}{{ walk({'type': s.type, 'of': s}) }}{% endset %}({{ told }}){% endif %})"
    R"({% endmacro %})",
    R"({% macro walk(s) %}{% filter trim %}{% call(x) each(s) %}{{ walk(x) ~ '|' }}{% endcall %})"
    R"({% endfilter %}{% endmacro %}{% macro each(s) %}{% for part in s.type or s %})"
    R"({{ caller(part) }}{% endfor %}{% endmacro %})",
    R"({% macro walk(s) %}{{ s | tojson(indent=2) }}{{ s | string | length }})"
    R"({{ s == s and s in [s] }}{{ [s] | sort | unique | list }}{% if s.items is defined %})"
    R"({% with t = {'a': [s]} %}{{ walk(t) }}{% endwith %}{% endif %}{% endmacro %})",
};

constexpr std::string_view kBody =
    "{% for tool in tools %}{% set f = tool.function or tool %}{{ f.name or 'f' }}("
    "{{ walk(f.parameters if f is mapping and f.parameters is defined else f) }})\n{% endfor %}";

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

const std::vector<Template>& Templates() {
  static const auto* templates = [] {
    auto* parsed = new std::vector<Template>;
    for (const std::string_view macro : kMacros) {
      parsed->push_back(Template::Parse(std::string(macro) + std::string(kBody)).value());
    }
    return parsed;
  }();
  return *templates;
}

void Check(const Template& told, const Dict& globals) {
  // On this thread's stack, not on one that is large enough.
  const RenderOptions options{
      .now = {}, .max_steps = 50'000, .max_bytes = 1 << 16, .stack_bytes = 0};
  const auto text = told.Render(globals, options);
  if (text.ok()) {
    Require(text->size() <= options.max_bytes, "the output is bounded");
    return;
  }
  const std::string_view message = ToStd(text.status().message());
  Require(!message.empty() && ValidUtf8(message) == message, "an error is text");
}

}  // namespace
}  // namespace withy::jinja

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace withy::jinja;  // NOLINT(google-build-using-namespace)
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  Templates();
  withy::OnSmallStack([&] {
    const auto schema = FromJson(json, kFromData);
    if (!schema.ok()) return;
    for (const bool whole : {true, false}) {
      Dict globals;
      globals.Set("tools", whole ? *schema : Value::List({*schema}));
      for (const Template& told : Templates()) Check(told, globals);
    }
  });
  return 0;
}
