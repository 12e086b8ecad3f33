"""The client's ledger: 10,000 requests over 1,000 open streams, each answer known beforehand.

The fake backend's answer is a function of prompt, seed and length, so every byte is checked. Each
request is accounted for once: its own id, one finish reason, one `[DONE]`, nothing after it; and
the server must have counted what the ledger says. Half of the slots that the streams would take
are there, so that as many wait; prompts share beginnings, so that memory is shared.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.http.report import Report
from benchmarks.http.served import Footprint, Served, allow_files, served
from benchmarks.http.wire import DONE, Connection, Json
from benchmarks.load import percentile
from jitney.core.backend import Vocabulary
from jitney.core.params import SamplingParams
from jitney.text.detokenizer import Detokenizer
from jitney.tokenizers.byte_tokenizer import byte_vocabulary
from tests.expected_completion import expected_completion

CLIENTS = 1000
REQUESTS = 10_000
WARMING = 10_000
SEQUENCES = 512
EOS_PERIOD = 64
"""That of the fake backend, unless it is told otherwise."""

LEAVE_S_MAX = 2.0
RUN_S_MAX = 600.0
IDLE_S_MAX = 10.0
GROWTH_MIB_MAX = 20.0
FLAGS = (
    *("--backend", "fake", "--max-num-seqs", str(SEQUENCES), "--kv-tokens", "32768"),
    *("--max-num-queued-reqs", "2000"),
)
PATH = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Case:
    """A request, and the one right answer."""

    name: str
    body: Json
    text: str
    finish: str
    prompt_count: int
    completion_count: int


@dataclass(slots=True)
class Account:
    """What became of a request."""

    case: Case
    status: int | None = None
    ids: set[str] = field(default_factory=set)
    text: str = ""
    events: int = 0
    finishes: list[str] = field(default_factory=list)
    usages: list[Json] = field(default_factory=list)
    terminals: int = 0
    queue_ms: float = 0.0
    has_left: bool = False
    trouble: str | None = None

    def fault(self) -> str | None:
        """What is wrong with it, if anything is. One that was left must be right so far."""
        case = self.case
        if self.trouble is not None:
            return self.trouble
        if self.has_left and not self.terminals:
            return None if case.text.startswith(self.text) else "left, and not the beginning"
        usage = {"prompt_tokens": case.prompt_count, "completion_tokens": case.completion_count}
        told = [{name: each[name] for name in usage} for each in self.usages]
        expected = {
            "status": (self.status, 200),
            "text": (self.text, case.text),
            "finish": (self.finishes, [case.finish]),
            "terminals": (self.terminals, 1),
            "usage": (told, [usage]),
            "ids": (len(self.ids), 1),
        }
        wrong = [f"{name}: {got!r}" for name, (got, want) in expected.items() if got != want]
        if not any(case.name in each for each in self.ids):
            wrong.append(f"another one's id: {self.ids}")
        return "; ".join(wrong) or None


@dataclass(frozen=True, slots=True)
class Leave:
    """When a client goes: after so many events or so many seconds, with or without a goodbye."""

    events: int | None
    seconds: float
    resets: bool


@dataclass(slots=True)
class Crowd:
    """All clients of a run, and how many were asked for and not ended at once."""

    port: int
    accounts: list[Account] = field(default_factory=list)
    open_count: int = 0
    open_peak: int = 0
    beats: list[float] = field(default_factory=list)
    """When each event came, of all streams."""
    key: str | None = None

    async def serve(self, cases: Sequence[Case], leaves: Sequence[Leave | None]) -> None:
        """One client: its requests one after the other, on one connection while it lasts."""
        connection: Connection | None = None
        for case, leave in zip(cases, leaves, strict=True):
            connection = connection or await Connection.open(self.port, self.key)
            account = Account(case)
            self.accounts.append(account)
            try:
                async with asyncio.timeout(None if leave is None else leave.seconds):
                    await self._ask(connection, account, leave)
            except TimeoutError:
                account.has_left = True
            except (OSError, EOFError, ValueError) as error:
                account.trouble = f"{type(error).__name__}: {error}"
            if account.has_left and leave is not None and leave.resets:
                connection.reset()
            elif account.has_left or account.trouble is not None:
                connection.close()
            else:
                continue
            connection = None
        if connection is not None:
            connection.close()

    async def _ask(self, connection: Connection, account: Account, leave: Leave | None) -> None:
        self.open_count += 1
        self.open_peak = max(self.open_peak, self.open_count)
        try:
            head = await connection.begin(PATH, account.case.body)
            account.status = head.status
            if head.status != 200:
                account.trouble = (await connection.rest(head)).decode()
                return
            account.queue_ms = float(head.headers.get("x-jitney-queue-ms", 0.0))
            async for data in connection.events():
                self.beats.append(time.perf_counter())
                note_event(account, data)
                if leave is not None and account.events == leave.events:
                    account.has_left = True
                    return
        finally:
            self.open_count -= 1


def note_event(account: Account, data: bytes) -> None:
    """Note an event of a stream. Raises ValueError for one that may not come."""
    if data == DONE:
        account.terminals += 1
        return
    if account.terminals:
        raise ValueError(f"an event after the end: {data[:80]!r}")
    chunk = json.loads(data)
    if "error" in chunk:
        raise ValueError(f"an error: {chunk['error']}")
    account.ids.add(chunk["id"])
    account.events += 1
    for choice in chunk["choices"]:
        if account.finishes:
            raise ValueError("a choice after its end")
        account.text += choice["text"]
        if choice["finish_reason"] is not None:
            account.finishes.append(choice["finish_reason"])
    if chunk["usage"] is not None:
        account.usages.append(chunk["usage"])


def make_cases(count: int, seed: int) -> list[Case]:
    """Requests that differ, and a third of them share one of four beginnings."""
    generator = random.Random(seed)
    vocabulary = byte_vocabulary()
    plain = [t for t in range(len(vocabulary.pieces)) if t not in vocabulary.control]
    beginnings = [tuple(generator.choices(plain, k=40)) for _ in range(4)]
    return [_case(f"{seed}-{number}", generator, plain, beginnings) for number in range(count)]


def _case(
    name: str, generator: random.Random, plain: list[int], beginnings: list[tuple[int, ...]]
) -> Case:
    shared = generator.choice(beginnings) if generator.random() < 1 / 3 else ()
    prompt = (*shared, *name.encode(), *generator.choices(plain, k=generator.randint(1, 16)))
    tokens_max = generator.randint(24, 64)
    seed = generator.randrange(2**63)
    temperature = generator.choice((0.0, 1.0))
    params = SamplingParams(temperature=temperature, max_tokens=tokens_max, seed=seed)
    tokens = expected_completion(prompt, params, seed, eos_period=EOS_PERIOD, tokens_max=tokens_max)
    has_stopped = len(tokens) < tokens_max
    body: Json = {
        "prompt": list(prompt),
        "seed": seed,
        "temperature": temperature,
        "max_tokens": tokens_max,
        "request_id": name,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return Case(
        name,
        body,
        text_of(tokens, byte_vocabulary()),
        "stop" if has_stopped else "length",
        len(prompt),
        len(tokens) + has_stopped,
    )


def text_of(tokens: list[int], vocabulary: Vocabulary) -> str:
    """What a caller reads of tokens."""
    detokenizer = Detokenizer(vocabulary, skip_special=True)
    return "".join(map(detokenizer.push, tokens)) + detokenizer.flush()


def ledger(report: Report) -> None:
    """Fake backend, 10,000 requests over 1,000 open streams; then again, half of them leaving."""
    allow_files()
    asyncio.run(_ledger(report))


async def _ledger(report: Report) -> None:
    with served(*FLAGS) as server:
        report.say(f"just started: {server.footprint()}")
        # The interpreter keeps the memory of its busiest moment for the next one, and the recorder
        # fills up to its bounds: growth counts from a server that has seen such a moment.
        async with asyncio.timeout(RUN_S_MAX):
            await _run(server, make_cases(WARMING, seed=0), [None] * WARMING)
        await server.idle_s(IDLE_S_MAX)
        before = server.footprint()
        report.say(f"at rest after {WARMING} requests: {before}")
        async with asyncio.timeout(RUN_S_MAX):
            await _stay(report, server, make_cases(REQUESTS, seed=1))
        await server.idle_s(IDLE_S_MAX)
        stayed = await settled(server, before)
        report.say(f"at rest after that: {stayed}")
        async with asyncio.timeout(RUN_S_MAX):
            await _half_leave(report, server, make_cases(REQUESTS, seed=2))
        left = await settled(server, before)
        report.say(f"at rest after that: {left}")
        for name, footprint in (("before", before), ("stayed", stayed), ("left", left)):
            report.figure(f"server_mib_{name}", footprint.server_mib)
            report.figure(f"worker_mib_{name}", footprint.worker_mib)
            report.figure(f"files_{name}", footprint.files)
        report.check(
            f"no more files open than before: {before.files}, {stayed.files}, {left.files}",
            before.files >= stayed.files and before.files >= left.files,
        )
        grown = [
            (each.server_mib - before.server_mib, each.worker_mib - before.worker_mib)
            for each in (stayed, left)
        ]
        report.check(
            f"memory as before, within {GROWTH_MIB_MAX:g} MiB: server {grown[0][0]:+.1f} and "
            f"{grown[1][0]:+.1f}, worker {grown[0][1]:+.1f} and {grown[1][1]:+.1f}",
            max(map(max, grown)) <= GROWTH_MIB_MAX,
        )
        report.check("no traceback in the log", "Traceback" not in server.log())


async def _stay(report: Report, server: Served, cases: list[Case]) -> None:
    counted = await server.metrics()
    crowd, seconds = await _run(server, cases, [None] * len(cases))
    faults = _faults(report, crowd)
    tokens = sum(case.completion_count for case in cases)
    waits = [account.queue_ms for account in crowd.accounts]
    report.say(
        f"all stay: {len(crowd.accounts)} requests in {seconds:.1f} s, {tokens / seconds:.0f} "
        f"tokens/s, {crowd.open_peak} streams open at once, wait p50 "
        f"{percentile(waits, 0.5):.0f} ms, p99 {percentile(waits, 0.99):.0f} ms"
    )
    report.figure("stay_s", seconds)
    report.figure("streams_open_peak", crowd.open_peak)
    ids = {each for account in crowd.accounts for each in account.ids}
    report.check(f"{CLIENTS} streams open at once", crowd.open_peak >= CLIENTS)
    report.check(
        f"{len(cases) - faults} of {len(cases)} accounted for, byte for byte; {len(ids)} ids",
        faults == 0 and len(ids) == len(cases) == REQUESTS,
    )
    after = await server.metrics()
    told = {name: value - counted.get(name, 0.0) for name, value in after.items()}
    finishes = Counter(case.finish for case in cases)
    expected = {
        "jitney:requests_accepted_total": len(cases),
        'jitney:requests_ended_total{reason="stop"}': finishes["stop"],
        'jitney:requests_ended_total{reason="length"}': finishes["length"],
        'jitney:requests_ended_total{reason="abort"}': 0,
        'jitney:requests_ended_total{reason="error"}': 0,
        "jitney:prompt_tokens_total": sum(case.prompt_count for case in cases),
        "jitney:completion_tokens_total": tokens,
        f'jitney:http_responses_total{{route="{PATH}",status="200"}}': len(cases),
        "jitney:requests_running": 0,
        "jitney:requests_waiting": 0,
    }
    wrong = {name: told.get(name) for name, want in expected.items() if told.get(name) != want}
    report.check(f"the server counted the same: {wrong or list(expected.values())}", not wrong)
    report.say(
        f"on the way: {told['jitney:prompt_tokens_cached_total']:.0f} prompt tokens shared, "
        f"{_preemptions(told):.0f} preemptions"
    )


async def _half_leave(report: Report, server: Served, cases: list[Case]) -> None:
    before = await server.metrics()
    generator = random.Random(3)
    # Clients take every CLIENTS-th case, so every second client is one that leaves each time.
    leaves = [_leave(generator) if number % 2 else None for number in range(len(cases))]
    crowd, seconds = await _run(server, cases, leaves)
    idle_s = await server.idle_s(IDLE_S_MAX)
    faults = _faults(report, crowd)
    ended = [account for account in crowd.accounts if account.terminals]
    gone = len(crowd.accounts) - len(ended)
    after = await server.metrics()
    accepted, stop, length, abort, error = (
        after[name] - before[name]
        for name in (
            "jitney:requests_accepted_total",
            *(
                f'jitney:requests_ended_total{{reason="{reason}"}}'
                for reason in ("stop", "length", "abort", "error")
            ),
        )
    )
    report.say(
        f"half leave: {len(ended)} finished and {gone} were left in {seconds:.1f} s; the server "
        f"accepted {accepted:.0f}: {stop + length:.0f} finished, {abort:.0f} cancelled, "
        f"{error:.0f} failed; idle {idle_s:.2f} s after the last client"
    )
    report.figure("left", gone)
    report.figure("idle_after_s", idle_s)
    report.check(
        f"{len(cases) - faults} of {len(cases)} accounted for, byte for byte or up to the leave",
        faults == 0 and len(crowd.accounts) == REQUESTS,
    )
    report.check(
        "every accepted request ended once, and none failed",
        accepted == stop + length + abort and error == 0 and stop + length >= len(ended),
    )
    report.check(
        "nothing runs and nothing waits",
        after["jitney:requests_running"] == after["jitney:requests_waiting"] == 0,
    )


def _leave(generator: random.Random) -> Leave:
    if generator.random() < 0.5:
        return Leave(generator.randint(1, 16), LEAVE_S_MAX, generator.random() < 0.5)
    return Leave(None, generator.uniform(0.0, LEAVE_S_MAX), generator.random() < 0.5)


async def _run(
    server: Served, cases: list[Case], leaves: Sequence[Leave | None]
) -> tuple[Crowd, float]:
    crowd = Crowd(server.port)
    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for client in range(CLIENTS):
            part = slice(client, None, CLIENTS)
            group.create_task(crowd.serve(cases[part], leaves[part]))
    return crowd, time.perf_counter() - started


def _faults(report: Report, crowd: Crowd) -> int:
    faults = [(each.case.name, fault) for each in crowd.accounts if (fault := each.fault())]
    for name, fault in faults[:5]:
        report.say(f"request {name}: {fault[:300]}")
    return len(faults)


async def settled(server: Served, like: Footprint) -> Footprint:
    """What the server takes once its closed connections are gone, or after a while."""
    deadline = time.monotonic() + IDLE_S_MAX
    while True:
        now = server.footprint()
        if now.files == like.files or time.monotonic() > deadline:
            return now
        await asyncio.sleep(0.1)


def _preemptions(told: dict[str, float]) -> float:
    return sum(value for name, value in told.items() if name.startswith("jitney:preemptions_total"))
