"""`python -m benchmarks.thinking_schemas`: JSON of a schema after free thoughts, with and without
kills.

Each schema is asked of a fake backend whose chat template opens the reasoning. What it thinks is
free up to a budget; the answer has to be of the schema. Then all are asked again, and the backend's
process is killed with SIGKILL each time so many pieces have come: thoughts and answers must be
those of the calm run. The last line is JSON.
"""

import argparse
import asyncio
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import jsonschema_rs

from benchmarks.http.paced import program
from benchmarks.http.served import Served, served
from benchmarks.http.wire import DONE, Connection, Json
from benchmarks.schemas import all_schemas
from tests.e2e.server.test_thinking import SHORTER, TEMPLATE, of_schema

PATH = "/v1/chat/completions"
AT_ONCE = 16
TICK_MS = 5.0
LOOK_S = 0.01
REFUSED = 400
TOKENS = 600
BUDGETS = 20
"""Thoughts of this many different lengths are asked for."""
SPARE = 1.2
"""Some schemas are left out."""
LEFT_OUT = ("length", "invalid_request_error")
"""How calm answers end that are: not at all, or where the schema is refused in use."""


@dataclass(slots=True)
class Answer:
    """One answer, as far as it has come."""

    reasoning: str = ""
    content: str = ""
    ended: str | None = None


@dataclass(slots=True)
class Counted:
    """What was seen."""

    answers: int = 0
    left_out: int = 0
    """Schemas that are refused, or whose calm answers do not end."""
    with_thoughts: int = 0
    kills: int = 0
    killed_in_thought: int = 0
    killed_in_object: int = 0
    """Answers that were at this point when the backend was killed."""
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def is_good(self, count: int) -> bool:
        """Whether so many answers are right, and the kills met thoughts and objects."""
        were_met = self.kills and self.killed_in_thought and self.killed_in_object
        return bool(were_met) and not self.wrong and self.answers >= count


class Asking:
    """Asks a server, so many at once."""

    def __init__(self, server: Served) -> None:
        self._port = server.port
        self._room = asyncio.Semaphore(AT_ONCE)
        self.running: list[Answer] = []
        self.pieces = 0
        self.failed: list[str] = []
        """Why answers of the calm run failed."""

    async def answer(self, body: Json) -> Answer | None:
        """The answer; None where the schema is refused."""
        async with self._room:
            connection = await Connection.open(self._port)
            found = Answer()
            self.running.append(found)
            try:
                head = await connection.begin(PATH, body)
                if head.status == REFUSED:
                    return None
                if head.status != 200:
                    found.ended = str(await connection.rest(head))
                    return found
                async for event in connection.events():
                    _add(found, event)
                    self.pieces += 1
            finally:
                self.running.remove(found)
                connection.close()
            return found

    async def calm(self, number: int, schema: Json) -> tuple[Json, Answer] | None:
        """A body for this schema whose answer ends, and that answer."""
        for bias in SHORTER:
            body = {
                "messages": [{"role": "user", "content": f"schema {number}"}],
                "response_format": of_schema(schema),
                "thinking_token_budget": 5 + number % BUDGETS,
                "logit_bias": bias,
                "seed": number,
                "max_tokens": TOKENS,
                "stream": True,
            }
            found = await self.answer(body)
            if found is None or found.ended == "stop":
                return None if found is None else (body, found)
            if not str(found.ended).startswith(LEFT_OUT):
                self.failed.append(f"schema {number}: {found.ended}")
                return None
        return None


def _add(answer: Answer, event: bytes) -> None:
    if event == DONE:
        return
    told = json.loads(event)
    if "error" in told:
        answer.ended = f"{told['error']['type']}: {told['error']['message']}"
        return
    (choice,) = told["choices"]
    answer.reasoning += choice["delta"].get("reasoning_content") or ""
    answer.content += choice["delta"].get("content") or ""
    answer.ended = choice["finish_reason"] or answer.ended


async def kill_always(server: Served, asking: Asking, counted: Counted, pieces: int) -> None:
    """Kill the backend's process whenever so many pieces have come since it was killed."""
    killed_at = asking.pieces
    while True:
        await asyncio.sleep(LOOK_S)
        worker = server.worker()
        if worker is None or asking.pieces < killed_at + pieces:
            continue
        try:
            os.kill(worker, signal.SIGKILL)
        except ProcessLookupError:
            continue
        killed_at = asking.pieces
        counted.kills += 1
        counted.killed_in_object += sum(bool(each.content) for each in asking.running)
        thinking = [each for each in asking.running if each.reasoning and not each.content]
        counted.killed_in_thought += len(thinking)


def wrong_of(schema: Json, calm: Answer, again: Answer | None) -> str | None:
    """What is wrong with an answer, if anything."""
    try:
        jsonschema_rs.validate(schema, json.loads(calm.content))
    except ValueError as error:
        return f"not of the schema: {error}"
    return None if again == calm else f"after a kill: {again}, and calm: {calm}"


async def measured(server: Served, count: int, pieces: int) -> Counted:
    """Ask all, twice."""
    asking, counted, started = Asking(server), Counted(), time.monotonic()
    schemas = all_schemas(int(count * SPARE))
    found = await asyncio.gather(*(asking.calm(at, each) for at, each in enumerate(schemas)))
    pairs = [(schema, each) for schema, each in zip(schemas, found, strict=True) if each][:count]
    counted.left_out = found.count(None) - len(asking.failed)
    killing = asyncio.create_task(kill_always(server, asking, counted, pieces))
    again = await asyncio.gather(*(asking.answer(body) for _, (body, _) in pairs))
    killing.cancel()
    judged = zip(pairs, again, strict=True)
    told = [wrong_of(schema, calm, each) for (schema, (_, calm)), each in judged]
    counted.wrong = [each[:300] for each in (*asking.failed, *told) if each is not None]
    counted.answers = len(pairs)
    counted.with_thoughts = sum(bool(calm.reasoning) for _, (_, calm) in pairs)
    counted.seconds = round(time.monotonic() - started, 1)
    return counted


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 if an answer fails or breaks its schema, a kill changes one, or none met it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.thinking_schemas")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--pieces", type=int, default=400, help="between two kills")
    asked = parser.parse_args(arguments)
    jitney = program(TICK_MS, 0.0, template=TEMPLATE, ends=False)
    with served("--backend", "fake", program=jitney) as server:
        counted = asyncio.run(measured(server, asked.count, asked.pieces))
    print(json.dumps(asdict(counted)))
    return int(not counted.is_good(asked.count))


if __name__ == "__main__":
    raise SystemExit(main())
