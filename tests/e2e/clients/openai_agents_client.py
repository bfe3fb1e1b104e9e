"""What an application does with the `openai-agents` package, over chat completions and over Responses: text, streams, tools,
and answers in a form.

Usage: openai_agents_client.py BASE_URL API_KEY. Prints "ok" when everything is as the package expects it.
"""
import asyncio

from agents import (Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool,
                    set_tracing_disabled)
from asked import CALLED_TEXT, CALLING_TEXT, MODEL, QUESTION, Animal, address, expect_looked, look
from openai import AsyncOpenAI

GREEDY = ModelSettings(temperature=0)


async def stream(agent):
    result = Runner.run_streamed(agent, QUESTION)
    text = ""
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
    return text, result.final_output


async def agents_of(model):
    plain = Agent(name="plain", instructions="Be brief.", model=model, model_settings=GREEDY)
    result = await Runner.run(plain, QUESTION)
    assert result.final_output == CALLING_TEXT, result
    assert await stream(plain) == (CALLING_TEXT, CALLING_TEXT)

    looking = Agent(name="looking", instructions="You look first.", model=model, model_settings=GREEDY, tools=[function_tool(look)])
    result = await Runner.run(looking, QUESTION)
    assert result.final_output == CALLED_TEXT, result
    expect_looked(1)
    again = await Runner.run(looking, result.to_input_list() + [{"role": "user", "content": "Are you sure?"}])
    assert again.final_output == CALLED_TEXT, again
    assert await stream(looking) == (CALLED_TEXT, CALLED_TEXT)
    expect_looked(1)

    telling = Agent(name="telling", model=model, model_settings=GREEDY, output_type=Animal)
    result = await Runner.run(telling, QUESTION)
    assert isinstance(result.final_output, Animal), result


async def main():
    base_url, key = address()
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=60)
    await agents_of(OpenAIChatCompletionsModel(model=MODEL, openai_client=client))
    await agents_of(OpenAIResponsesModel(model=MODEL, openai_client=client))
    print("ok")


asyncio.run(main())
