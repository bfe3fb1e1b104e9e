"""What a user does with the command `llm`: a model of its configuration file, asked for text, streams, tools, and answers in a
form; and a conversation that goes on.

Usage: llm_client.py BASE_URL API_KEY. Prints "ok" when everything is as the command expects it.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from asked import CALLED_TEXT, CALLING_TEXT, MODEL, QUESTION, Animal, address

TOOL = '''
def look(at: str) -> str:
    "Looks at something."
    assert at == "it", at
    return "a cat"
'''


class Command:
    def __init__(self, directory, base_url, key):
        self.environment = dict(os.environ, LLM_USER_PATH=str(directory))
        (directory / "keys.json").write_text(json.dumps({"board": key}))
        (directory / "extra-openai-models.yaml").write_text(json.dumps([{
            "model_id": "board", "model_name": MODEL, "api_base": base_url, "api_key_name": "board", "supports_tools": True,
            "supports_schema": True}]))

    def ask(self, *words):
        """The command's output."""
        done = subprocess.run([sys.executable, "-m", "llm", "prompt", "-m", "board", "-o", "temperature", "0", *words],
                              env=self.environment, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def main():
    base_url, key = address()
    with tempfile.TemporaryDirectory() as directory:
        command = Command(pathlib.Path(directory), base_url, key)
        assert command.ask(QUESTION) == CALLING_TEXT
        assert command.ask(QUESTION, "--no-stream", "--system", "Be brief.") == CALLING_TEXT
        assert command.ask("Are you sure?", "--continue") == CALLING_TEXT
        for options in ((), ("--no-stream",)):
            assert command.ask(QUESTION, "--functions", TOOL, *options) == CALLED_TEXT
            Animal.model_validate_json(command.ask(QUESTION, "--schema", json.dumps(Animal.model_json_schema()), *options))
    print("ok")


main()
