"""What an application does with LangChain's `ChatOpenAI`, over chat completions and over Responses: text, streams, tools, and
answers in a form by each of its three methods.

Usage: langchain_client.py BASE_URL API_KEY. Prints "ok" when everything is as LangChain expects it.
"""
from asked import BRACE_BIAS, CALLED_TEXT, CALLING_TEXT, MODEL, QUESTION, Animal, Guess, address, expect_looked, look
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


def text(model):
    answer = model.invoke(QUESTION)
    assert answer.text == CALLING_TEXT, answer
    assert answer.usage_metadata["output_tokens"] > 0, answer
    pieces = list(model.stream([SystemMessage("Be brief."), HumanMessage(QUESTION)]))
    assert "".join(piece.text for piece in pieces) == CALLING_TEXT, pieces
    assert sum(piece.usage_metadata["output_tokens"] for piece in pieces if piece.usage_metadata) > 0, pieces
    assert [answer.text for answer in model.batch([QUESTION, QUESTION])] == [CALLING_TEXT] * 2


def tools(model):
    known = tool(look)
    bound = model.bind_tools([known])
    for streamed in (False, True):
        messages = [HumanMessage(QUESTION)]
        for _ in range(3):
            if streamed:
                answer = None
                for piece in bound.stream(messages):
                    answer = piece if answer is None else answer + piece
            else:
                answer = bound.invoke(messages)
            messages.append(answer)
            if not answer.tool_calls:
                break
            messages += [known.invoke(call) for call in answer.tool_calls]
        assert answer.text == CALLED_TEXT, messages
        expect_looked(1)


def forms(model):
    for method in ("json_schema", "function_calling"):
        for strict in (None, True):
            answer = model.with_structured_output(Animal, method=method, strict=strict).invoke(QUESTION)
            assert isinstance(answer, Animal), (method, answer)
    as_dict = model.with_structured_output(Animal.model_json_schema(), method="json_schema").invoke(QUESTION)
    Animal.model_validate(as_dict)
    assert list(model.with_structured_output(Animal, method="json_schema").stream(QUESTION))[-1] == Animal.model_validate(as_dict)


def json_mode(base_url, key):
    model = ChatOpenAI(model=MODEL, base_url=base_url, api_key=key, temperature=0, max_retries=0, logit_bias=BRACE_BIAS)
    answer = model.with_structured_output(Guess, method="json_mode").invoke(QUESTION)
    assert answer == Guess(), answer


def main():
    base_url, key = address()
    for responses in (False, True):
        model = ChatOpenAI(model=MODEL, base_url=base_url, api_key=key, temperature=0, max_retries=0, timeout=60,
                           stream_usage=True, use_responses_api=responses)
        text(model)
        tools(model)
        forms(model)
    json_mode(base_url, key)
    print("ok")


main()
