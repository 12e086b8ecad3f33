"""Lines of batches of Anthropic's messages, in its form: of inputs and of results. Any thread.

Such a batch is one of `MESSAGES` as its endpoint. Everything else of it is as of any other batch.

Tests: tests/unit/server/batches/test_message_lines.py.
"""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import StringConstraints

from jitney.server.anthropic.message_errors import PATH, error_body
from jitney.server.batches import limits
from jitney.server.batches.rows import BatchStatus
from jitney.server.error_object import Refusal
from jitney.server.openai.bodies import Strict
from jitney.server.openai.replies import Json, dump_json

MESSAGES = PATH

_UNRUN = {BatchStatus.EXPIRED: "expired", BatchStatus.CANCELLED: "canceled"}


class MessageLine(Strict):
    """One request of such a batch, and one line of its input."""

    custom_id: Annotated[
        str, StringConstraints(min_length=1, max_length=limits.CUSTOM_ID_CHARACTERS_MAX)
    ]
    params: dict[str, Any]  # Any: a JSON value, checked when it is asked


def answered_message(custom_id: str, message: bytes, ignored: Sequence[str]) -> bytes:
    """The line of a request that was answered; the message is of `dump_json`."""
    result: Json = {"type": "succeeded", **({"ignored": list(ignored)} if ignored else {})}
    head, about = (dump_json(each).encode()[:-1] for each in ({"custom_id": custom_id}, result))
    return b'%b,"result":%b,"message":%b}}' % (head, about, message)


def refused_message(custom_id: str | None, refusal: Refusal, request_id: str) -> bytes:
    """The line of a request that ended with an error."""
    return _line(custom_id, {"type": "errored", "error": error_body(refusal, request_id)})


def unrun_message(custom_id: str | None, outcome: BatchStatus) -> bytes:
    """The line of a request whose batch ended before its turn."""
    return _line(custom_id, {"type": _UNRUN[outcome]})


def _line(custom_id: str | None, result: Json) -> bytes:
    return dump_json({"custom_id": custom_id, "result": result}).encode()
