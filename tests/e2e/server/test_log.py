"""The log: one line for each HTTP request, from which its request can be found."""

import logging

import pytest

from jitney.config import Key
from jitney.errors import ModelError
from tests.e2e.server.harness import World, running, wait_until


@pytest.mark.parametrize("streams", [False, True])
def test_a_line_names_the_key_the_reply_and_its_tokens(
    caplog: pytest.LogCaptureFixture, streams: bool
) -> None:
    """Guards the way from a slow line to the page: who asked, for what, and how much it was."""
    caplog.set_level(logging.INFO, "jitney.server")
    with running(World(keys=(Key(name="shop", secret="a-key"),))) as server:
        body = {"prompt": "hello", "max_tokens": 5, "request_id": "order-7", "stream": streams}
        headers = {"authorization": "Bearer a-key", "x-request-id": "http-1"}
        assert server.post("/v1/completions", body, **headers).status_code == 200

        def lines() -> list[str]:
            return [each for each in caplog.messages if each.startswith("http-1 ")]

        # The line is written after the last byte, so a caller may be quicker.
        wait_until(lambda: len(lines()) == 1, "nothing was logged")
        (line,) = lines()
        assert " key='shop' " in line
        assert " id='cmpl-order-7' " in line
        assert line.endswith("+5")
        shown = server.get("/page/state?requests=true", **headers).json()["requests"]
        assert shown[0]["request"].startswith("cmpl-order-7")


def test_what_has_no_key_and_no_reply_has_no_words_for_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Guards a line about a path that makes nothing."""
    caplog.set_level(logging.INFO, "jitney.server")
    with running(World()) as server:
        server.get("/v1/models", **{"x-request-id": "http-2"})
        wait_until(lambda: any("http-2 " in each for each in caplog.messages), "nothing was logged")
    (line,) = (each for each in caplog.messages if each.startswith("http-2 "))
    assert line.endswith(" ms")


def test_the_log_says_what_a_caller_is_not_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards operators: the caller reads that the model is at fault, and the log says how."""

    def fail(*_: object, **__: object) -> None:
        raise ModelError("The template divides by zero.")

    with running(World()) as server:
        monkeypatch.setattr(server.service.template, "chat", fail)
        messages = [{"role": "user", "content": "Hello"}]
        reply = server.post("/v1/chat/completions", {"messages": messages})
    assert reply.status_code == 400
    assert "zero" not in reply.text
    assert any("divides by zero" in each for each in caplog.messages)
