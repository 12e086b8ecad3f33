"""`python -m benchmarks.response_kills`: background responses whose server is killed every few
seconds, recounted. With `--messages` a batch of Anthropic's in their place.

In turn the server and its backend's process are killed with SIGKILL, and a killed server is started
again at once. A reader for each response reads its stream all the time, and goes on by number.
When all have ended, each stream is recounted: every number once and none missing, the text that of
the stored object, and both that of a calm run. Of a batch each request has one result, in order,
with the text of a calm run. The last line is JSON.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.batches.batch_process import ServerProcess, server_process
from tests.e2e.openai_responses.response_client import (
    PATH,
    check_numbers,
    deltas_of,
    read_events,
    text_of,
)
from tests.e2e.server.processes import backend_of

MODEL = "fake"
MESSAGES = "/v1/messages"
BATCHES = f"{MESSAGES}/batches"
DELAY_MS = 10
TROUBLE_S = 0.2
READ_S = 300.0
LAST = "response.incomplete"
"""Each answer is as long as it may be."""
ENDS = (LAST, "response.completed", "response.failed", "error")
LENGTHS = 31
"""How many different numbers of tokens are asked for."""


@dataclass(slots=True)
class Place:
    """Where the server is now."""

    address: str = ""


@dataclass(slots=True)
class Counted:
    """What was seen."""

    answers: int
    kills_of_server: int = 0
    kills_of_backend: int = 0
    resumed: int = 0
    """Streams that went on by number."""
    events: int = 0
    """Or results, of a batch."""
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


def body_of(number: int, tokens: int) -> dict[str, Any]:
    """What one response asks for."""
    asked = {"model": MODEL, "input": f"answer {number}.", "seed": number}
    return {**asked, "max_output_tokens": tokens + number % LENGTHS}


async def events_of(reply: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Events as they come, until the stream breaks off."""
    rest = b""
    async for part in reply.aiter_raw():
        *blocks, rest = (rest + part).split(b"\n\n")
        for block in blocks:
            if block != b"data: [DONE]":
                for event in read_events([block.decode()]):
                    yield event


async def read(
    client: httpx.AsyncClient, place: Place, response_id: str, counted: Counted
) -> list[dict[str, Any]]:
    """All events of a response, over all servers, to the last: `LAST`, unless it is wrong."""
    seen: list[dict[str, Any]] = []
    while not (seen and seen[-1]["type"] in ENDS):
        after = seen[-1]["sequence_number"] if seen else -1
        counted.resumed += bool(seen)
        path = f"{PATH}/{response_id}?stream=true&starting_after={after}"
        with contextlib.suppress(httpx.TransportError):
            async with client.stream("GET", f"{place.address}{path}") as reply:
                if reply.status_code == 404:
                    return seen
                async for event in events_of(reply):
                    seen.append(event)
        await asyncio.sleep(TROUBLE_S)
    return seen


async def pause(over: asyncio.Event, seconds: float) -> bool:
    """Wait so long; whether it is over by then."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await over.wait()
    return over.is_set()


async def kill_always(
    folder: Path,
    flags: Sequence[str],
    place: Place,
    every_s: float,
    counted: Counted,
    over: asyncio.Event,
) -> None:
    """Serve, and kill the server and its backend in turn, until it is over."""
    while not over.is_set():
        stack = contextlib.ExitStack()
        try:
            server = await asyncio.to_thread(stack.enter_context, server_process(folder, *flags))
            place.address = server.address
            if await pause(over, every_s):
                return
            os.kill(backend_of(server.pid), signal.SIGKILL)
            counted.kills_of_backend += 1
            if await pause(over, every_s):
                return
            await asyncio.to_thread(server.kill)
            counted.kills_of_server += 1
        finally:
            await asyncio.to_thread(stack.close)


async def begin(server: ServerProcess, count: int, tokens: int) -> list[str]:
    """The ids of all responses."""
    async with httpx.AsyncClient(base_url=server.address, timeout=READ_S) as client:
        ids = []
        for number in range(count):
            body = {**body_of(number, tokens), "background": True}
            ids.append((await client.post(PATH, json=body)).json()["id"])
    return ids


async def recount(
    server: ServerProcess, ids: list[str], seen: list[list[dict[str, Any]]], tokens: int
) -> list[str]:
    """What is wrong."""
    wrong = []
    bodies = [{**body_of(number, tokens), "store": False} for number in range(len(ids))]
    async with httpx.AsyncClient(base_url=server.address, timeout=READ_S) as client:
        calm_runs = await asyncio.gather(*(client.post(PATH, json=body) for body in bodies))
        for response_id, events, reply in zip(ids, seen, calm_runs, strict=True):
            stored, calm = (await client.get(f"{PATH}/{response_id}")).json(), reply.json()
            try:
                check_numbers(events)
                last = [each["type"] for each in events[-1:]]
                assert last == [LAST], f"it ended with {last}"
                assert events[-1]["response"] == stored, "the stored object differs"
                assert deltas_of(events) == text_of(stored), "the text differs from the stream"
                assert text_of(stored) == text_of(calm), "the text differs from a calm run"
            except AssertionError as error:
                wrong.append(f"{response_id}: {error}"[:200])
    return wrong


def message_of(number: int, tokens: int) -> dict[str, Any]:
    """What one request of a batch asks for."""
    messages = [{"role": "user", "content": f"answer {number}."}]
    return {"model": MODEL, "messages": messages, "max_tokens": tokens + number % LENGTHS}


def write_script(path: Path, count: int, tokens: int) -> None:
    """A long text of its own for each request; the fake backend's own texts may end at once."""
    lines = [
        {"contains": f"answer {number}.", "text": f"{number} " * tokens, "delay_ms": DELAY_MS}
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


async def begin_batch(server: ServerProcess, count: int, tokens: int) -> list[str]:
    """The id of one batch of so many requests."""
    requests = [
        {"custom_id": f"r{number}", "params": message_of(number, tokens)} for number in range(count)
    ]
    async with httpx.AsyncClient(base_url=server.address, timeout=READ_S) as client:
        return [(await client.post(BATCHES, json={"requests": requests})).json()["id"]]


async def wait_batch(client: httpx.AsyncClient, place: Place, batch_id: str) -> None:
    """Returns when the batch has ended, whichever server says so."""
    status = ""
    while status != "ended":
        await asyncio.sleep(TROUBLE_S)
        with contextlib.suppress(httpx.TransportError):
            reply = await client.get(f"{place.address}{BATCHES}/{batch_id}")
            status = reply.json()["processing_status"]


async def recount_batch(
    server: ServerProcess, batch_id: str, count: int, tokens: int, counted: Counted
) -> None:
    """Each request has one result, in order, and the text of a calm call."""
    async with httpx.AsyncClient(base_url=server.address, timeout=READ_S) as client:
        text = (await client.get(f"{BATCHES}/{batch_id}/results")).text
        results = [json.loads(line) for line in text.splitlines()]
        counted.events = len(results)
        if [each["custom_id"] for each in results] != [f"r{number}" for number in range(count)]:
            counted.wrong.append("the results are not those of the requests, in order")
            return
        bodies = [message_of(number, tokens) for number in range(count)]
        calm = await asyncio.gather(*(client.post(MESSAGES, json=body) for body in bodies))
        for result, reply in zip(results, calm, strict=True):
            if result["result"].get("message", {}).get("content") != reply.json()["content"]:
                counted.wrong.append(json.dumps(result)[:200])


async def main() -> int:
    """Exit code 1 if anything was lost, there twice, or different."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two kills")
    parser.add_argument("--messages", action="store_true", help="a batch of Anthropic's")
    asked = parser.parse_args()
    make = begin_batch if asked.messages else begin
    counted, place, started_at = Counted(asked.answers), Place(), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "jobs"
        script = Path(name) / "script.jsonl"
        write_script(script, asked.answers, asked.tokens)
        flags = ("--script", str(script))
        with server_process(folder, *flags) as server:
            ids = await make(server, asked.answers, asked.tokens)
            server.kill()
        over = asyncio.Event()
        killing = asyncio.create_task(kill_always(folder, flags, place, asked.every, counted, over))
        while not place.address:  # noqa: ASYNC110, it is another task
            await asyncio.sleep(TROUBLE_S)
        # One client for all: each makes a context for TLS, which takes long.
        async with httpx.AsyncClient(timeout=READ_S, limits=httpx.Limits()) as client:
            if asked.messages:
                await wait_batch(client, place, ids[0])
                seen = []
            else:
                seen = await asyncio.gather(*(read(client, place, each, counted) for each in ids))
        over.set()
        await killing
        counted.seconds = round(time.monotonic() - started_at, 1)
        counted.events = sum(map(len, seen))
        with server_process(folder, *flags) as server:
            if asked.messages:
                await recount_batch(server, ids[0], asked.answers, asked.tokens, counted)
            else:
                counted.wrong = await recount(server, ids, seen, asked.tokens)
    print(json.dumps(asdict(counted)))
    # A run that kills nothing shows nothing.
    return 1 if counted.wrong or not counted.kills_of_server else 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
