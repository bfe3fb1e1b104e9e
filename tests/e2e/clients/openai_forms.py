"""Answers in a form with the official `openai` package: parsed answers of chat and Responses, tools of a schema, streams.

Usage: openai_forms.py BASE_URL API_KEY. Prints "ok" when everything is as OpenAI's API says.
"""
import json

import openai
from asked import BRACE_BIAS, CALLED_TEXT, MODEL, QUESTION, Animal, address, look

MESSAGES = [{"role": "user", "content": QUESTION}]
ASKED = {"model": MODEL, "messages": MESSAGES, "temperature": 0}
LOOK = {"type": "function", "name": "look", "description": "Looks at something.", "strict": True,
        "parameters": {"type": "object", "properties": {"at": {"enum": ["it"]}}, "required": ["at"], "additionalProperties": False}}


def parsed_chat(client):
    message = client.chat.completions.parse(**ASKED, response_format=Animal).choices[0].message
    assert isinstance(message.parsed, Animal) and message.refusal is None, message
    with client.chat.completions.stream(**ASKED, response_format=Animal) as stream:
        deltas = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion().choices[0].message
    assert deltas == message.content and final.parsed == message.parsed, (deltas, message)


def parsed_tool(client):
    tool = openai.pydantic_function_tool(Animal, name="saw")
    one = {"tools": [tool], "parallel_tool_calls": False}
    for choice in ("required", {"type": "function", "function": {"name": "saw"}}):
        message = client.chat.completions.parse(**ASKED, **one, tool_choice=choice).choices[0].message
        assert isinstance(message.tool_calls[0].function.parsed_arguments, Animal), message
    with client.chat.completions.stream(**ASKED, **one, tool_choice="required") as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    assert [event.name for event in done] == ["saw"] and isinstance(done[0].parsed_arguments, Animal), done


def json_object(client):
    answer = client.chat.completions.create(**ASKED, response_format={"type": "json_object"}, logit_bias=BRACE_BIAS)
    assert json.loads(answer.choices[0].message.content) == {}, answer


def parsed_response(client):
    asked = {"model": MODEL, "input": QUESTION, "temperature": 0}
    answer = client.responses.parse(**asked, text_format=Animal)
    assert isinstance(answer.output_parsed, Animal), answer
    with client.responses.stream(**asked, text_format=Animal) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_parsed == answer.output_parsed


def responses_loop(client):
    """A tool is called, in a stream and not, and its result is seen."""
    for streamed in (False, True):
        items = [{"role": "user", "content": QUESTION}]
        for _ in range(3):
            asked = {"model": MODEL, "input": items, "tools": [LOOK], "temperature": 0, "instructions": "You look first."}
            if streamed:
                with client.responses.stream(**asked) as stream:
                    kinds = [event.type for event in stream]
                    answer = stream.get_final_response()
                assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
            else:
                answer = client.responses.create(**asked)
            items += [item.to_dict(mode="json") for item in answer.output]
            calls = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                break
            for call in calls:
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": look(**json.loads(call.arguments))})
        assert answer.output_text == CALLED_TEXT, answer


def main():
    base_url, key = address()
    client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=60)
    parsed_chat(client)
    parsed_tool(client)
    json_object(client)
    parsed_response(client)
    responses_loop(client)
    print("ok")


main()
