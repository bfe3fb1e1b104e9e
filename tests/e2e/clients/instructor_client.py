"""What an application does with `instructor`: answers in a form by each of its ways, whole, in pieces, and as a list.

Usage: instructor_client.py BASE_URL API_KEY. Prints "ok" when everything is as the package expects it.
"""
import instructor
import openai
from asked import BRACE_BIAS, MODEL, QUESTION, Animal, Guess, address

MESSAGES = [{"role": "user", "content": QUESTION}]
ASKED = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_retries": 0}


def main():
    base_url, key = address()
    client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=60)
    for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
        patched = instructor.from_openai(client, mode=mode)
        answer, completion = patched.chat.completions.create_with_completion(**ASKED, response_model=Animal)
        assert isinstance(answer, Animal), (mode, answer)
        assert completion.usage.completion_tokens > 0, completion
        *_, last = patched.chat.completions.create_partial(**ASKED, response_model=Animal)
        assert last.model_dump() == answer.model_dump(), (mode, last)
    # By asking for JSON alone: only that it is an object is kept to.
    patched = instructor.from_openai(client, mode=instructor.Mode.JSON)
    guess = patched.chat.completions.create(**ASKED, response_model=Guess, logit_bias=BRACE_BIAS)
    assert guess.kind == Guess().kind, guess
    print("ok")


main()
