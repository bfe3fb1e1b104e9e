"""What the scripts of this folder ask the model of calling_model.h, and what it answers: it calls `look`, and once it has the
result, it says what it saw. Without tools it says the call as text.
"""
import sys
from typing import Literal

import pydantic

QUESTION = "What is it?"
CALLING_TEXT = '<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>'
CALLED_TEXT = "It is a cat."
MODEL = "target"


class Animal(pydantic.BaseModel):
    """What was seen."""
    kind: Literal["cat", "dog"]
    tame: bool
    legs: Literal[2, 4]


class Guess(pydantic.BaseModel):
    """What `{}` is, too."""
    kind: str = "cat"


# The likeliest token is a closing brace, so that an object of any form ends.
BRACE_BIAS = {str(ord("}")): 100}


def look(at: str) -> str:
    """Looks at something."""
    assert at == "it", at
    LOOKED.append(at)
    return "a cat"


# What was looked at.
LOOKED = []


def expect_looked(times):
    """Fails unless look() was called so often since it was asked last."""
    assert LOOKED == ["it"] * times, LOOKED
    LOOKED.clear()


def address():
    """Base URL and key, which the test gives."""
    base_url, key = sys.argv[1:]
    return base_url, key
