"""Answers survive the backend: its process is killed ten times under load, or `--kills`.

First an undisturbed run, then the same requests while the process is killed at random moments.
llama.cpp's kernels round by the shape of a batch, so a text may part ways where two tokens are
nearly as likely; the rule is that of tests/e2e/test_text_equality.py: the chosen tokens' logprobs
agree within LOGPROB_BOUND up to the first difference, and there both runs saw the same
distribution within that bound and, when greedy, the two tokens were as near a tie. More kills
take more rounds of the same requests. `--backend fake` is `benchmarks.http.kills_exact`.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.http.kills_exact import kills_exact, outages
from benchmarks.http.report import Report
from benchmarks.http.served import Served, served
from benchmarks.http.wire import DONE, Connection, Json
from benchmarks.load import percentile

REQUESTS = 500
AT_ONCE = 64
KILLS = 10
KILLS_PER_ROUND = 10
LOGPROB_BOUND = 0.5
ALTERNATIVES = 10
RUN_S_MAX = 900.0
FLAGS = ("--max-num-seqs", "16", "--max-model-len", "256")
PATH = "/v1/completions"

THINGS = (
    *("a bicycle", "the moon", "bread", "a river", "glass", "the number seven", "a lighthouse"),
    *("rain", "an owl", "a map", "salt", "a violin", "the sea", "a train", "honey", "a volcano"),
    *("paper", "a bridge", "winter", "a clock", "coffee", "a desert", "thunder", "a garden"),
    "a telescope",
)
ASKS = (
    "Explain in one sentence what {} is.",
    "Write the first line of a story about {}.",
    "Name three things that go with {}.",
    "Why do people care about {}?",
    "Describe {} to a child.",
    "Once upon a time, near {},",
    "The history of {} begins with",
    "List two facts about {}:",
    "A short poem about {}:",
    "My grandmother used to say about {} that",
    "In the news today: {}",
    "Q: What is {} made of? A:",
    "The best way to draw {} is to",
    "If {} could speak, it would say",
    "Scientists who study {} have found that",
    "The price of {} went up because",
    "Here is a riddle about {}:",
    "Dear diary, today I saw {} and",
    "The colour of {} reminds me of",
    "How would you paint {}?",
)


@dataclass(slots=True)
class Text:
    """An answer: its text, and per token a name, a logprob and the likeliest alternatives."""

    text: str = ""
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[dict[str, float]] = field(default_factory=list)
    finishes: list[str] = field(default_factory=list)
    terminals: int = 0
    trouble: str | None = None

    def add(self, choice: dict[str, Any]) -> None:
        """Take one choice of a reply or of a chunk."""
        self.text += choice["text"]
        told = choice["logprobs"]
        self.tokens += told["tokens"]
        self.logprobs += told["token_logprobs"]
        self.tops += told["top_logprobs"]
        if choice["finish_reason"] is not None:
            self.finishes.append(choice["finish_reason"])


def make_bodies() -> list[Json]:
    """Short prompts, 16 to 24 tokens each; every second is streamed, half are greedy."""
    generator = random.Random(5)
    prompts = [ask.format(thing) for ask in ASKS for thing in THINGS]
    assert len(prompts) == REQUESTS
    return [
        {
            "prompt": prompt,
            "max_tokens": generator.randint(16, 24),
            "temperature": 0.0 if number % 4 < 2 else 0.8,
            "seed": number,
            "logprobs": ALTERNATIVES,
            "ignore_eos": True,
            "stream": number % 2 == 0,
        }
        for number, prompt in enumerate(prompts)
    ]


def kills(report: Report) -> None:
    """500 requests, 64 at once, half streamed; the backend killed with -9 at random moments."""
    count = KILLS if report.options.kills is None else report.options.kills
    if report.options.backend == "fake":
        kills_exact(report, count)
    else:
        asyncio.run(_kills(report, count))


async def _kills(report: Report, count: int) -> None:
    bodies = make_bodies()
    with served(*FLAGS) as server:
        async with asyncio.timeout(RUN_S_MAX):
            expected, quiet_s = await _run(server, bodies, [])
        report.say(f"undisturbed: {_finished(expected)} of {REQUESTS} in {quiet_s:.1f} s")
        report.figure("undisturbed_s", quiet_s)
        killed: list[float] = []
        beats: list[float] = []
        rounds = 0
        while len(killed) < count:
            wanted = min(KILLS_PER_ROUND, count - len(killed))
            async with asyncio.timeout(RUN_S_MAX):
                killer = asyncio.create_task(_kill(server, quiet_s, wanted, seed=7 + rounds))
                got, seconds = await _run(server, bodies, beats)
                is_killing = not killer.done()
                here = await killer
            rounds += 1
            killed += here
            report.say(
                f"disturbed, round {rounds}: {_finished(got)} of {REQUESTS} in {seconds:.1f} s, "
                f"{len(here)} kills"
            )
            _judge(report, bodies, expected, got)
            report.check(f"{wanted} kills while requests ran", not is_killing)
        told = await server.metrics()
        gone = [each.seconds for each in outages(killed, beats)]
        report.say(
            f"{len(killed)} processes killed, {told['jitney:backend_losses_total']:.0f} losses "
            f"seen by the engine; {len(gone)} times nothing came, for {percentile(gone, 0.5):.1f} "
            f"s in the middle and {max(gone):.1f} s at most, loading and kills meanwhile included"
        )
        report.figure("killed", len(killed))
        report.figure("back_s_p50", percentile(gone, 0.5))
        report.figure("back_s_max", max(gone))
        report.check(
            "nothing runs, waits or failed",
            told["jitney:requests_running"] == told["jitney:requests_waiting"] == 0
            and told['jitney:requests_ended_total{reason="error"}'] == 0
            and told['jitney:requests_ended_total{reason="length"}'] == (1 + rounds) * REQUESTS,
        )
        report.check("no traceback in the log", "Traceback" not in server.log())


def _judge(report: Report, bodies: list[Json], expected: list[Text], got: list[Text]) -> None:
    equal = near = 0
    faults: list[str] = []
    for body, theirs, ours in zip(bodies, expected, got, strict=True):
        fault = compare(ours, theirs, is_greedy=body["temperature"] == 0)
        if fault is not None:
            faults.append(f"{body['prompt']!r}: {fault}")
        elif ours.text == theirs.text:
            equal += 1
        else:
            near += 1
    for each in faults[:5]:
        report.say(each[:300])
    report.figure("equal", equal)
    report.figure("near_ties", near)
    # The comparison must be able to refuse: the answer to the next prompt is another one.
    others = zip(bodies, expected[1:] + expected[:1], expected, strict=True)
    refused = sum(
        compare(ours, theirs, is_greedy=body["temperature"] == 0) is not None
        for body, ours, theirs in others
    )
    report.say(f"of {REQUESTS} answers to other prompts, the comparison refuses {refused}")
    report.check(
        f"every request finished with its text: {equal} to the letter, {near} part at a near tie "
        f"(bound {LOGPROB_BOUND}), {len(faults)} differ",
        not faults and equal + near == REQUESTS,
    )


def compare(ours: Text, theirs: Text, *, is_greedy: bool) -> str | None:
    """What sets two answers apart beyond rounding, if anything does."""
    for one in (ours, theirs):
        if one.trouble is not None or one.finishes != ["length"] or one.terminals != 1:
            return f"not finished once: {one.trouble} {one.finishes} {one.terminals}"
    if len(ours.tokens) != len(theirs.tokens):
        return f"{len(ours.tokens)} tokens, not {len(theirs.tokens)}"
    for at, (token, other) in enumerate(zip(ours.tokens, theirs.tokens, strict=True)):
        here, there = ours.tops[at], theirs.tops[at]
        if token != other:
            return _parting(here, there, token if is_greedy else None, other)
        gap = abs(ours.logprobs[at] - theirs.logprobs[at])
        if gap > LOGPROB_BOUND:
            return f"position {at}: the same token, its logprob {gap:.2f} apart"
    return None if ours.text == theirs.text else "equal tokens, and another text"


def _parting(
    here: dict[str, float], there: dict[str, float], token: str | None, other: str
) -> str | None:
    """Whether only rounding can have moved the choice; `token` is None where one was drawn."""
    common = [each for each in there if each in here]
    if len(common) < len(there) // 2:
        return "other tokens are likely"
    apart = max(abs(here[each] - there[each]) for each in common)
    if apart > LOGPROB_BOUND:
        return f"likely tokens are {apart:.2f} apart"
    if token is None:
        return None
    tie = abs(there[other] - there[token]) if token in there else float("inf")
    return None if tie <= LOGPROB_BOUND else f"no tie: {tie:.2f} apart"


async def _kill(server: Served, within_s: float, count: int, seed: int) -> list[float]:
    """Kill the backend's process at random moments, each process once; when that was."""
    generator = random.Random(seed)
    started = time.perf_counter()
    killed: dict[int, float] = {}
    # An undisturbed run takes so long, and this one longer: all moments lie within it.
    for at_s in sorted(generator.uniform(0.3, 0.95 * within_s) for _ in range(count)):
        await asyncio.sleep(max(0.0, at_s - (time.perf_counter() - started)))
        while (pid := server.worker()) is None or pid in killed:  # noqa: ASYNC110, no event for it
            await asyncio.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed[pid] = time.perf_counter()
    return list(killed.values())


async def _run(server: Served, bodies: list[Json], beats: list[float]) -> tuple[list[Text], float]:
    texts = [Text() for _ in bodies]
    work = iter(zip(bodies, texts, strict=True))
    started = time.perf_counter()

    async def client() -> None:
        connection = await Connection.open(server.port)
        for body, text in work:
            try:
                await _ask(connection, body, text, beats)
            except (OSError, EOFError, ValueError) as error:
                text.trouble = f"{type(error).__name__}: {error}"
                connection.close()
                connection = await Connection.open(server.port)
        connection.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(client())
    return texts, time.perf_counter() - started


async def _ask(connection: Connection, body: Json, text: Text, beats: list[float]) -> None:
    head = await connection.begin(PATH, body)
    if head.status != 200 or not body["stream"]:
        reply = json.loads(await connection.rest(head))
        if head.status != 200:
            raise ValueError(f"{head.status}: {reply}")
        text.add(reply["choices"][0])
        text.terminals += 1
        return
    async for data in connection.events():
        beats.append(time.perf_counter())
        if data == DONE:
            text.terminals += 1
            continue
        chunk = json.loads(data)
        if "error" in chunk or text.terminals:
            raise ValueError(f"an error, or more after the end: {chunk}")
        text.add(chunk["choices"][0])


def _finished(texts: list[Text]) -> int:
    return sum(text.trouble is None and text.terminals == 1 for text in texts)
