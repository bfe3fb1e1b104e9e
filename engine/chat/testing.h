// A chat template with tools, for tests.
#pragma once

#include <string_view>

namespace withy::engine {

// ChatML with tools in a system turn of their own, calls as <tool_call>JSON</tool_call>, results as
// users' turns, and an argument `enable_thinking`.
inline constexpr std::string_view kToolTemplate =
    R"({%- if tools %}{{ '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\n' }}{% endif %}
{%- for tool in tools %}{{ tool | tojson }}{{ '\n' }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'system' and loop.first and tools %}
{%- elif m.role == 'developer' %}{{ raise_exception('no developers here') }}
{%- elif m.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}
{%- else %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.content %}{{ m.content }}{% endif %}
{%- for call in m.tool_calls or [] %}{% if not loop.first or m.content %}{{ '\n' }}{% endif %}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %})";

}  // namespace withy::engine
