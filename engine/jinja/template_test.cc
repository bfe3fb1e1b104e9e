// Sources of bytes, bounds, and what errors say. That results equal jinja2's is shown by
// tests/chat/.
#include "engine/jinja/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/stack_left.h"
#include "engine/jinja/json.h"

namespace withy::jinja {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr int32_t kUser = 7;

Dict Globals(std::string_view user) {
  Dict globals;
  globals.Set("user", Value::String(user, kUser));
  globals.Set("tools", FromJson(R"([{"name": "f<|end|>", "n": 1}])", kFromData).value());
  return globals;
}

absl::StatusOr<Text> Render(std::string_view source, std::string_view user = "u",
                            const RenderOptions& options = {}) {
  const auto parsed = Template::Parse(source);
  if (!parsed.ok()) return parsed.status();
  return parsed->Render(Globals(user), options);
}

// The text with what is not the template's in brackets.
std::string Marked(std::string_view source, std::string_view user) {
  const auto text = Render(source, user);
  EXPECT_TRUE(text.ok()) << source << ": " << text.status();
  if (!text.ok()) return "";
  std::string marked;
  for (const Text::Piece& piece : text->Pieces()) {
    const bool own = piece.source == kFromTemplate;
    marked += own ? std::string(piece.text) : "[" + std::string(piece.text) + "]";
  }
  return marked;
}

TEST(JinjaSourcesTest, EveryOperationKeepsWhereBytesComeFrom) {
  EXPECT_EQ(Marked("a{{ user }}b", "<x>"), "a[<x>]b");
  EXPECT_EQ(Marked("{{ '<' + user + '>' }}", "x"), "<[x]>");
  EXPECT_EQ(Marked("{{ '<' ~ user ~ '>' }}", "x"), "<[x]>");
  EXPECT_EQ(Marked("{{ user | trim }}|{{ user.strip() }}", "  x "), "[x]|[x]");
  EXPECT_EQ(Marked("{{ (' ' + user + ' ') | trim }}", "x"), "[x]");
  EXPECT_EQ(Marked("{{ user.split(',')[1] }}", "a,b"), "[b]");
  EXPECT_EQ(Marked("{{ user.split(',') | join('+') }}", "a,b"), "[a]+[b]");
  EXPECT_EQ(Marked("{{ user | replace('a', '<') }}", "xay"), "[x]<[y]");
  EXPECT_EQ(Marked("{{ 'xay' | replace('a', user) }}", "b"), "x[b]y");
  EXPECT_EQ(Marked("{{ user[1:3] }}{{ user[-1] }}{{ user[::-1] }}", "abcd"), "[bcd][d][c][b][a]");
  EXPECT_EQ(Marked("{{ user | upper }}{{ user | title }}{{ user | capitalize }}", "\xC3\x9F"),
            "[SS][SS][Ss]");
  EXPECT_EQ(Marked("{{ user | tojson }}", "a\"b"), "\"[a\\\"][b]\"");
  EXPECT_EQ(Marked("{{ [user, 1] }}{{ {'k': user} }}", "x"), "['[x]', 1]{'k': '[x]'}");
  EXPECT_EQ(Marked("{{ user | indent(2) }}", "a\nb"), "[a]\n  [b]");
  EXPECT_EQ(Marked("{{ user * 2 }}", "x"), "[x][x]");
  EXPECT_EQ(Marked("{{ '%s!' % user }}{{ '{}?'.format(user) }}", "x"), "[x]![x]?");
  EXPECT_EQ(Marked("{{ user | e }}", "<"), "[&lt;]");
  EXPECT_EQ(Marked("{% for c in user %}{{ c }}-{% endfor %}", "ab"), "[a]-[b]-");
  EXPECT_EQ(Marked("{% macro m(x) %}({{ x }}){% endmacro %}{{ m(user) }}", "a"), "([a])");
  EXPECT_EQ(Marked("{% set s %}({{ user }}){% endset %}{{ s }}", "a"), "([a])");
  EXPECT_EQ(Marked("{% filter upper %}a{{ user }}{% endfilter %}", "b"), "A[B]");
  EXPECT_EQ(Marked("{% set ns = namespace(x=user) %}{{ ns.x }}", "b"), "[b]");
  EXPECT_EQ(Marked("{{ tools | tojson }}", ""), "[{\"[name]\": \"[f<|end|>]\", \"[n]\": 1}]");
  EXPECT_EQ(Marked("{{ user if user == 'a' else 'no' }}", "a"), "[a]");
  EXPECT_EQ(Marked("{{ {'a': '<'}[user] }}", "a"), "<")
      << "a template's own choice is its own text";
}

TEST(JinjaSourcesTest, OffsetsAreThoseOfTheSource) {
  const Text text = Render("{{ user.split('|')[1] | trim }}", "ab|  cd ").value();
  ASSERT_EQ(text.Pieces().size(), 1u);
  EXPECT_EQ(text.Pieces()[0].source, kUser);
  EXPECT_EQ(text.Pieces()[0].offset, 5u);
}

std::string Why(std::string_view source, const RenderOptions& options = {}) {
  const auto text = Render(source, "u", options);
  EXPECT_FALSE(text.ok()) << source << " gives " << text->bytes();
  return text.ok() ? "" : std::string(text.status().message());
}

TEST(JinjaBoundsTest, NothingRunsForever) {
  for (const char* source :
       {"{% for i in range(100000) %}{% for j in range(100000) %}{{ i }}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ 'x' * 999999999999 }}",
        "{{ range(1000000) }}", "{{ [1] * 9999999999 }}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% "
        "endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}"
        "{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor "
        "%}",
        "{% set ns = namespace(x={}) %}{% for i in range(9999) %}{% set ns.x = {'a': ns.x} %}{% "
        "endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(999) %}"
        "{% set ns.x = ns.x | replace('a', 'aa') %}{% endfor %}",
        "{% set ns = namespace() %}{% for i in range(9999) %}{% for x in [ns.x] %}{% set ns.x = "
        "loop %}"
        "{% endfor %}{% endfor %}"}) {
    const auto text = Render(source);
    EXPECT_EQ(text.status().code(), absl::StatusCode::kResourceExhausted)
        << source << ": " << text.status();
  }
}

// Operations whose work grows with what they are given: each ends by its steps, well before the
// loop does.
TEST(JinjaBoundsTest, WorkIsCountedByWhatItTouches) {
  const std::string setup =
      "{% set b = 'abcdefgh' * 500000 %}{% set l = range(100000) %}{% set m = range(100000) %}"
      "{% set t = (1,) * 100000 %}{% set d = {'a': 1} %}{% set few = ['a'] * 500 %}"
      "{% set needle = 'abcdefgh' * 50000 ~ 'x' %}";
  std::string names, parameters;
  for (int i = 0; i < 20'000; ++i) {
    names += "{%set v" + std::to_string(i) + "=1%}";
    parameters += (i > 0 ? ",p" : "p") + std::to_string(i) + "=1";
  }
  for (const std::string work : {"d[b]",
                                 "d.get(b)",
                                 "b in d",
                                 "{b: 1}",
                                 "d[t]",
                                 "[t, t] | unique",
                                 "5[l]",
                                 "5 | attr(l)",
                                 "b[0]",
                                 "b | length",
                                 "b.isalpha()",
                                 "b is upper",
                                 "b | upper",
                                 "b | title",
                                 "b | e",
                                 "b.find(needle)",
                                 "b.rfind(needle)",
                                 "b.count(needle)",
                                 "b.split(needle)",
                                 "b.rsplit(needle, 9)",
                                 "b | replace(needle, '')",
                                 "needle in b",
                                 "b.strip(b)",
                                 "b | trim(b)",
                                 "b.join(few)",
                                 "few | join(b)",
                                 "few | map('trim', b) | list",
                                 "few | map('join', b) | list",
                                 "few | map(attribute=b) | list",
                                 "(['%s'] * 500) | map('format', b) | list",
                                 "few | select('sameas', l) | list",
                                 "l == m",
                                 "l is sameas m",
                                 "'a' in l",
                                 "l | string",
                                 "l | tojson",
                                 "l | sort",
                                 "l | max",
                                 "l | tojson(separators=(needle, needle))",
                                 "few | tojson(indent=needle)",
                                 "'%s' % b",
                                 "'%s' | format(b)",
                                 "'{}'.format(b)",
                                 "'a' | replace(l, l)",
                                 "l + m",
                                 "dict(d, b=l).b == m"}) {
    const auto text = Render(setup + "{% for i in l %}{% set x = " + work + " %}{% endfor %}", "u",
                             {.max_steps = 1'500'000});
    EXPECT_EQ(text.status().code(), absl::StatusCode::kResourceExhausted)
        << work << ": " << text.status();
  }
  for (const std::string& source :
       {names + "{% for i in range(100000) %}{{ v19999 }}{% endfor %}",
        "{% for i in range(100000) %}" + names + "{% endfor %}",
        "{% macro f(" + parameters + ") %}{% endmacro %}{% for i in range(100000) %}{{ f() }}" +
            "{% endfor %}"}) {
    const auto text = Render(source);
    EXPECT_EQ(text.status().code(), absl::StatusCode::kResourceExhausted) << text.status();
  }
}

// What published templates ask for each message takes no walk over all messages.
TEST(JinjaBoundsTest, ALongConversationFitsTheSteps) {
  std::vector<Value> messages;
  for (int i = 0; i < 4000; ++i) {
    Dict message;
    message.Set("role", Value::String(i % 2 == 0 ? "user" : "assistant"));
    message.Set("content", Value::String(std::string(500, 'a'), i));
    messages.push_back(Value::Of(std::move(message)));
  }
  Dict globals;
  globals.Set("messages", Value::List(std::move(messages)));
  const auto parsed = Template::Parse(
      "{% macro last(all, i) %}{{ i == all | length - 1 }}{% endmacro %}"
      "{% for message in messages %}{% if 'content' in message and message.content is string %}"
      "{{ loop.index0 == messages | length - 1 }}{{ last(messages, loop.index0) }}"
      "{{ messages[loop.index0].role }}{{ message.content | trim }}"
      "{% endif %}{% endfor %}");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto text = parsed->Render(globals, {});
  EXPECT_TRUE(text.ok()) << text.status();
}

TEST(JinjaBoundsTest, SourcesNestWithinABound) {
  const auto nested = [](const std::string& open, const std::string& close, int times) {
    std::string source;
    for (int i = 0; i < times; ++i) source += open;
    source += "1";
    for (int i = 0; i < times; ++i) source += close;
    return source;
  };
  EXPECT_TRUE(Render("{{ " + nested("(", ")", 10) + " }}").ok());
  for (const std::string& source :
       {"{{ " + nested("(", ")", 100'000) + " }}", "{{ " + nested("[", "]", 100'000) + " }}",
        "{{ " + nested("not ", "", 100'000) + " }}", "{{ " + nested("-", "", 100'000) + " }}",
        "{{ " + nested("1 + ", "", 100'000) + " }}", "{{ 1" + nested("|string", "", 50'000) + " }}",
        "{{ a" + nested(".a", "", 100'000) + " }}",
        "{{ " + nested("1 if 1 else ", "", 50'000) + " }}", nested("{% if 1 %}", "", 50'000),
        "{% for " + nested("(", "", 100'000) + " in x %}"}) {
    EXPECT_FALSE(Template::Parse(source).ok()) << source.substr(0, 40);
  }
}

std::string Repeated(const std::string& text, int times) {
  std::string repeated;
  for (int i = 0; i < times; ++i) repeated += text;
  return repeated;
}

// Whatever recurses, on a stack of 64 KiB: an error, or a result, but no crash.
TEST(JinjaStackTest, EveryRecursionEndsOnASmallStack) {
  const std::string deep_value =
      "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(90) %}"
      "{% set ns.x = [{'a': ns.x}] %}{% set ns.y = [{'a': ns.y}] %}{% endfor %}";
  const std::string walks[] = {"{{ ns.x }}",           "{{ ns.x | tojson }}",
                               "{{ ns.x == ns.y }}",   "{{ [ns.x, ns.y] | sort }}",
                               "{{ ns.x in [ns.y] }}", "{{ ns.x | string | length }}",
                               "{{ '%s' % [ns.x] }}",  "{% set ns.x = 0 %}{% set ns.y = 0 %}"};
  std::vector<std::string> sources = {
      "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
      "{% macro f(x) %}{% call f(x) %}{% endcall %}{% endmacro %}{{ f(1) }}",
      "{% macro f(x) %}{% filter trim %}{{ f(x) }}{% endfilter %}{% endmacro %}{{ f(1) }}",
      "{% macro f(x) %}{% set y %}{{ f(x) }}{% endset %}{% endmacro %}{{ f(1) }}",
      "{% macro f(x) %}{% for y in [f(x)] %}{% endfor %}{% endmacro %}{{ f(1) }}",
      "{% macro f(x) %}{% if f(x) %}{% endif %}{% endmacro %}{{ f(1) }}",
      "{% macro f(x) %}{% with y = f(x) %}{% endwith %}{% endmacro %}{{ f(1) }}",
      "{% macro f(x=f()) %}{% endmacro %}{{ f() }}",
      "{% macro f(x) %}{{ {'a': [f(x)]} | tojson }}{% endmacro %}{{ f(1) }}",
      "{{ 'a' | map(" + Repeated("'map', ", 20'000) + "'upper') }}",
      "{{ " + Repeated("(", 5000) + "1" + Repeated(")", 5000) + " }}",
      "{{ " + Repeated("[", 5000) + "1" + Repeated("]", 5000) + " }}",
      "{{ " + Repeated("{1: ", 5000) + "1" + Repeated("}", 5000) + " }}",
      "{{ " + Repeated("f(", 5000) + "1" + Repeated(")", 5000) + " }}",
      "{{ " + Repeated("not ", 5000) + "1 }}",
      "{{ " + Repeated("-", 5000) + "1 }}",
      "{{ 1" + Repeated(" + 1", 140) + " }}",
      "{{ 1" + Repeated("|string", 140) + " }}",
      "{{ 1" + Repeated(" if 1 else 1", 5000) + " }}",
      Repeated("{% if 1 %}", 5000),
      Repeated("{% for x in y %}", 5000),
      Repeated("{% macro f() %}", 5000),
      "{% for " + Repeated("(", 5000) + " in x %}"};
  for (const std::string& walk : walks) sources.push_back(deep_value + walk);
  for (const std::string& walk : walks) {
    sources.push_back(deep_value + "{% macro f(ns, n) %}" + walk +
                      "{{ f(ns, n + 1) }}{% endmacro %}{{ f(ns, 0) }}");
  }
  for (const size_t bytes : {kSmallStackBytes, size_t{100 << 10}}) {
    for (const std::string& source : sources) {
      SCOPED_TRACE(source.substr(0, 300));
      ASSERT_TRUE(RunOnStack(bytes, [&] {
        const auto text = Render(source, "u", {.stack_bytes = 0});
        EXPECT_TRUE(text.ok() || !text.status().message().empty());
      }));
    }
  }
}

TEST(JinjaStackTest, TheErrorTellsWhatAndTheRemedy) {
  ASSERT_TRUE(RunOnStack(kSmallStackBytes, [] {
    const std::string why = Why("{% macro f() %}\n{{ f() }}{% endmacro %}{{ f() }}",
                                {.max_nesting = 100'000, .stack_bytes = 0});
    EXPECT_THAT(why, StartsWith("line 2: "));
    EXPECT_THAT(why, HasSubstr("macro"));
    EXPECT_THAT(why, HasSubstr("nested too deep"));
    EXPECT_THAT(why, HasSubstr("make it flatter"));
  }));
}

TEST(JinjaStackTest, AResultDoesNotDependOnTheThreadsStack) {
  for (const int levels : {1, 10, 50, 1000}) {
    const std::string source =
        "{% macro f(n) %}{% if n %}{% for x in [1] %}({{ f(n - 1) }}){% endfor %}{% endif %}"
        "{% endmacro %}{{ f(" +
        std::to_string(levels) + ") }}";
    const auto here = Render(source);
    absl::StatusOr<Text> there = absl::InternalError("did not run");
    // The template is parsed on the caller's stack, of which sanitizers take several times as much.
    constexpr size_t kBytes = (kFrameScale == 1 ? 1 : 8) * kSmallStackBytes;
    ASSERT_TRUE(RunOnStack(kBytes, [&] { there = Render(source); }));
    EXPECT_EQ(here.ok(), levels <= 50) << here.status();
    // Under a sanitizer the stack may end before the levels do.
    ASSERT_EQ(here.ok(), there.ok()) << there.status();
    if (kFrameScale == 1) {
      EXPECT_EQ(here.status(), there.status());
    }
    if (here.ok()) {
      EXPECT_EQ(here->bytes(), there->bytes());
    }
  }
}

TEST(JinjaBoundsTest, LimitsAreTheCallers) {
  EXPECT_THAT(Why("{{ 'aaaaaaaa' * 20 }}", {.max_bytes = 100}), HasSubstr("100 bytes"));
  EXPECT_THAT(Why("{% for i in range(50) %}xx{% endfor %}", {.max_bytes = 64}), HasSubstr("64"));
  EXPECT_THAT(Why("{% for i in range(50) %}xx{% endfor %}", {.max_steps = 60}),
              HasSubstr("60 steps"));
}

TEST(JinjaErrorsTest, NameLineAndConstruct) {
  EXPECT_EQ(Why("\n\n{% include 'x' %}"), "line 3: {% include %} is not supported");
  EXPECT_THAT(Why("{{ 1 | nonsense }}"), HasSubstr("the filter 'nonsense'"));
  EXPECT_THAT(Why("{{ 1 is nonsense }}"), HasSubstr("the test 'nonsense'"));
  EXPECT_THAT(Why("\n{{ user.x.y }}"), StartsWith("line 2: "));
  EXPECT_THAT(Why("{{ nothing.y }}"), HasSubstr("'nothing' is undefined"));
  EXPECT_THAT(Why("{{ user + 1 }}"), HasSubstr("'str' and 'int'"));
  EXPECT_THAT(Why("{% if user %}"), HasSubstr("{% endif %}"));
  EXPECT_THAT(Why("{{ user "), HasSubstr("no end"));
  EXPECT_THAT(Why("{{ user }"), HasSubstr("'}'"));
  EXPECT_THAT(Why("{% oops %}"), HasSubstr("'oops'"));
  EXPECT_THAT(Why("{{ [1].append(2) }}"), HasSubstr("cannot be changed"));
  EXPECT_EQ(Render("\xFF").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Template::Parse(std::string(Template::kMaxSourceBytes + 1, 'x')).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(JinjaErrorsTest, ATemplatesOwnWordsAreTold) {
  const auto text = Render("a\n{{ raise_exception('No ' + user + '!') }}", "pets");
  EXPECT_EQ(text.status(), absl::FailedPreconditionError("No pets!"));
}

TEST(JinjaJsonTest, ReadsWhatItWritesAndRefusesTheRest) {
  const std::string json = R"({"a": [1, -2.5, true, null, "é\n\u0001"], "b": {}})";
  EXPECT_EQ(ToJson(FromJson(json, kFromData).value(), {})->bytes(), json);
  EXPECT_FALSE(FromJson("{", kFromData).ok());
  EXPECT_FALSE(FromJson("18446744073709551615", kFromData).ok());
  EXPECT_FALSE(FromJson(std::string(100'000, '['), kFromData).ok());
  const std::string deepest = Repeated("[", kMaxJsonDepth) + Repeated("]", kMaxJsonDepth);
  EXPECT_TRUE(FromJson(deepest, kFromData).ok());
  EXPECT_FALSE(FromJson("[" + deepest + "]", kFromData).ok());
  EXPECT_FALSE(ToJson(Value(), {}).ok());
}

}  // namespace
}  // namespace withy::jinja
