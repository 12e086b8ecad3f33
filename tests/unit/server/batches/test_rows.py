"""Tests of the lines of results: one line each, and the JSON that OpenAI's users expect."""

import json

from hypothesis import given
from hypothesis import strategies as st

from jitney.server.batches.rows import BatchStatus, answered_line, refused_line, unrun_line
from jitney.server.openai.replies import dump_json

TEXT = st.text(st.characters(codec="utf-8"), max_size=60)


@given(custom_id=TEXT, text=TEXT)
def test_a_result_is_one_line_of_json_for_every_reader(custom_id: str, text: str) -> None:
    """Guards readers that split at any line end: texts and ids may hold all of them."""
    body = dump_json({"text": text}).encode()
    line = answered_line(custom_id, 200, "req-1", body)
    assert len(line.decode().splitlines()) == 1
    made = json.loads(line)
    assert made["custom_id"] == custom_id
    assert made["response"] == {"status_code": 200, "request_id": "req-1", "body": {"text": text}}
    assert made["error"] is None
    refused = refused_line(7, custom_id, "code", text).decode()
    assert len(refused.splitlines()) == 1
    assert json.loads(refused)["error"] == {"code": "code", "message": text, "line": 7}


def test_a_line_that_was_not_run_says_why() -> None:
    """Guards whoever reads the error file after a cancel, or the next day."""
    for outcome, code in (
        (BatchStatus.EXPIRED, "batch_expired"),
        (BatchStatus.CANCELLED, "batch_cancelled"),
    ):
        made = json.loads(unrun_line(3, None, outcome))
        assert (made["custom_id"], made["response"]) == (None, None)
        assert made["error"]["code"] == code
        assert made["id"].startswith("batch_req_")
