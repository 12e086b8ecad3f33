"""Streams of known text over HTTP, with the time of each event.

The fake backend's text is a function of prompt, seed and parameters, so it is computed beforehand.
A quarter of the streams is greedy, a quarter is drawn, a quarter has penalties and a quarter a
constraint: all of that has to go on where a stream does.
"""

import asyncio
import itertools
import random
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any  # Any: a JSON value

from benchmarks.http.ledger import PATH, Account, Case, note_event, text_of
from benchmarks.http.wire import Connection, Json
from jitney.core.params import SamplingParams, StructuredOutputsParams
from jitney.tokenizers.byte_tokenizer import byte_vocabulary
from tests.expected_completion import expected_completion

REPLY_S_MAX = 600.0
PROMPT_TOKENS = 32
LOST = re.compile(r"Request (\S+) lost its replica")
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    {"temperature": 0.0, "structured_outputs": {"regex": "[a-z ]{400,4000}"}},
)


@dataclass(slots=True)
class Stream(Account):
    """What became of a request, and when."""

    sent_s: float = 0.0
    beats: list[float] = field(default_factory=list)

    @property
    def first_s(self) -> float:
        """Until the first event."""
        return self.beats[0] - self.sent_s

    @property
    def gap_s(self) -> float:
        """The longest time without an event, from the sending on."""
        return longest_gap([self.sent_s, *self.beats])

    @property
    def cached_count(self) -> int:
        """Tokens of its prompt that were found in a cache."""
        return sum(each["prompt_tokens_details"]["cached_tokens"] for each in self.usages)


class Crowd:
    """Callers that take one case after the other from a queue, until it gives None."""

    def __init__(self, port: int, ended: Callable[[Stream], None] = lambda stream: None) -> None:
        self._port = port
        self._ended = ended
        self.streams: list[Stream] = []
        self.live = 0

    async def serve(self, at_once: int, cases: "asyncio.Queue[Case | None]") -> None:
        """So many callers at once, each on a connection of its own while that lasts."""
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(self._call(cases))

    async def ask(self, connection: Connection, case: Case) -> Stream:
        """One stream, from its sending to its end, good or bad."""
        stream = Stream(case, sent_s=time.perf_counter())
        self.streams.append(stream)
        self.live += 1
        try:
            async with asyncio.timeout(REPLY_S_MAX):
                await _read(connection, stream)
        except (OSError, EOFError, ValueError) as error:
            stream.trouble = f"{type(error).__name__}: {error}"
        finally:
            self.live -= 1
        self._ended(stream)
        return stream

    async def _call(self, cases: "asyncio.Queue[Case | None]") -> None:
        connection: Connection | None = None
        while (case := await cases.get()) is not None:
            connection = connection or await Connection.open(self._port)
            stream = await self.ask(connection, case)
            if stream.trouble is not None:
                connection.close()
                connection = None
        # For the next caller.
        cases.put_nowait(None)
        if connection is not None:
            connection.close()


async def _read(connection: Connection, stream: Stream) -> None:
    head = await connection.begin(PATH, stream.case.body)
    stream.status = head.status
    if head.status != 200:
        raise ValueError((await connection.rest(head)).decode())
    async for data in connection.events():
        stream.beats.append(time.perf_counter())
        note_event(stream, data)


@dataclass(frozen=True, slots=True)
class Count:
    """How many streams there were, and of how many what is right."""

    streams: int
    complete: int
    equal: int
    usage_right: int
    faultless: int


def count(streams: Iterable[Stream]) -> Count:
    """Compare each stream with what was known of it."""
    each = list(streams)
    complete = [
        one for one in each if one.trouble is None and one.terminals == len(one.finishes) == 1
    ]
    return Count(
        len(each),
        len(complete),
        sum(one.text == one.case.text for one in complete),
        sum(usage_of(one) == (one.case.prompt_count, one.case.completion_count) for one in each),
        sum(one.fault() is None for one in each),
    )


def usage_of(stream: Account) -> tuple[int, int] | None:
    """Tokens of prompt and completion, as the server told them once; else None."""
    if len(stream.usages) != 1:
        return None
    (usage,) = stream.usages
    return usage["prompt_tokens"], usage["completion_tokens"]


def moved(streams: Iterable[Stream], log: str) -> list[Stream]:
    """Those that lost a replica on the way, by the server's log."""
    lost = {name.rsplit("-", 1)[0] for name in LOST.findall(log)}
    return [each for each in streams if each.ids & lost]


def longest_gap(moments: Sequence[float]) -> float:
    """The longest time between two moments in a row."""
    return max((b - a for a, b in itertools.pairwise(moments)), default=0.0)


def fake_case(number: int, token_count: int, seed: int) -> Case:
    """A stream of the fake backend, without end tokens, and the one right answer."""
    generator = random.Random(f"{seed} {number}")
    vocabulary = byte_vocabulary()
    plain = [each for each in range(len(vocabulary.pieces)) if each not in vocabulary.control]
    prompt = tuple(generator.choices(plain, k=PROMPT_TOKENS))
    drawn, kind = generator.randrange(2**63), KINDS[number % len(KINDS)]
    given = {**kind, "max_tokens": token_count, "seed": drawn}
    body: Json = {**given, "prompt": list(prompt), **_asked(f"stream-{number}")}
    if "structured_outputs" in given:
        wanted = StructuredOutputsParams(**given["structured_outputs"])
        given = {**given, "structured_outputs": wanted}
    params = SamplingParams(**given)
    tokens = expected_completion(prompt, params, drawn, eos_period=0, tokens_max=token_count)
    has_stopped = len(tokens) < token_count
    return Case(
        body["request_id"],
        body,
        text_of(tokens, vocabulary),
        "stop" if has_stopped else "length",
        len(prompt),
        len(tokens) + has_stopped,
    )


def asked_case(number: int, prompt: str, token_count: int) -> Case:
    """A stream whose answer is not known; every second one is greedy."""
    body = {
        "prompt": prompt,
        "max_tokens": token_count,
        "seed": number,
        "temperature": 0.8 * (number % 2),
        "ignore_eos": True,
        **_asked(f"stream-{number}"),
    }
    return Case(f"stream-{number}", body, "", "", 0, 0)


def known_case(stream: Stream) -> Case:
    """The case of a stream, with what was answered. Raises RuntimeError if that is not whole."""
    usage = usage_of(stream)
    if stream.trouble is not None or stream.terminals != 1 or usage is None:
        raise RuntimeError(f"no answer to compare with: {stream.trouble}")
    case = stream.case
    return Case(case.name, case.body, stream.text, stream.finishes[0], *usage)


def renamed(case: Case, name: str) -> Case:
    """The same case under another name, to be asked once more."""
    return replace(case, name=name, body={**case.body, "request_id": name})


def _asked(name: str) -> Json:
    return {"request_id": name, "stream": True, "stream_options": {"include_usage": True}}
