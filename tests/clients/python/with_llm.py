"""Simon Willison's llm: its Python interface, and for leaving early its command line."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import checks
from checks import CITY_QUESTION, ENDLESS_TOKENS, MODEL, QUESTION, City

MODELS = f"""\
- model_id: served
  model_name: {MODEL}
  api_base: {checks.BASE_URL}
  api_key_name: jitney
  supports_schema: true
  supports_tools: true
- model_id: completing
  model_name: {MODEL}
  api_base: {checks.BASE_URL}
  api_key_name: jitney
  completion: true
- model_id: unknown
  model_name: gpt-0
  api_base: {checks.BASE_URL}
  api_key_name: jitney
"""
Path(os.environ["LLM_USER_PATH"], "extra-openai-models.yaml").write_text(MODELS, encoding="utf-8")

import llm  # noqa: E402 - it reads its list of models when it is imported


def ask(text: str, name: str = "served", **fields: Any) -> Any:
    given = {"stream": False, "temperature": 0, "max_tokens": 200, **fields}
    return llm.get_model(name).prompt(text, key=checks.KEY, **given)


def chat() -> None:
    reply = ask(QUESTION, max_tokens=16)
    assert reply.text()
    assert reply.usage().input > 0
    assert 0 < reply.usage().output <= 16


def stream() -> None:
    reply = ask(QUESTION, max_tokens=16, stream=True)
    assert sum(bool(text) for text in reply) > 1
    assert 0 < reply.usage().output <= 16


def tools() -> None:
    # There is no way to require a call, and what this model likes best is to copy the example of
    # a call that it is shown: a tool that bears the names of the example does get called.
    def FUNCTION(ARGUMENT: str) -> str:
        """Keep a city for later."""
        return f"{ARGUMENT} was kept"

    asked = ("Call keep_city for Rome.", "Call keep_city.", "Call keep_city for Paris.")
    replies = (ask(text, tools=[FUNCTION]) for text in asked)
    reply = next(each for each in replies if each.tool_calls())
    for result in reply.execute_tool_calls():
        assert result.name == "FUNCTION"
        assert result.output.endswith("was kept")
    again = reply.reply(stream=False, key=checks.KEY, temperature=0, max_tokens=8)
    assert again.usage().input > reply.usage().input


def json_schema() -> None:
    City.model_validate_json(ask(CITY_QUESTION, schema=City).text(), strict=True)


def logprobs() -> None:
    reply = ask("Once upon a time", "completing", max_tokens=6, logprobs=3, stream=True)
    assert reply.text()
    assert reply.response_json["logprobs"]


def error() -> None:
    with checks.raises(Exception, "model_not_found"):
        ask(QUESTION, "unknown").text()
    with checks.raises(Exception, "context_length_exceeded"):
        ask(checks.LONG_QUESTION).text()


def cancel() -> None:
    command = [sys.executable, "-m", "llm", "prompt", "-m", "served", "--key", checks.KEY]
    command += ["-o", "max_tokens", str(ENDLESS_TOKENS), "-o", "temperature", "0", "--no-log"]
    with checks.left_early():
        process = subprocess.Popen(
            [*command, "Count from 1 to 1000: 1, 2, 3, 4, 5,"], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)


checks.run("llm", chat, stream, tools, json_schema, logprobs, error, cancel)
