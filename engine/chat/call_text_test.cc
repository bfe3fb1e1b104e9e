#include "engine/chat/call_text.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/chat/testing.h"

namespace withy::engine {
namespace {

CallText Of(std::string_view text, const std::vector<std::string>& ends = {"<|im_end|>"}) {
  const auto file = FileTemplate::FromText(text, "", "<s>", ends.front());
  EXPECT_TRUE(file.ok()) << file.status();
  return CallTextOf(&*file, ends);
}

TEST(CallTextTest, IsWhatTheTemplateShows) {
  const CallText text = Of(kToolTemplate);
  EXPECT_EQ(text.begin, "<tool_call>\n{\"name\": \"");
  EXPECT_EQ(text.middle, "\", \"arguments\": ");
  EXPECT_EQ(text.between, "}\n</tool_call>\n<tool_call>\n{\"name\": \"");
  EXPECT_EQ(text.end, "}\n</tool_call>");
}

TEST(CallTextTest, ATemplateOfNoKnownFormGetsJsonAlone) {
  EXPECT_EQ(CallTextOf(nullptr, {}), CallText());
  const std::string odd =
      "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}CALL "
      "{{ c.function.name }} WITH {{ c.function.arguments | tojson }}{% endfor %}{% endfor %}";
  EXPECT_EQ(Of(odd), CallText());
}

TEST(CallTextTest, IdsMayBeAnything) {
  const std::string with_ids =
      "{% for m in messages %}[INST]{{ m.content or '' }}[/INST]{% if m.tool_calls %}[TOOL_CALLS] ["
      "{% for c in m.tool_calls %}{\"name\": \"{{ c.function.name }}\", \"arguments\": "
      "{{ c.function.arguments | tojson }}, \"id\": \"{{ c.id }}\"}"
      "{% if not loop.last %}, {% endif %}{% endfor %}]</s>{% endif %}{% endfor %}";
  const CallText text = Of(with_ids, {"</s>"});
  EXPECT_EQ(text.begin, "[TOOL_CALLS] [{\"name\": \"");
  EXPECT_EQ(text.end, std::string(", \"id\": \"") + CallText::kCallId + "\"}]");
}

TEST(CallTextTest, ATemplateThatRefusesTwoCallsHasOne) {
  const std::string single =
      "{% for m in messages %}<|head|>{{ m.role }}\n{% if m.tool_calls %}"
      "{% if m.tool_calls | length != 1 %}{{ raise_exception('one call only') }}{% endif %}"
      "{\"name\": \"{{ m.tool_calls[0].function.name }}\", \"parameters\": "
      "{{ m.tool_calls[0].function.arguments | tojson }}}{% else %}{{ m.content }}{% endif %}"
      "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|head|>assistant\n{% endif %}";
  const CallText text = Of(single, {"<|eot_id|>"});
  EXPECT_EQ(text.middle, "\", \"parameters\": ");
  EXPECT_EQ(text.between, "");
  EXPECT_EQ(text.end, "}");
}

}  // namespace
}  // namespace withy::engine
