"""What an application does with `litellm`, over OpenAI's chat completions and Responses and over Anthropic's Messages: text,
streams, tools, and answers in a form.

Usage: litellm_client.py BASE_URL API_KEY. Prints "ok" when everything is as the package expects it.
"""
import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # asks no other server

import litellm
from asked import CALLED_TEXT, CALLING_TEXT, MODEL, QUESTION, Animal, address, expect_looked, look

TOOLS = [{"type": "function", "function": {
    "name": "look", "description": "Looks at something.",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}}}]
SAW = {"type": "function", "function": {"name": "saw", "parameters": Animal.model_json_schema()}}


def text(asked):
    answer = litellm.completion(**asked, messages=[{"role": "user", "content": QUESTION}])
    assert answer.choices[0].message.content == CALLING_TEXT, answer
    assert answer.usage.completion_tokens > 0, answer
    chunks = list(litellm.completion(**asked, messages=[{"role": "user", "content": QUESTION}], stream=True,
                                     stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == CALLING_TEXT, chunks
    whole = litellm.stream_chunk_builder(chunks)
    assert whole.choices[0].finish_reason == "stop" and whole.usage.completion_tokens > 0, whole


def tools(asked):
    for streamed in (False, True):
        messages = [{"role": "system", "content": "You look first."}, {"role": "user", "content": QUESTION}]
        for _ in range(3):
            answer = litellm.completion(**asked, messages=messages, tools=TOOLS, stream=streamed)
            if streamed:
                answer = litellm.stream_chunk_builder(list(answer))
            message = answer.choices[0].message
            messages.append(message.model_dump())
            if not message.tool_calls:
                break
            assert answer.choices[0].finish_reason == "tool_calls", answer
            for call in message.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": look(**json.loads(call.function.arguments))})
        assert message.content == CALLED_TEXT, answer
        expect_looked(1)
    called = litellm.completion(**asked, messages=[{"role": "user", "content": QUESTION}], tools=[SAW],
                                tool_choice={"type": "function", "function": {"name": "saw"}}).choices[0].message.tool_calls[0]
    Animal.model_validate_json(called.function.arguments)


def form(asked):
    answer = litellm.completion(**asked, messages=[{"role": "user", "content": QUESTION}], response_format=Animal)
    Animal.model_validate_json(answer.choices[0].message.content)


def responses(asked):
    answer = litellm.responses(**asked, input=QUESTION)
    assert answer.output[0].content[0].text == CALLING_TEXT, answer
    events = list(litellm.responses(**asked, input=QUESTION, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == CALLING_TEXT, events


def main():
    base_url, key = address()
    openai = {"model": f"openai/{MODEL}", "api_base": base_url, "api_key": key, "temperature": 0, "max_retries": 0}
    text(openai)
    tools(openai)
    form(openai)
    responses(openai)
    anthropic = dict(openai, model=f"anthropic/{MODEL}", api_base=base_url.removesuffix("/v1"), max_tokens=200)
    text(anthropic)
    tools(anthropic)
    print("ok")


main()
