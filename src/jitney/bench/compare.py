"""`jitney bench compare`: the same workload on jitney and on the peers that are installed.

Servers are compared with `jitney serve`, libraries with jitney in process. All are loaded and warm
before the first clock starts. Jitney is measured before and after each peer, and a ratio is its
mean over theirs, so what drifts on a shared machine cancels out. Every other run goes backwards.
"""

import asyncio
import importlib
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from jitney.bench.drive import drive
from jitney.bench.http_target import HttpTarget, served_model
from jitney.bench.in_process import engine_target, for_bench
from jitney.bench.peers.server_process import free_port, running_server
from jitney.bench.peers.servers import (
    ROOM_TOKENS,
    Room,
    ServerPlan,
    jitney_server,
    llama_servers,
    other_servers,
)
from jitney.bench.report import Result, spread
from jitney.bench.timing import summary
from jitney.bench.workload import Workload, fixed
from jitney.config import Settings
from jitney.errors import SetupError
from jitney.loading import ready_model

PROMPT_COUNT = 128
COMPLETION_COUNT = 64
CLIENTS = (1, 4, 16, 64)
ROUNDS = {1: 4, 4: 3, 16: 3, 64: 2}
"""How often each client asks: fewer rounds where more clients ask."""

SEARCH_CLIENTS = 16
IN_PROCESS = "jitney"
SERVED = "jitney serve"

Rate = Callable[[Workload], float]
"""Runs a workload; completion tokens per second."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Contender:
    """One system, loaded. `counterpart` is the name of ours that it is compared with."""

    name: str
    rate: Rate
    counterpart: str


def model_of(settings: Settings) -> Path:
    """The GGUF file that everybody runs, ready for llama.cpp. Raises a SetupError."""
    return ready_model(replace(settings, backend="llamacpp"))


class Comparison:
    """Measures everybody on one model, at one number of clients after the other."""

    def __init__(self, settings: Settings, model: Path, *, runs: int, seed: int, say: Say) -> None:
        self._settings = settings
        self._model = model
        self._runs = runs
        self._seed = seed
        self._say = say
        self._best: list[ServerPlan] = []
        self._eos_tokens: tuple[int, ...] = ()
        self._rates: dict[str, dict[str, list[float]]] = {}
        self._ratios: dict[str, dict[str, list[float]]] = {}

    def run(self, clients: tuple[int, ...] = CLIENTS) -> Result:
        """Search the peers' best settings, and measure. Raises SetupError."""
        self._best = self._searched()
        for count in clients:
            with ExitStack() as stack:
                ours = self._ours(stack, count)
                self._measure(ours, self._peers(stack, count), count)
        rows = tuple(
            (
                name,
                str(count),
                spread(rates[str(count)], 0),
                spread(self._ratios[name][str(count)]) if name in self._ratios else "",
            )
            for count in clients
            for name, rates in self._rates.items()
            if str(count) in rates
        )
        return Result(
            name="compare",
            title=f"{PROMPT_COUNT} tokens in, {COMPLETION_COUNT} out, median of {self._runs}",
            columns=("system", "clients", "tokens/s", "jitney over it"),
            rows=rows,
            notes=tuple(f"{plan.name}: {plan.settings}" for plan in self._best),
            figures={
                "runs": self._runs,
                "tokens_per_s": self._rates,
                "jitney_over": self._ratios,
                "searched": {plan.name: plan.settings for plan in self._best},
            },
        )

    def _searched(self) -> list[ServerPlan]:
        """The fastest settings of llama-server, for each build of it, by a short trial."""
        found: dict[str, tuple[float, ServerPlan]] = {}
        for plan in llama_servers(self._model, Room(slots=SEARCH_CLIENTS)):
            with ExitStack() as stack:
                rate = _server_rate(stack, plan)
                rate(_load(SEARCH_CLIENTS, 1, self._seed + 98))
                speed = rate(_load(SEARCH_CLIENTS, 2, self._seed + 99))
            self._say(f"{plan.name}, {plan.settings}: {speed:.0f} tokens/s")
            if plan.name not in found or speed > found[plan.name][0]:
                found[plan.name] = (speed, plan)
        return [plan for _, plan in found.values()]

    def _ours(self, stack: ExitStack, count: int) -> dict[str, Rate]:
        """Jitney as a server and in process."""
        backend = self._settings.backend
        flags = () if backend == "auto" else ("--backend", backend)
        changed = for_bench(self._settings, max_num_seqs=count, max_model_len=ROOM_TOKENS)
        target = stack.enter_context(engine_target(changed))
        self._eos_tokens = target.eos_tokens
        server = jitney_server(self._model, Room(slots=count), flags)

        def in_process(load: Workload) -> float:
            run = target.run(load)
            return float(str(summary(run.requests, run.duration_s)["output_throughput"]))

        return {SERVED: _server_rate(stack, server), IN_PROCESS: in_process}

    def _peers(self, stack: ExitStack, count: int) -> list[Contender]:
        """The peers that start, with the settings that were found best."""
        room = Room(slots=count)
        best = {(plan.name, plan.settings) for plan in self._best}
        found = llama_servers(self._model, room)
        plans = [plan for plan in found if (plan.name, plan.settings) in best]
        peers = []
        for plan in plans + other_servers(self._model, room, self._eos_tokens):
            try:
                peers.append(Contender(plan.name, _server_rate(stack, plan), SERVED))
            except SetupError as error:
                self._say(f"{plan.name} is left out: {error}")
        return peers + self._libraries(count)

    def _libraries(self, count: int) -> list[Contender]:
        if not find_spec("openvino_genai"):
            return []
        # Loaded only where it is installed.
        genai = importlib.import_module("jitney.bench.peers.genai")
        found = []
        for tokens in genai.BATCH_TOKENS:
            name = f"OpenVINO GenAI ({tokens} tokens a pass)"
            try:
                found.append(
                    Contender(name, genai.GenAi(self._model, count, tokens).rate, IN_PROCESS)
                )
            except RuntimeError as error:
                self._say(f"{name} is left out: {str(error).splitlines()[0]}")
        return found

    def _measure(self, ours: dict[str, Rate], peers: list[Contender], count: int) -> None:
        for rate in (*ours.values(), *(peer.rate for peer in peers)):
            rate(_load(count, 1, self._seed + 97))
        for number in range(self._runs):
            load = _load(count, ROUNDS.get(count, 2), self._seed + number)
            for peer in peers if number % 2 == 0 else reversed(peers):
                our_rate = ours[peer.counterpart]
                before = self._note(peer.counterpart, count, our_rate(load))
                theirs = self._note(peer.name, count, peer.rate(load))
                after = self._note(peer.counterpart, count, our_rate(load))
                ratio = statistics.fmean((before, after)) / theirs
                self._ratios.setdefault(peer.name, {}).setdefault(str(count), []).append(ratio)
                self._say(
                    f"{count} at once, run {number + 1}: {peer.counterpart} {before:.0f} and "
                    f"{after:.0f}, {peer.name} {theirs:.0f}, ratio {ratio:.2f}"
                )

    def _note(self, name: str, count: int, rate: float) -> float:
        self._rates.setdefault(name, {}).setdefault(str(count), []).append(rate)
        return rate


def _load(count: int, rounds: int, seed: int) -> Workload:
    return fixed(count * rounds, PROMPT_COUNT, COMPLETION_COUNT, seed=seed, clients=count)


def _server_rate(stack: ExitStack, plan: ServerPlan) -> Rate:
    port = free_port()
    address = stack.enter_context(running_server(plan.on(port), port, plan.environment))
    name = served_model(address, None)

    def rate(load: Workload) -> float:
        target = HttpTarget(
            base_url=address, model=name, seed=load.seed, extra_body=dict(plan.extra_body)
        )
        return asyncio.run(_asked(target, load))

    return rate


async def _asked(target: HttpTarget, load: Workload) -> float:
    async with target.client() as client:
        started_at = time.monotonic()
        requests = await drive(load, lambda job: target.ask(client, job))
        seconds = time.monotonic() - started_at
    failures = [each.error for each in requests if each.error is not None]
    if failures:
        raise SetupError(f"{target.base_url} failed a request: {failures[0]}")
    return sum(each.completion_count for each in requests) / seconds
