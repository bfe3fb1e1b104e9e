// A template with the constructs of gpt-oss's: macros that call themselves and read variables from
// outside, namespaces, slices by the loop's index, tests of a schema's types, and the present date.
// What it should give is what Jinja2 gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "engine/chat/file_template.h"

namespace withy::engine {
namespace {

constexpr std::string_view kHarmony = R"jinja({#- A comment -#}
{%- macro kind_of(spec, needed, maybe=false) -%}
    {%- if spec.type == "array" -%}
        {%- if spec['items'] -%}
            {%- set inner = kind_of(spec['items'], needed) -%}
            {%- if inner == "any" or inner|length > 20 -%}{{- "any[]" }}
            {%- else -%}{{- inner + "[]" }}{%- endif -%}
        {%- endif -%}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type is not mapping and spec.type[0] is defined -%}
        {{- spec.type | join(" | ") if spec.type|length > 1 else spec.type[0] }}
    {%- elif spec.oneOf -%}
        {%- for one in spec.oneOf -%}
            {{- kind_of(one, needed) -}}
            {%- if one.default is defined %} {{- "/" + one.default|tojson }}{%- endif -%}
            {%- if not loop.last %}{{- " | " }}{% endif -%}
        {%- endfor -%}
    {%- elif spec.enum -%}{{- '"' + spec.enum|join('" | "') + '"' -}}
    {%- elif spec.type == "object" and spec.properties -%}
        {{- "{" }}
        {%- for name, inner in spec.properties.items() -%}
            {{- name ~ ("" if name in (spec.required or []) else "?") + ": " }}
            {{- kind_of(inner, spec.required or []) }}
            {%- if not loop.last -%}{{-", " }}{%- endif -%}
        {%- endfor -%}
        {{- "}" }}
    {%- else -%}{{- spec.type or "any" }}{%- if maybe or spec.nullable %}{{- " | null" }}{%- endif -%}{%- endif -%}
{%- endmacro -%}
{%- macro head() -%}
    {%- if identity is not defined %}{%- set identity = "You help." %}{%- endif %}
    {{- identity + "\n" }}
    {{- "Date: " + strftime_now("%Y-%m-%d") + "\n" }}
    {%- if reasoning_effort is not defined %}{%- set reasoning_effort = "medium" %}{%- endif %}
    {{- "Reasoning: " + reasoning_effort }}
    {%- if builtin_tools %}
        {%- set known = namespace(browser=false, python=false) %}
        {%- for tool in builtin_tools %}{%- if tool == "python" %}{%- set known.python = true %}{%- endif %}{%- endfor %}
        {{- " python" if known.python }}
    {%- endif -%}
    {%- if tools -%}{{- "\nTools: functions" }}{%- endif -%}
{%- endmacro -%}
{{- "<|start|>system<|message|>" }}
{{- head() }}
{{- "<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}
    {%- set instructions = messages[0].content %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set instructions = "" %}
    {%- set rest = messages %}
{%- endif %}
{%- if instructions or tools %}
    {{- "<|start|>developer<|message|>" }}
    {%- if instructions %}{{- instructions + "\n" }}{%- endif %}
    {%- for tool in tools or [] %}
        {%- set tool = tool.function %}
        {{- "type " + tool.name + " = (" }}
        {%- for name, spec in tool.parameters.properties.items() %}
            {{- name }}
            {%- if name not in (tool.parameters.required or []) -%}{{- "?" }}{%- endif -%}
            {{- ": " + kind_of(spec, tool.parameters.required or []) + ", " }}
        {%- endfor %}
        {{- ") => any;" }}
    {%- endfor %}
    {{- "<|end|>" }}
{%- endif %}
{%- set last = namespace(name=none) %}
{%- for message in rest -%}
    {%- if message.role == 'assistant' -%}
        {%- if "thinking" in message %}{%- if "<|channel|>" in message.thinking %}{{- raise_exception("No channels here") }}{%- endif %}{%- endif %}
        {%- if "tool_calls" in message %}
            {%- set later = namespace(found=false) %}
            {%- for future in rest[loop.index:] %}
                {%- if future.role == 'assistant' and "tool_calls" not in future %}{%- set later.found = true %}{%- endif %}
            {%- endfor %}
            {%- set call = message.tool_calls[0] %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {%- if message.content and not later.found %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.content + "<|end|>" }}
            {%- endif %}
            {{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary " }}
            {{- (call.content_type if call.content_type is defined else "json") + "<|message|>" }}
            {{- call.arguments|tojson }}
            {{- "<|call|>" }}
            {%- set last.name = call.name %}
        {%- elif loop.last and not add_generation_prompt %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
            {%- set last.name = none %}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last.name is none %}{{- raise_exception("No call before this result") }}{%- endif %}
        {{- "<|start|>functions." + last.name + " to=assistant<|channel|>commentary<|message|>" + message.content|tojson + "<|end|>" }}
    {%- elif message.role == 'user' -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}
)jinja";
constexpr int64_t kHarmonyNoon = 1796040000;  // of 2026-11-30
constexpr char kHarmonySystem[] =
    "<|start|>system<|message|>You help.\nDate: 2026-11-30\nReasoning: ";

constexpr std::string_view kLookTools =
    R"([{"type":"function","function":{"name":"look","description":"Looks.","parameters":{)"
    R"("type":"object","properties":{"at":{"type":"string","enum":["a","b"]},)"
    R"("many":{"type":"array","items":{"type":"integer"}},)"
    R"("deep":{"type":"array","items":{"type":"object","properties":{)"
    R"("somewhere":{"type":"string"},"else":{"type":"number"}},"required":["else"]}},)"
    R"("either":{"oneOf":[{"type":"integer","default":3},{"type":"string","nullable":true}]},)"
    R"("some":{"type":["string","null"]},"one":{"type":["string"]},)"
    R"("box":{"type":"object","properties":{"x":{"type":"number"},"y":{"type":"number"}},)"
    R"("required":["x"]}},"required":["at"]}}}])";

class HarmonyTest : public ::testing::Test {
 protected:
  HarmonyTest() : template_(FileTemplate::FromText(kHarmony, "", "", "<|return|>").value()) {}

  std::string Told(const std::vector<ChatMessage>& messages, ChatOptions options = {}) const {
    options.unix_s = kHarmonyNoon;
    const auto rendered = template_.Render(messages, options);
    return rendered.ok() ? rendered->Text() : std::string(rendered.status().message());
  }

  const FileTemplate template_;
};

TEST_F(HarmonyTest, TakesWhatGptOssTakes) {
  const TemplateTraits& traits = template_.traits();
  EXPECT_TRUE(traits.takes_system && traits.takes_developer && traits.takes_tools);
  EXPECT_TRUE(traits.takes_calls && traits.takes_tool);
  EXPECT_FALSE(traits.takes_late_system);
}

TEST_F(HarmonyTest, TellsTurnsOnChannels) {
  EXPECT_EQ(Told({{.role = "user", .content = "Hi"}}, {.add_generation_prompt = true}),
            std::string(kHarmonySystem) +
                "medium<|end|><|start|>user<|message|>Hi<|end|><|start|>assistant");
  EXPECT_EQ(Told({{.role = "system", .content = "Be kind."},
                  {.role = "user", .content = "Hi"},
                  {.role = "assistant", .content = "Ho"},
                  {.role = "user", .content = "Go on"}},
                 {.add_generation_prompt = true}),
            std::string(kHarmonySystem) +
                "medium<|end|><|start|>developer<|message|>Be kind.\n<|end|>"
                "<|start|>user<|message|>Hi<|end|>"
                "<|start|>assistant<|channel|>final<|message|>Ho<|end|>"
                "<|start|>user<|message|>Go on<|end|><|start|>assistant");
  EXPECT_EQ(Told({{.role = "user", .content = "Hi"}, {.role = "assistant", .content = "Ho"}}),
            std::string(kHarmonySystem) +
                "medium<|end|><|start|>user<|message|>Hi<|end|>"
                "<|start|>assistant<|channel|>final<|message|>Ho<|return|>");
}

TEST_F(HarmonyTest, ArgumentsReachMacros) {
  EXPECT_EQ(Told({{.role = "user", .content = "Hi"}},
                 {.add_generation_prompt = true,
                  .arguments_json = R"({"reasoning_effort":"high","builtin_tools":["python"]})"}),
            std::string(kHarmonySystem) +
                "high python<|end|><|start|>user<|message|>Hi<|end|><|start|>assistant");
}

TEST_F(HarmonyTest, TellsToolsCallsAndResults) {
  ChatMessage call{.role = "assistant", .content = ""};
  call.tool_calls_json =
      R"([{"id":"abcdefghi","type":"function","function":{"name":"look","arguments":"{\"at\": \"a\"}"}}])";
  ChatMessage result{.role = "tool", .content = R"({"is": "é"})"};
  result.name = "look";
  result.tool_call_id = "abcdefghi";
  EXPECT_EQ(Told({{.role = "user", .content = "Look"}, call, result},
                 {.add_generation_prompt = true, .tools_json = kLookTools}),
            std::string(kHarmonySystem) +
                "medium\nTools: functions<|end|><|start|>developer<|message|>type look = "
                "(at: \"a\" | \"b\", many?: integer[], deep?: any[], either?: integer/3 | string | "
                "null, some?: string | null, one?: string, box?: {x: number, y?: number}, ) => any;"
                "<|end|><|start|>user<|message|>Look<|end|><|start|>assistant to=functions.look"
                "<|channel|>commentary json<|message|>{\"at\": \"a\"}<|call|>"
                "<|start|>functions.look to=assistant<|channel|>commentary<|message|>"
                "\"{\\\"is\\\": \\\"é\\\"}\"<|end|><|start|>assistant");
  EXPECT_THAT(Told({{.role = "user", .content = "Look"}, result}, {.add_generation_prompt = true}),
              ::testing::HasSubstr("refuses these messages: No call before this result"));
}

}  // namespace
}  // namespace withy::engine
