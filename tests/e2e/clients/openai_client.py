"""What an application does with the official `openai` package, against withy's HTTP door.

Usage: openai_client.py BASE_URL API_KEY. Prints "ok" when everything is as OpenAI's API says.
"""
import sys
import threading
from array import array

import openai


def chat(client):
    """A whole answer, its usage, and log-probabilities."""
    answer = client.chat.completions.create(
        model="target", messages=[{"role": "user", "content": "tell me a story"}],
        max_tokens=8, temperature=0, logprobs=True, top_logprobs=2)
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length"), choice
    assert answer.usage.completion_tokens >= 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert len(choice.logprobs.content) >= 1
    assert len(choice.logprobs.content[0].top_logprobs) == 2
    return choice.message.content


def stream(client, whole):
    """The same answer in pieces, with the usage at the end and what withy decided and measured."""
    text, usage, reason, withy = "", None, None, {}
    with client.chat.completions.create(
            model="target", messages=[{"role": "user", "content": "tell me a story"}],
            max_tokens=8, temperature=0, stream=True, stream_options={"include_usage": True}) as chunks:
        for chunk in chunks:
            withy.update(getattr(chunk, "withy", None) or {})
            if chunk.usage:
                usage = chunk.usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reason = choice.finish_reason or reason
    assert text == whole, (text, whole)
    assert usage.completion_tokens >= 1
    assert reason in ("stop", "length")
    assert withy["decision"]["model_level_percent"] >= 1, withy
    assert withy["latency"]["measured"]["ttft_ms"] > 0, withy


def completion(client):
    answer = client.completions.create(model="target", prompt="once upon", max_tokens=4, temperature=0,
                                       extra_headers={"x-slo-ttft-ms": "60000"})
    assert answer.object == "text_completion"
    assert answer.usage.completion_tokens >= 1


def choices(client):
    """Several answers to a question, and to several prompts."""
    answer = client.chat.completions.create(
        model="target", messages=[{"role": "user", "content": "tell me a story"}], max_tokens=8, n=2, seed=1,
        presence_penalty=0.5, frequency_penalty=0.5, logit_bias={"5": -100})
    assert [choice.index for choice in answer.choices] == [0, 1], answer
    answer = client.completions.create(model="target", prompt=["once", "upon"], max_tokens=2)
    assert len(answer.choices) == 2 and answer.usage.completion_tokens >= 2, answer


def responses(client, whole):
    asked = {"model": "target", "input": "tell me a story", "max_output_tokens": 16, "temperature": 0}
    answer = client.responses.create(**asked)
    assert answer.output_text.startswith(whole), (answer, whole)
    assert answer.status in ("completed", "incomplete") and answer.usage.output_tokens >= 1, answer
    text, last = "", None
    for event in client.responses.create(**asked, stream=True):
        last = event
        if event.type == "response.output_text.delta":
            text += event.delta
    assert text == answer.output_text, (text, answer)
    assert last.response.output_text == text and last.type in ("response.completed", "response.incomplete")


def models(client):
    names = [model.id for model in client.models.list()]
    assert names
    assert client.models.retrieve(names[0]).id == names[0]


def embeddings(client):
    """The package asks for base64 unless it is told otherwise."""
    texts = ["a boat on a lake", "a boat on the lake"]
    encoded = client.embeddings.create(model="target", input=texts)
    plain = client.embeddings.create(model="target", input=texts, encoding_format="float")
    assert len(encoded.data) == 2 and encoded.usage.total_tokens > 4, encoded
    for one, other in zip(encoded.data, plain.data):
        # Decimal digits give the same number of 32 bits, which Python reads as one of 64.
        assert one.index == other.index and array("f", one.embedding) == array("f", other.embedding)
        assert abs(sum(value * value for value in one.embedding) - 1) < 1e-4
    tokens = client.embeddings.create(model="target", input=[[5, 6], [7]])
    assert tokens.usage.prompt_tokens == 3, tokens


def errors(client, base_url):
    def refused(kind, call):
        try:
            call()
        except kind as error:
            assert error.body["message"], error
            return
        raise AssertionError(f"{kind.__name__} was expected")

    hello = [{"role": "user", "content": "hello"}]
    refused(openai.NotFoundError, lambda: client.chat.completions.create(model="gpt-x", messages=hello))
    refused(openai.BadRequestError,
            lambda: client.chat.completions.create(model="target", messages=hello, n=9))
    refused(openai.BadRequestError,
            lambda: client.chat.completions.create(model="target", messages=[]))
    wrong = openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0)
    refused(openai.AuthenticationError, lambda: wrong.chat.completions.create(model="target", messages=hello))


def leave(client):
    """Closing a stream ends its call, and others go on."""
    chunks = client.chat.completions.create(
        model="target", messages=[{"role": "user", "content": "tell me a very long story"}],
        max_tokens=1000, temperature=0, stream=True)
    next(iter(chunks))
    chunks.close()


def many(client):
    answers = [None] * 6

    def ask(i):
        answers[i] = client.chat.completions.create(
            model="target", messages=[{"role": "user", "content": f"count to {i}"}], max_tokens=4)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(answers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(answer.choices for answer in answers)


def main():
    base_url, api_key = sys.argv[1:]
    client = openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=60)
    whole = chat(client)
    stream(client, whole)
    completion(client)
    choices(client)
    responses(client, whole)
    models(client)
    embeddings(client)
    errors(client, base_url)
    leave(client)
    many(client)
    print("ok")


if __name__ == "__main__":
    main()
