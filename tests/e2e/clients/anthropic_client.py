"""What an application does with the official `anthropic` package, against withy's HTTP door.

Usage: anthropic_client.py BASE_URL API_KEY. Prints "ok" when everything is as Anthropic's API says.
"""
import sys

import anthropic

# This version of the package has no argument for the temperature, which the API has.
QUESTION = {"max_tokens": 8, "extra_body": {"temperature": 0}, "model": "target",
            "messages": [{"role": "user", "content": "tell me a story"}]}


def main():
    base_url, key = sys.argv[1:]
    client = anthropic.Anthropic(base_url=base_url.removesuffix("/v1"), api_key=key, max_retries=0)
    answer = client.messages.create(**QUESTION)
    assert answer.role == "assistant" and answer.stop_reason in ("max_tokens", "end_turn"), answer
    assert answer.usage.output_tokens >= 1
    with client.messages.stream(**QUESTION) as stream:
        text = "".join(stream.text_stream)
        whole = stream.get_final_message()
    assert text == answer.content[0].text == whole.content[0].text, (text, answer)
    assert whole.usage.output_tokens == answer.usage.output_tokens
    counted = client.messages.count_tokens(model="target", messages=QUESTION["messages"])
    assert counted.input_tokens > 0
    try:
        client.messages.create(**{**QUESTION, "model": "none"})
        raise AssertionError("an unknown model is answered")
    except anthropic.NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error", error.body
    print("ok")


main()
