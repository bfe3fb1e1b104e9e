"""What an application does with Pydantic AI: text, streams, tools, and answers in a form by a tool, by a schema and by asking.
Over chat completions, Responses and Anthropic's Messages.

Usage: pydantic_ai_client.py BASE_URL API_KEY. Prints "ok" when everything is as Pydantic AI expects it.
"""
import asyncio

from asked import BRACE_BIAS, CALLED_TEXT, CALLING_TEXT, MODEL, QUESTION, Animal, Guess, address, expect_looked, look
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

GREEDY = {"temperature": 0}


async def streamed(agent):
    async with agent.run_stream(QUESTION) as result:
        return "".join([delta async for delta in result.stream_text(delta=True)]), await result.get_output()


def text(model, settings):
    agent = Agent(model, model_settings=settings, instructions="Be brief.")
    result = agent.run_sync(QUESTION)
    assert result.output == CALLING_TEXT, result
    assert result.usage.output_tokens > 0, result.usage
    assert asyncio.run(streamed(agent)) == (CALLING_TEXT, CALLING_TEXT)


def tools(model, settings):
    agent = Agent(model, model_settings=settings, tools=[look])
    first = agent.run_sync(QUESTION)
    assert first.output == CALLED_TEXT, first
    expect_looked(1)
    again = agent.run_sync("Are you sure?", message_history=first.all_messages())
    assert again.output == CALLED_TEXT, again
    assert asyncio.run(streamed(agent))[1] == CALLED_TEXT
    expect_looked(1)


def forms(model, settings, kinds):
    one = dict(settings, parallel_tool_calls=False)
    for kind in kinds:
        output = Agent(model, model_settings=one, output_type=kind(Animal)).run_sync(QUESTION).output
        assert isinstance(output, Animal), (kind, output)


def main():
    base_url, key = address()
    openai = OpenAIProvider(base_url=base_url, api_key=key)
    chat = OpenAIChatModel(MODEL, provider=openai)
    for model in (chat, OpenAIResponsesModel(MODEL, provider=openai)):
        text(model, GREEDY)
        tools(model, GREEDY)
        forms(model, GREEDY, (ToolOutput, NativeOutput))
    asking = Agent(chat, model_settings=dict(GREEDY, logit_bias=BRACE_BIAS), output_type=PromptedOutput(Guess))
    assert asking.run_sync(QUESTION).output == Guess()
    anthropic = AnthropicModel(MODEL, provider=AnthropicProvider(base_url=base_url.removesuffix("/v1"), api_key=key))
    settings = dict(GREEDY, max_tokens=200)
    text(anthropic, settings)
    tools(anthropic, settings)
    forms(anthropic, settings, (ToolOutput,))
    print("ok")


main()
