"""Tools and answers in a form with the official `anthropic` package.

Usage: anthropic_agent.py BASE_URL API_KEY. Prints "ok" when everything is as Anthropic's API says.
"""
import anthropic
from asked import CALLED_TEXT, MODEL, QUESTION, Animal, address, expect_looked, look

# This version of the package has no argument for the temperature, which the API has.
ASKED = {"model": MODEL, "max_tokens": 200, "extra_body": {"temperature": 0}}
TOOLS = [{"name": "look", "description": "Looks at something.",
          "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}}]


def loop(client, streamed):
    messages = [{"role": "user", "content": QUESTION}]
    for _ in range(3):
        if streamed:
            with client.messages.stream(**ASKED, messages=messages, tools=TOOLS, system="You look first.") as stream:
                answer = stream.get_final_message()
        else:
            answer = client.messages.create(**ASKED, messages=messages, tools=TOOLS, system="You look first.")
        messages.append({"role": "assistant", "content": answer.content})
        if answer.stop_reason != "tool_use":
            break
        results = [{"type": "tool_result", "tool_use_id": block.id, "content": look(**block.input)}
                   for block in answer.content if block.type == "tool_use"]
        messages.append({"role": "user", "content": results})
    assert answer.stop_reason == "end_turn" and answer.content[0].text == CALLED_TEXT, answer
    expect_looked(1)


def runner(client):
    """The package's own loop. It asks the server to hold the conversation, which no board does, and then sends all of it."""
    tool = anthropic.beta_tool(look)
    answers = list(client.beta.messages.tool_runner(**ASKED, messages=[{"role": "user", "content": QUESTION}], tools=[tool]))
    assert answers[-1].content[0].text == CALLED_TEXT, answers
    expect_looked(1)
    prompts = [answer.usage.input_tokens + answer.usage.cache_read_input_tokens for answer in answers]
    assert len(prompts) == 2 and prompts[1] > prompts[0], prompts


def chosen(client):
    """A named tool is called as its schema says."""
    tool = {"name": "saw", "input_schema": Animal.model_json_schema(), "strict": True}
    answer = client.messages.create(**ASKED, messages=[{"role": "user", "content": QUESTION}], tools=[tool],
                                    tool_choice={"type": "tool", "name": "saw"})
    Animal.model_validate(answer.content[0].input)


def forms(client):
    asked = dict(ASKED, messages=[{"role": "user", "content": QUESTION}], output_format=Animal)
    answer = client.messages.parse(**asked)
    assert isinstance(answer.parsed_output, Animal), answer
    with client.messages.stream(**asked) as stream:
        assert stream.get_final_message().parsed_output == answer.parsed_output


def main():
    base_url, key = address()
    client = anthropic.Anthropic(base_url=base_url.removesuffix("/v1"), api_key=key, max_retries=0)
    loop(client, streamed=False)
    loop(client, streamed=True)
    runner(client)
    chosen(client)
    forms(client)
    print("ok")


main()
