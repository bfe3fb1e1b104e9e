#!/usr/bin/env python3
"""What jinja2 makes of chat templates, in the settings of transformers, as JSON for the tests.

    jinja_reference.py cases                      the stored cases (tests/chat/cases.json)
    jinja_reference.py expressions SEED COUNT     random expressions
    jinja_reference.py chats SEED COUNT FILE...   random chats for each template

A case is {"template" or "file", "context", "output"}, or "refused": the error that jinja2 has.
Needs jinja2; the tests read the stored cases without it.
"""
import datetime
import json
import pathlib
import random
import sys
import warnings

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

HERE = pathlib.Path(__file__).parent
warnings.filterwarnings("ignore")
NOW = datetime.datetime(2026, 11, 26, 21, 5, 9)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_same")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


ENV = environment()


def case(template, context, file=None):
    result = {"file": file} if file else {"template": template}
    result["context"] = context
    try:
        # A copy: some filters add to a list that they are given.
        result["output"] = ENV.from_string(template).render(**json.loads(json.dumps(context)))
    except Exception as error:  # whatever jinja2 and Python's operators raise
        result["refused"] = f"{type(error).__name__}: {error}"[:100]
    return result


WORDS = ["", " ", "Hi", "hello there", "  spaced  ", "\n\nlines\nof\ntext\n", "größer", "naïve café", "日本語", "😀 ok",
         "a \"quoted\" 'word'", "back\\slash", "tab\there", "<think>\nwhy?\n</think>\n\nBecause.", "</think>", "{{ 1 }}",
         "{% if %}", "<|over|>", "[/ASK]", "x" * 70, "42", "-3.5", "True", "None", "end\r\nof line", "ÀÉÎ", "ß", "a-b c_d"]
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Weather of a place.\nToday's.", "parameters": {
        "type": "object", "properties": {"place": {"type": "string", "description": "Where"}, "days": {"type": "integer"}},
        "required": ["place"]}, "return": {"type": "number"}}},
    {"type": "function", "function": {"name": "lamp", "description": "", "parameters": {
        "type": "object", "properties": {
            "on": {"type": "boolean"}, "rooms": {"type": "array", "items": {"type": "string"}},
            "extra": {"type": ["string", "null"]}, "map": {"type": "object", "additionalProperties": {"type": "number"}}},
        "required": ["on", "rooms"]}}},
]


def say(rng):
    return rng.choice(WORDS) if rng.random() < 0.7 else " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 4)))


def chat(rng, orderly=False):
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": say(rng)})
    for turn in range(rng.randint(0 if not orderly else 1, 4)):
        messages.append({"role": "user", "content": say(rng)})
        if rng.random() < 0.25:
            call_id = "".join(rng.choice("abcdef123") for _ in range(rng.choice([9, 9, 9, 5])))
            arguments = {"place": say(rng), "days": rng.randint(0, 9)}
            messages.append({"role": "assistant", "content": rng.choice([None, "", "let me see"]), "tool_calls": [
                {"id": call_id, "type": "function", "function": {
                    "name": "weather", "arguments": rng.choice([arguments, json.dumps(arguments)])}}
                for _ in range(rng.choice([1, 1, 2]))]})
            messages.append({"role": "tool", "name": "weather", "tool_call_id": call_id, "content": say(rng)})
        if turn or rng.random() < 0.8 or orderly:
            messages.append({"role": "assistant", "content": say(rng)})
        if rng.random() < 0.1:
            messages.append({"role": rng.choice(["system", "developer"]), "content": say(rng)})
    if rng.random() < 0.7 or not messages:
        messages.append({"role": "user", "content": say(rng)})
    if not orderly and rng.random() < 0.1:
        rng.shuffle(messages)
    return messages


def context(rng):
    made = {"messages": chat(rng), "add_generation_prompt": rng.random() < 0.6, "bos_token": "<s>", "eos_token": "</s>"}
    made["tools"] = rng.sample(TOOLS, rng.randint(1, 2)) if rng.random() < 0.35 else None
    if rng.random() < 0.2:
        made["enable_thinking"] = rng.random() < 0.5
    if rng.random() < 0.4:
        made["documents"] = [{"title": say(rng), "text": say(rng) * 3} for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.1:
        made["tools_in_first_turn"] = False
    return made


def stored_cases():
    rng = random.Random(33)
    cases = []
    for path in sorted((HERE / "templates").glob("*.jinja")):
        cases += [case(path.read_text(), context(rng), path.name) for _ in range(16)]
    cases += [case(text, {}) for text in WHITE_SPACE + SEMANTICS]
    cases += [case(Expressions(rng).template(), VALUES) for _ in range(200)]
    return cases


WHITE_SPACE = [
    "a\n  {% if true %}\n  b\n  {% endif %}\nc", "a {%- if true -%} b {%- endif -%} c", "x\n\n{{ 1 }}\n\n", "{{ 1 }}\n",
    "a\r\nb\r\n", "  {#- c -#}  x  {# d #}\n  y", "{% set x = 1 %}\n{{ x }}", "\t{% set x = 1 +%}\n{{ x }}", "  {%+ if true %}x{% endif %}",
    "{% raw %}\n {{ x }} {% endraw %}\n y", "{%- raw -%}  z  {%- endraw -%}  y", "a\n{# one #}\nb\n  {# two #}  \nc", "{{- 'a' -}}  b",
    "{% for i in [1,2] %}\n  {{ i }}\n{% endfor %}\nx", "{{ '{%' }} {{ \"}}\" }}", "  {{ 'a' }}\n  {% if 1 %}b{% endif %}\n", "{{ {'a': {'b': 1}}['a']['b'] }}",
    "a\u00a0{%- if 1 %}b{% endif %}", "\n\n{%- if 1 %}\n\nb{% endif %}", "{% if 1 -%}\n\n  b\n\n{%- else -%} c {%- endif %}",
]
SEMANTICS = [
    "{% for i in range(5) if i % 2 %}{{ loop.index }}{{ i }}{{ ',' if not loop.last }}{% else %}none{% endfor %}",
    "{% for i in [] %}x{% else %}empty{% endfor %}", "{% for a, b in {'x': 1, 'y': 2}.items() %}{{ a }}{{ b }}{% endfor %}",
    "{% for (a, (b, c)) in [(1, (2, 3))] %}{{ a + b + c }}{% endfor %}", "{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(x=1) %}{% for i in [1,2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% set a, b = 1, 'z' %}{{ b }}{{ a }}",
    "{% if x is defined %}a{% elif y is undefined %}b{% else %}c{% endif %}", "{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m(b=1) }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}", "{{ [1, 2, 3, 4][1:3] }}{{ 'abcdef'[::-2] }}{{ [1,2,3][-1] }}{{ 'abc'[5:] }}",
    "{{ 1 + 2 * 3 ** 2 // 4 % 3 - 1 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** -1 }} {{ 1e3 }} {{ 1.0 }} {{ 0.1 + 0.2 }} {{ 1e20 }} {{ 1.5e-7 }}",
    "{{ 'a' ~ 1 ~ none ~ true ~ [1] ~ 1.0 }}", "{{ 1 < 2 < 3 }}{{ 1 < 2 > 3 }}{{ 'a' in 'abc' }}{{ 2 not in [1] }}{{ 'k' in {'k': 1} }}{{ 1 == 1.0 }}{{ true == 1 }}",
    "{{ 'x' if false }}|{{ none or 'd' }}|{{ 0 or [] or 'z' }}|{{ 1 and 'q' }}|{{ not none }}", "{{ undefined_thing }}|{{ undefined_thing | default('d') }}|{{ '' | default('e', true) }}",
    "{{ undefined_thing.x }}", "{{ {}.missing.more }}", "{{ raise_exception('no') }}", "{{ strftime_now('%Y-%m-%d %H:%M:%S %A %j') }}",
    "{{ 'a,b,,c'.split(',') }}{{ ' a  b '.split() }}{{ 'a,b,c'.split(',', 1) }}{{ 'a.b.c'.rsplit('.', 1) }}", "{{ 'a\\tb\\x41\\u00e9\\'q' }}",
    "{{ 'Hello World'.title() }}{{ \"they're bill's\".title() }}{{ \"they're (bill's)\" | title }}{{ 'hELLO'.capitalize() }}{{ 'ß'.upper() }}",
    "{{ 'abc'.find('c') }}{{ 'abcabc'.rfind('b') }}{{ 'abc'.index('a') }}{{ 'aXbX'.count('X') }}{{ '-'.join(['a','b']) }}{{ 'a1'.isalnum() }}{{ '12'.isdigit() }}",
    "{{ 'xxabcxx'.strip('x') }}|{{ '  a '.lstrip() }}|{{ ' a  '.rstrip() }}|{{ 'aab'.lstrip('a') }}|{{ 'prefix-x'.removeprefix('prefix-') }}|{{ 'x.py'.removesuffix('.py') }}",
    "{{ 'abc'.startswith(('x', 'a')) }}{{ 'abc'.endswith('bc') }}{{ 'a-b'.partition('-') }}{{ 'a-b-c'.rpartition('-') }}{{ 'one\\ntwo\\r\\nthree'.splitlines() }}",
    "{{ '{} and {}'.format(1, 'b') }}{{ '{1}{0}'.format('a', 'b') }}{{ '%s=%d' % ('x', 3) }}{{ '%s' % 'y' }}{{ '7'.zfill(3) }}", "{{ {'b': 1, 'a': 2} | dictsort }}{{ {'b': 1, 'a': 2} | dictsort(by='value') }}",
    "{{ [3, 1, 2] | sort }}{{ ['b', 'A', 'c'] | sort }}{{ [1, 2, 3] | sum }}{{ [1, 5, 2] | max }}{{ [] | first }}{{ [1,1,2] | unique | list }}{{ [1,2,3,4,5] | batch(2) | list }}",
    "{{ [{'r': 'a', 'n': 1}, {'r': 'b'}] | selectattr('n') | list }}{{ [{'r': 'a'}, {'r': 'b'}] | rejectattr('r', 'equalto', 'a') | map(attribute='r') | list }}",
    "{{ [1, none, 'a', ''] | select | list }}{{ [1, 2, 3] | reject('odd') | list }}{{ ['a', 'b'] | map('upper') | join('-') }}{{ [{'a': {'b': 3}}] | map(attribute='a.b') | list }}",
    "{{ 'line1\\nline2\\n\\nline4' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\n\\nb' | indent('> ', blank=true) }}", "{{ '<a href=\"x\">&\\'' | e }}{{ 'x' | safe }}",
    "{{ {'a': [1, {'b': none}], 'c': 'é\\n'} | tojson(indent=2) }}{{ [] | tojson(indent=2) }}{{ {} | tojson }}{{ [1.0, 1e30, true] | tojson }}{{ {'b':1,'a':2} | tojson(sort_keys=true, separators=(',', ':')) }}",
    "{{ '3.7' | int }}{{ 'x' | int(9) }}{{ '2.5' | float }}{{ 3.7 | int }}{{ 2.567 | round(2) }}{{ 2.5 | round }}{{ 2.1 | round(method='ceil') }}{{ -3 | abs }}{{ 5 | string }}",
    "{{ 'a' is string }}{{ 1 is number }}{{ 1.0 is float }}{{ true is integer }}{{ {} is mapping }}{{ [] is iterable }}{{ 'x' is sequence }}{{ none is none }}{{ 4 is divisibleby 2 }}{{ 3 is odd }}{{ 'a' is in ['a'] }}{{ 1 is sameas 1 }}",
    "{{ [1, 2] + [3] }}{{ 'ab' * 3 }}{{ [0] * 2 }}{{ (1,) }}{{ () }}{{ (1, 'a') }}{{ {'a': 'b', 1: none} }}{{ 'it\\'s' }}{{ ['it\\'s', 'say \"x\"', 'both \\' \"', 'new\\nline'] }}",
    "{% for x in [1,2,3,4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% set x %}a{{ 1 }}{% endset %}{{ x }}{% set y | upper | trim %} q {% endset %}{{ y }}", "{% filter upper | replace('A', 'b') %}abc{% endfilter %}", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}",
    "{% macro w() %}<{{ caller() }}>{% endmacro %}{% call w() %}in{% endcall %}", "{% macro w(x) %}<{{ caller(x, 2) }}>{% endmacro %}{% call(a, b) w(1) %}{{ a }}{{ b }}{% endcall %}",
    "{{ [1,2].append(3) }}", "{{ {}.update({}) }}", "{{ 1 + 'a' }}", "{{ 'a' + none }}", "{{ none | length }}", "{{ [1][5] }}", "{{ none.x }}", "{{ 'abc' | length }}{{ '日本' | length }}{{ 'a' | list }}{{ 'abc' | first }}{{ 'abc' | last }}{{ 'abc' | reverse }}",
    "{{ '%02d|%5.1f|%-4s|%x|%r|%%|%3d' % (3, 2.25, 'ab', 255, 'q', -7) }}{{ '%05d' | format(-42) }}{{ '%.2s' % 'äöü' }}",
    "{% generation %}{% set q = 1 %}x{{ q }}{% endgeneration %}{{ q }}", "{{ dict(a=1, b=2) }}{{ dict({'x': 1}).get('x') }}{{ {'a': 1}.get('b', 'd') }}{{ {'a': 1}.keys() | list }}{{ {'a': 1}.values() | list }}",
    "{% if true %}{% set z = 5 %}{% endif %}{{ z }}", "{% set f = 'g' %}{% macro h() %}{{ f }}{% endmacro %}{% set f = 'i' %}{{ h() }}", "{{ range(3) | list }}{{ range(5, 0, -2) | list }}", "{{ 5 is not none and 3 in [3] }}",
    "{{ 'a' 'b' \"c\" }}", "{{ [1, 2, 3,] }}{{ {'a': 1,} }}", "{{ -2 ** 2 }}{{ not true or true }}{{ 1 if 0 else 2 if 0 else 3 }}", "{{ 'x' | upper ~ 'y' | upper }}", "{{ 1 is defined }}{{ (1, 2) | length }}{{ a.b is defined }}",
    "{{ 'Ab' is upper }}{{ 'ab' is lower }}{{ [1] is eq [1] }}{{ 3 is gt 2 }}{{ none is not none }}{{ '' is string }}", "{{ x.y }}", "{{ messages[0] }}", "{% for c in 'añb' %}[{{ c }}]{% endfor %}", "{% for k in {'a': 1, 'b': 2} %}{{ k }}{% endfor %}",
]
VALUES = {"n": 7, "z": 0, "neg": -4, "f": 2.5, "s": "Hello, World", "e": "", "u": "Größe 日本 ", "w": "  padded\n", "t": True, "no": False, "nil": None,
          "l": [3, 1, 2], "m": ["b", "A", "c d"], "o": [], "d": {"b": 1, "a": "x", "c": [1, 2]}, "h": [{"role": "user", "content": " a "}, {"role": "assistant", "content": "b<x>"}]}


class Expressions:
    """Random expressions over VALUES, of which many are errors."""

    FILTERS = ["trim", "upper", "lower", "title", "capitalize", "length", "first", "last", "tojson", "default('d')", "default('d', true)", "list", "string", "int", "float",
               "reverse", "join('-')", "sort", "unique | list", "items | list", "dictsort", "replace('l', 'L')", "indent(2)", "abs", "round", "sum", "min", "max", "e",
               "map('upper') | list", "map(attribute='role') | list", "select('string') | list", "reject('none') | list", "selectattr('role', 'equalto', 'user') | list", "tojson(indent=2)", "batch(2) | list"]
    TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "iterable", "sequence", "true", "false", "odd", "even", "in [1, 'a', none]",
             "equalto(7)", "ne 0", "gt 1", "divisibleby(2)", "upper", "lower", "sameas none"]
    METHODS = ["strip()", "lstrip()", "rstrip()", "upper()", "lower()", "title()", "capitalize()", "split()", "split('l')", "split(',', 1)", "replace('l', 'LL')", "startswith('H')", "endswith('d')",
               "items() | list", "keys() | list", "values() | list", "get('a')", "get('q', 1)", "find('o')", "count('l')", "splitlines()", "isdigit()", "isupper()", "index('l')", "rsplit('o', 1)", "strip('Hd')", "partition(',')", "join(['1', '2'])", "zfill(4)"]

    def __init__(self, rng):
        self.rng = rng

    def atom(self):
        rng = self.rng
        return rng.choice([lambda: rng.choice(list(VALUES) + ["nothing"]), lambda: str(rng.randint(-3, 12)), lambda: rng.choice(["1.5", "0.1", "1e16", "'a'", "'l'", "''", "\"it's\"", "true", "none", "[]", "{}"]),
                           lambda: "[" + ", ".join(self.any(1) for _ in range(rng.randint(0, 3))) + "]", lambda: "{'k': " + self.any(1) + ", 'a': 2}", lambda: "(" + self.any(1) + ", 1)"])()

    def any(self, depth):
        rng = self.rng
        if depth <= 0:
            return self.atom()
        below = lambda: self.any(depth - 1)
        return rng.choice([
            self.atom, lambda: f"({below()} {rng.choice(['+', '-', '*', '/', '//', '%', '~', '~', '+'])} {below()})",
            lambda: f"({below()} {rng.choice(['==', '!=', '<', '<=', '>', '>=', 'in', 'not in'])} {below()})", lambda: f"({below()} {rng.choice(['and', 'or'])} {below()})",
            lambda: f"(not {below()})", lambda: f"({below()} if {below()} else {below()})", lambda: f"({below()}) | {rng.choice(self.FILTERS)}", lambda: f"({below()}) is {rng.choice(['', 'not '])}{rng.choice(self.TESTS)}",
            lambda: f"({below()}).{rng.choice(self.METHODS)}", lambda: f"({below()})[{rng.choice(['0', '-1', '1', below()])}]", lambda: f"{rng.choice(['s', 'u', 'w', 'l', 'm', 'h'])}{rng.choice(['[1:]', '[:-1]', '[::-1]', '[1:3]', '[-2:]', '[::2]'])}",
            lambda: f"({below()}).{rng.choice(['a', 'role', 'content', 'k', 'missing'])}"])()

    def template(self):
        rng = self.rng
        return rng.choice([
            lambda: "{{ " + self.any(3) + " }}", lambda: "{{ " + self.any(2) + " }}", lambda: "{% if " + self.any(2) + " %}yes{% else %}no{% endif %}",
            lambda: "{% for x in " + self.any(2) + " %}{{ loop.index }}{{ x }}{{ ', ' if not loop.last }}{% else %}-{% endfor %}", lambda: "{% set v = " + self.any(2) + " %}{{ v }}|{{ v | tojson }}",
            lambda: "{{ [" + self.any(2) + "] }}"])()


def main():
    kind, *arguments = sys.argv[1:]
    if kind == "cases":
        cases = stored_cases()
    elif kind == "expressions":
        rng = random.Random(int(arguments[0]))
        cases = [case(Expressions(rng).template(), VALUES) for _ in range(int(arguments[1]))]
    elif kind == "chats":
        rng = random.Random(int(arguments[0]))
        cases = [case(pathlib.Path(file).read_text(), context(rng)) for file in arguments[2:] for _ in range(int(arguments[1]))]
    else:
        sys.exit(__doc__)
    print("[")
    print(",\n".join(json.dumps(c, ensure_ascii=False) for c in cases))
    print("]")


if __name__ == "__main__":
    main()
