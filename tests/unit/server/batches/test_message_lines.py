"""Tests of lines of batches of messages: each is one line, in Anthropic's form."""

import io
import json
from typing import Any

import pytest

from jitney.server.batches.lines import LineCheck
from jitney.server.batches.message_batch_routes import _lines_of
from jitney.server.batches.message_lines import (
    MESSAGES,
    answered_message,
    refused_message,
    unrun_message,
)
from jitney.server.batches.rows import BatchStatus
from jitney.server.error_object import Refusal
from jitney.server.openai.replies import dump_json

ODD = 'a"\u2028\u0085\n'


def test_a_result_is_one_line() -> None:
    """Guards readers that split lines at other characters too."""
    message = dump_json({"text": ODD}).encode()
    done = answered_message(ODD, message, ["model"])
    wrong = refused_message(ODD, Refusal("cancelled", ODD), "req-1")
    unrun = unrun_message(ODD, BatchStatus.EXPIRED)
    for line in (done, wrong, unrun):
        assert len(line.decode().splitlines()) == 1
        assert json.loads(line)["custom_id"] == ODD
    found = json.loads(done)["result"]
    assert found == {"type": "succeeded", "ignored": ["model"], "message": {"text": ODD}}
    assert json.loads(wrong)["result"]["error"]["error"]["message"] == ODD
    assert json.loads(unrun)["result"] == {"type": "expired"}
    assert json.loads(answered_message("a", b"{}", ()))["result"] == {
        "type": "succeeded",
        "message": {},
    }


def test_the_lines_of_a_body_are_where_a_check_finds_them() -> None:
    """Guards a batch that a kill cut off: its input is read again, and gives the same lines."""
    params = {"text": ODD, "deep": [{"a": 1.5}, None]}
    names = ("a", "b", ODD)
    body = {"requests": [{"custom_id": name, "params": params} for name in names]}
    made = _lines_of(json.dumps(body).encode(), 1000)
    file: Any = io.BufferedReader(io.BytesIO(made.content))  # Any: as good as that of a real file
    check = LineCheck(MESSAGES, 1000, 1000, lambda name: False)
    part = check.check_part(file, 0, 0)
    assert part.lines == made.lines
    assert (part.read_bytes, part.read_lines) == (len(made.content), len(names))
    for each in made.lines:
        text = made.content[each.start : each.start + each.length]
        assert json.loads(text) == {"custom_id": each.custom_id, "params": params}


@pytest.mark.parametrize("line", [b"{}", b"x", b'{"custom_id":"a","params":[]}'])
def test_a_wrong_line_has_a_result_in_the_same_form(line: bytes) -> None:
    """Guards a smaller limit after a restart: whoever reads results finds one form."""
    check = LineCheck(MESSAGES, 1000, 1000, lambda name: False)
    file: Any = io.BufferedReader(io.BytesIO(line))  # Any: as above
    (found,) = check.check_part(file, 0, 0).lines
    assert found.reply is not None
    assert json.loads(found.reply)["result"]["type"] == "errored"
