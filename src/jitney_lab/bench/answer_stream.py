"""Reads the streamed answer of a server: when its text comes, its counts, and that it is whole.

Nothing is believed without a bound: not the length of a line or an answer, and not a count. Runs on
an event loop.

Tests: tests/unit/lab/bench/test_http_target.py and tests/unit/lab/bench/test_hostile_server.py.
"""

import time
from collections.abc import AsyncIterator

import httpx
import msgspec

from jitney_lab.bench.timing import RequestTimes

DATA = b"data:"
DONE = b"[DONE]"
LINE_BYTES_MAX = 2**20
"""A longer line is not an event of a stream of text."""

TOKEN_BYTES_MAX = 2**14
"""An event has some hundred bytes, and some thousand with probabilities."""

ANSWER_BYTES_MAX = 2**30
"""However many tokens were asked for."""

ADDED_TOKENS_MAX = 100_000
"""What a server may put around a prompt, such as instructions of its own."""

BROKEN_OFF = "the answer broke off: it ended without a finish_reason and without [DONE]"


class BadAnswer(ValueError):
    """An answer that cannot be counted; the message is the reason."""


class StreamedDelta(msgspec.Struct):
    """A piece of a chat's answer."""

    content: str | None = None


class StreamedChoice(msgspec.Struct):
    """One answer in an event: `text` of a completion, `delta` of a chat."""

    text: str | None = None
    delta: StreamedDelta | None = None
    finish_reason: object = None

    @property
    def piece(self) -> str:
        """Its text, which may be empty."""
        return self.text or (self.delta and self.delta.content) or ""


class StreamedUsage(msgspec.Struct):
    """The counts of the server."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class StreamedEvent(msgspec.Struct):
    """What we read of an event of a stream. Every field may be missing or null."""

    error: object = None
    choices: list[StreamedChoice] | None = None
    usage: StreamedUsage | None = None


async def read_answer(response: httpx.Response, times: RequestTimes, asked_count: int) -> None:
    """Note when text comes, and the counts of the server, which was asked for so many tokens.

    Raises BadAnswer or a DecodeError.
    """
    decoder = msgspec.json.Decoder(StreamedEvent)
    usage = StreamedUsage()
    text_bytes, is_ended = 0, False
    bytes_max = min(LINE_BYTES_MAX + TOKEN_BYTES_MAX * asked_count, ANSWER_BYTES_MAX)
    async for content in _events(response, bytes_max):
        now = time.monotonic()
        if content == DONE:
            # What follows it is read too, or the connection is not used again.
            is_ended = True
            continue
        event = decoder.decode(content)
        if event.error is not None:
            raise BadAnswer(f"the server says: {event.error}")
        usage = event.usage or usage
        for choice in event.choices or ():
            is_ended = is_ended or bool(choice.finish_reason)
            if choice.piece:
                times.token_times.append(now)
                text_bytes += len(choice.piece.encode("utf-8", "replace"))
    if times.token_times and not is_ended:
        raise BadAnswer(BROKEN_OFF)
    # A token that nobody asked for has at least a byte of text.
    completion_count = _checked(
        "completion_tokens", usage.completion_tokens, max(asked_count, text_bytes)
    )
    prompt_max = len(response.request.content) + ADDED_TOKENS_MAX
    prompt_count = _checked("prompt_tokens", usage.prompt_tokens, prompt_max)
    times.prompt_count = prompt_count or times.prompt_count
    # A server without `usage` is believed to send one token a chunk.
    times.completion_count = completion_count or len(times.token_times)


def _checked(name: str, count: int | None, most: int) -> int:
    """A count of the server; 0 if it has none. Raises BadAnswer."""
    if count is not None and not 0 <= count <= most:
        raise BadAnswer(f"the server's usage has {name} {count:,}; expected 0 to {most:,}")
    return count or 0


async def _events(response: httpx.Response, bytes_max: int) -> AsyncIterator[bytes]:
    left, byte_count = b"", 0
    async for piece in response.aiter_bytes():
        byte_count += len(piece)
        *lines, left = (left + piece).split(b"\n")
        if len(left) > LINE_BYTES_MAX:
            raise BadAnswer(f"a line of the answer has above {LINE_BYTES_MAX:,} bytes")
        if byte_count > bytes_max:
            raise BadAnswer(f"the answer has above {bytes_max:,} bytes")
        for line in lines:
            if line.startswith(DATA):
                yield line[len(DATA) :].strip()
    if left.startswith(DATA):
        yield left[len(DATA) :].strip()
