"""An agent's loop with the official `openai` package, against a model that calls a tool and then says what it saw.

Usage: openai_agent.py BASE_URL API_KEY. Prints "ok" when everything is as OpenAI's API says.
"""
import json
import sys

import openai

TOOLS = [{"type": "function", "function": {
    "name": "look", "description": "Looks at something.",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}}}]
RULES = "You look before you speak. " * 60  # long enough for a conversation of its own


def look(at):
    return f"{at} is a cat"


def loop(client, messages):
    """Calls tools until the model answers. Returns the answer and the usages."""
    usages = []
    for _ in range(4):
        answer = client.chat.completions.create(model="target", messages=messages, tools=TOOLS, temperature=0,
                                                max_tokens=32)
        choice = answer.choices[0]
        usages.append(answer.usage)
        messages.append(choice.message)
        if not choice.message.tool_calls:
            assert choice.finish_reason == "stop", choice
            return choice.message.content, usages
        assert choice.finish_reason == "tool_calls", choice
        assert choice.message.content is None, choice
        for call in choice.message.tool_calls:
            assert call.type == "function" and call.id
            assert call.function.name == "look", call
            result = look(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    raise AssertionError("the model calls without end")


def agent(client):
    messages = [{"role": "system", "content": RULES}, {"role": "user", "content": "What is it?"}]
    answer, usages = loop(client, messages)
    assert answer == "It is a cat.", answer
    assert len(usages) == 2, usages
    # All but the markup around the result is known.
    cached = usages[1].prompt_tokens_details.cached_tokens
    assert cached >= usages[0].prompt_tokens, (cached, usages)
    messages.append({"role": "user", "content": "Are you sure?"})
    answer, more = loop(client, messages)
    assert answer == "It is a cat.", answer
    assert more[0].prompt_tokens_details.cached_tokens >= usages[1].prompt_tokens, more


def stream(client):
    """The same call in pieces."""
    name, arguments, text, reason, ids = "", "", "", None, set()
    with client.chat.completions.create(
            model="target", messages=[{"role": "user", "content": "What is it?"}], tools=TOOLS, temperature=0,
            max_tokens=32, stream=True) as chunks:
        for chunk in chunks:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reason = choice.finish_reason or reason
                for call in choice.delta.tool_calls or []:
                    assert call.index == 0
                    ids.add(call.id)
                    name += call.function.name or ""
                    arguments += call.function.arguments or ""
    assert text == "", text
    assert (name, json.loads(arguments), reason, len(ids)) == ("look", {"at": "it"}, "tool_calls", 1)


def without(client):
    """Without tools the same text is text."""
    for options in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = client.chat.completions.create(
            model="target", messages=[{"role": "user", "content": "What is it?"}], temperature=0, max_tokens=32,
            **options).choices[0]
        assert choice.finish_reason == "stop" and not choice.message.tool_calls, choice
        assert "<tool_call>" in choice.message.content, choice


def arguments(client):
    """Arguments reach the template: what it then writes ends otherwise, and so does the answer."""
    choice = client.chat.completions.create(
        model="target", messages=[{"role": "user", "content": "What is it?"}], temperature=0, max_tokens=4,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    plain = client.chat.completions.create(
        model="target", messages=[{"role": "user", "content": "What is it?"}], temperature=0, max_tokens=4)
    assert choice.usage.prompt_tokens > plain.usage.prompt_tokens


def refused(client):
    def must_name(word, **options):
        try:
            client.chat.completions.create(model="target", messages=[{"role": "user", "content": "hi"}], **options)
        except openai.BadRequestError as error:
            assert word in error.body["message"], error
            return
        raise AssertionError(f"a refusal that names {word} was expected")

    must_name("tool_choice", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "none_of_them"}})
    must_name("tool_choice", tool_choice="required")
    must_name("function.name", tools=[{"type": "function", "function": {"name": "two words"}}])
    must_name("messages", extra_body={"chat_template_kwargs": {"messages": []}})


def main():
    base_url, api_key = sys.argv[1:]
    client = openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=60)
    agent(client)
    stream(client)
    without(client)
    arguments(client)
    refused(client)
    print("ok")


if __name__ == "__main__":
    main()
