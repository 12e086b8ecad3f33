"""A server with a bystander beside it: started for a setup, warmed, watched, attacked, ended."""

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from benchmarks.http.hostile.attack import Attack, Setup
from benchmarks.http.hostile.confine import confined
from benchmarks.http.hostile.processes import Taken, descendants, taken, worker_of
from benchmarks.http.hostile.templates import TEMPLATES
from benchmarks.http.paced import program
from benchmarks.http.served import Served, served
from benchmarks.http.wire import Connection, Json, Reply

BYSTANDER_KEY = "the-key-of-a-bystander"
ATTACKER_KEY = "the-key-of-an-attacker"
TICK_MS = 10.0
"""Of the fake backend: a calm stream has a steady pace and leaves the cores free."""

CALM_S = 2.0
TOLD_S_MAX = 60.0
GRACE_S = 15.0
"""For an attack to end by itself once its time is over."""

WARMING = 12
"""At once of each kind: pools of threads fill up."""

WARMING_S_MAX = 120.0
_QUESTION: Json = {"messages": [{"role": "user", "content": "Which bus?"}], "max_tokens": 2}
_SCHEMA: Json = {"name": "a", "schema": {"type": "object"}}
_IN_JSON: Json = {"response_format": {"type": "json_schema", "json_schema": _SCHEMA}}
_PAGES = ("/metrics", "/", "/debug/trace", "/openapi.json", "/health")


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What an attacker was told, and what it found wrong by itself."""

    told: dict[str, int]
    faults: list[str]


class Bystander:
    """The process of the calm caller."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def take(self) -> dict[str, Json]:
        """The worst of everything since the last time. Raises RuntimeError."""
        asked, answers = _pipes(self._process)
        asked.write("\n")
        asked.flush()
        if not select.select([answers], [], [], TOLD_S_MAX)[0]:
            raise RuntimeError("the bystander does not answer")
        told: dict[str, Json] = json.loads(answers.readline())
        return told


@dataclass(frozen=True, slots=True)
class Watched:
    """A server that runs, who stands beside it, and how that is when all is calm."""

    server: Served
    bystander: Bystander
    calm: dict[str, Json]
    model_len: int
    end_name: str
    warm: Taken
    """What it takes after its first busy moment."""

    @property
    def pid(self) -> int:
        """The server's process."""
        return self.server.process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the server still runs."""
        return self.server.process.poll() is None

    def attack(self, attack: Attack, seconds: float) -> Aftermath:
        """Do it in a process of its own; nothing of it is left afterwards."""
        told = [ATTACKER_KEY, str(self.model_len), self.end_name, str(seconds)]
        command = [sys.executable, "-m", "benchmarks.http.hostile.aggressor", attack.name]
        process = subprocess.Popen(
            [*command, str(self.server.port), str(self.pid), *told],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            lines = process.communicate(timeout=seconds + GRACE_S)[0].splitlines()
            after: Json = json.loads(lines[-1])
        except (subprocess.TimeoutExpired, IndexError, ValueError):
            after = {"told": {}, "faults": ["the attacker did not end well"]}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self.go_on()
        return Aftermath(after["told"], after["faults"])

    def go_on(self) -> None:
        """Whoever was stopped goes on."""
        for pid in (self.pid, worker_of(self.pid)):
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def watched(setup: Setup, flags: tuple[str, ...], calm_s: float = CALM_S) -> Iterator[Watched]:
    """A warm server with a bystander; both end with the block."""
    template = TEMPLATES[setup.template] if setup.template else None
    jitney = program(TICK_MS, 0.0, template=template, ends=False)
    keys = ("--api-key", f"{BYSTANDER_KEY},{ATTACKER_KEY}")
    with contextlib.ExitStack() as stack:
        errors = stack.enter_context(_log(setup))
        if setup.keeps_answers:
            kept = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            flags = (*flags, "--jobs-dir", kept)
        server = stack.enter_context(
            served(*flags, *setup.flags, *keys, program=jitney, errors=errors)
        )
        stack.callback(_end, server)
        model_len, end_name = asyncio.run(_warm(server.port))
        if setup.memory_more_mib is not None:
            pids = [server.process.pid, *descendants(server.process.pid)]
            stack.enter_context(confined(pids, setup.memory_more_mib))
        bystander = stack.enter_context(_watching(server.port, setup))
        time.sleep(calm_s / 2)  # its first stream and connections are made
        bystander.take()
        time.sleep(calm_s)
        warm = taken(server.process.pid)
        yield Watched(server, bystander, bystander.take(), model_len, end_name, warm)


async def _warm(port: int) -> tuple[int, str]:
    """Have everything done once, so that what is kept for the next time is there.

    Gives the context in tokens, and the name of the end token.
    """
    question = {"messages": [{"role": "user", "content": "Where to?"}], "max_tokens": 8}
    asked: tuple[tuple[str, Json], ...] = (
        ("/tokenize", {"prompt": "a bus " * 200_000}),
        ("/detokenize", {"tokens": [65] * 200_000}),
        ("/v1/chat/completions", {**question, "logprobs": True, "n": 2}),
        ("/v1/chat/completions", {**question, **_IN_JSON}),
        # Long enough for a second process to be started for templates, where two callers ask.
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x<"}] * 30_000}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 4, "stop": ["zq"], "stream": True}),
    )
    async with asyncio.timeout(WARMING_S_MAX):
        for path, body in asked:
            await asyncio.gather(*(_once(port, path, body, each % 2) for each in range(WARMING)))
        for path in _PAGES:
            await asyncio.gather(*(_once(port, path, None) for _ in range(WARMING)))
        told = (await _once(port, "/tokenizer_info", None)).json()
    return int(told["model_max_length"]), str(told["eos_token"])


async def _once(port: int, path: str, body: Json | None, caller: int = 0) -> Reply:
    connection = await Connection.open(port, (BYSTANDER_KEY, ATTACKER_KEY)[caller])
    try:
        return await (connection.get(path) if body is None else connection.post(path, body))
    finally:
        connection.close()


@contextlib.contextmanager
def _watching(port: int, setup: Setup) -> Iterator[Bystander]:
    question = {**_QUESTION, **(_IN_JSON if setup.is_json_wanted else {})}
    told = [str(port), BYSTANDER_KEY, json.dumps(question)]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.http.hostile.bystander", *told],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Bystander(process)
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def _log(setup: Setup) -> Iterator[int | None]:
    """The file that the server logs to, if it is no usual one."""
    if setup.log == "unread":
        unread, written = os.pipe()
        try:
            yield written
        finally:
            os.close(unread)
            os.close(written)
    elif setup.log == "full":
        with open("/dev/full", "w", encoding="utf-8") as full:
            yield full.fileno()
    else:
        yield None


def _end(server: Served) -> None:
    """A server that was attacked may not listen to anybody any more, and need not be drained."""
    for each in (*descendants(server.process.pid), server.process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    server.process.wait()


def _pipes(process: "subprocess.Popen[str]") -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout
