"""The same workload on jitney and on the other systems that are installed.

All are loaded and warm before the first clock starts. Jitney is measured before and after each of
the others, and a ratio is its mean over theirs, so what drifts on a shared machine cancels out.
What comes after one is what comes before the next. Every other run goes backwards.
"""

import asyncio
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.compare.libraries import library_peers
from benchmarks.compare.server_process import free_port, running_server
from benchmarks.compare.servers import (
    ROOM_TOKENS,
    ServerPlan,
    jitney_server,
    llama_servers,
    other_servers,
    unpack_for_vllm,
    vllm_python,
    vllm_servers,
)
from jitney.cli.failures import say
from jitney.config import Settings
from jitney.errors import SetupError
from jitney.loading import ready_model
from jitney.loading.model_source import located, source_of
from jitney_lab.bench.drive import drive
from jitney_lab.bench.http_target import HttpTarget, served_model
from jitney_lab.bench.in_process import UNLIMITED, engine_target, for_bench
from jitney_lab.bench.report import Result, spread
from jitney_lab.bench.steal import CalmParts
from jitney_lab.bench.timing import summary
from jitney_lab.bench.workload import Say, Workload, fixed

PROMPT_COUNT = 128
COMPLETION_COUNT = 64
CLIENTS = (1, 4, 16, 64)
ROUNDS = {1: 4, 4: 3, 16: 2}
"""How often each client asks: fewer rounds where more clients ask."""

CONVERTED = " with our file"
SEARCH_CLIENTS_MAX = 16
"""Settings are searched with the most clients that are asked for, up to this number."""

SEARCH_COMPLETION_COUNT = 32
WARM_COMPLETION_COUNT = 8
SLOWER_MAX = 3.0
"""A server that is so many times slower than the fastest on a short load gets no longer one."""

SHORT_MAX = 0.05
"""Answers may be shorter by this share."""

REASON_CHARACTERS_MAX = 400
NOBODY = (
    "No other system was measured. Install one beside jitney, such as xllamacpp, openvino-genai "
    "or transformers with torch, or name a llama-server with LLAMA_SERVER."
)
IN_PROCESS = "jitney"
SERVED = "jitney serve"

SETS = frozenset(UNLIMITED) | {"max_num_seqs", "max_model_len"}
"""The settings that are not the user's here."""

Rate = Callable[[Workload], float]
"""Runs a workload; completion tokens per second."""

Family = Callable[[int], list[ServerPlan]]
"""Every way to start one system with so many slots, of which the fastest is measured."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One system, loaded. `counterpart` is the name of ours that it is compared with."""

    name: str
    rate: Rate
    counterpart: str


def files_of(settings: Settings, say: Say) -> dict[str, Path]:
    """The GGUF file that everybody runs, and how others are named with it. Raises a SetupError.

    We convert the embedded model for llama.cpp, once. llama-server is measured with that file too:
    what its users have, and what they could have. Without llama.cpp here, there is none.
    """
    # Number formats of OpenVINO say nothing about this file.
    usual = Settings()
    formats = {"dtype": usual.dtype, "kv_cache_dtype": usual.kv_cache_dtype}
    found = located(replace(settings, backend="llamacpp", **formats))  # type: ignore[arg-type]
    source = source_of(found)
    try:
        ready = ready_model(found)
    except SetupError as error:
        say(f"Nobody is measured with a file that jitney converts for llama.cpp: {error}")
        return {"": source}
    return {"": source} if ready == source else {"": source, CONVERTED: ready}


def sizes_at(count: int) -> dict[str, object]:
    """Our settings for so many clients."""
    return {"max_num_seqs": count, "max_model_len": ROOM_TOKENS}


class Comparison:
    """Measures everybody on one model, at one number of clients after the other.

    `words` are the settings that the user chose, as text, for our server.
    """

    def __init__(
        self,
        settings: Settings,
        words: dict[str, str],
        files: dict[str, Path],
        *,
        runs: int,
        seed: int,
    ) -> None:
        self._settings = settings
        self._words = words
        self._files = files
        self._model = files[""]
        self._runs = runs
        self._seed = seed
        self._calm = CalmParts(say)
        self._best: list[ServerPlan] = []
        self._notes: list[str] = []
        self._eos_tokens: tuple[int, ...] = ()
        self._backends: dict[str, str] = {}
        self._rates: dict[str, dict[str, list[float]]] = {}
        self._ratios: dict[str, dict[str, list[float]]] = {}
        self._compared_with: dict[str, str] = {}

    def run(self, clients: tuple[int, ...] = CLIENTS) -> Result:
        """Search the others' best settings, and measure. Raises SetupError."""
        with ExitStack() as files:
            families = self._families(files)
            for family in families:
                self._search(family, min(max(clients), SEARCH_CLIENTS_MAX))
            for count in clients:
                try:
                    with ExitStack() as stack:
                        ours = self._ours(stack, count)
                        self._measure(ours, self._peers(stack, families, count), count)
                except SetupError as error:
                    # What was measured before is not lost.
                    if not self._rates:
                        raise
                    self._leave_out(f"jitney at {count}", error)
        return self._result(clients)

    def _result(self, clients: tuple[int, ...]) -> Result:
        rows = []
        for count in map(str, clients):
            for name, rates in self._rates.items():
                ratios = self._ratios.get(name, {}).get(count)
                if count in rates:
                    over = "" if ratios is None else spread(ratios)
                    rows.append((name, count, spread(rates[count], 0), over))
        return Result(
            name="compare",
            title=f"{PROMPT_COUNT} tokens in, {COMPLETION_COUNT} out, median of {self._runs}",
            columns=("system", "clients", "tokens/s", "jitney over it"),
            rows=tuple(rows),
            notes=(*self._notes, *(() if self._ratios else (NOBODY,))),
            figures={
                "runs": self._runs,
                "stolen_share": self._calm.share,
                "load": {"prompt_count": PROMPT_COUNT, "completion_count": COMPLETION_COUNT},
                "backend": self._backends,
                "tokens_per_s": self._rates,
                "jitney_over": self._ratios,
                "compared_with": self._compared_with,
                "chosen": {plan.name: plan.settings for plan in self._best},
                "notes": self._notes,
            },
        )

    def _families(self, files: ExitStack) -> list[Family]:
        """llama-server on each file, and vLLM, whose files live as long as the stack."""
        families: list[Family] = [
            partial(llama_servers, file, label=label) for label, file in self._files.items()
        ]
        python = vllm_python()
        if python is not None:
            folder = Path(files.enter_context(TemporaryDirectory())) / self._model.stem
            say("Unpacking the model for vLLM; it takes a minute or more")
            try:
                unpack_for_vllm(python, self._model, folder)
                families.append(partial(vllm_servers, python, folder))
            except SetupError as error:
                self._leave_out("vLLM", error)
        return families

    def _search(self, family: Family, count: int) -> None:
        """Find the fastest build and settings of a system for so many clients, by a trial each."""
        best, best_speed, best_short = None, 0.0, 0.0
        for plan in family(count):
            who = f"{plan.name}, {plan.settings}"
            say(f"Trying {who}")
            try:
                with ExitStack() as stack:
                    rate = _server_rate(stack, plan)
                    short = self._calm_rate(
                        rate, fixed(count, 32, 8, seed=self._seed, clients=count)
                    )
                    best_short = max(short, best_short)
                    if short < best_short / SLOWER_MAX:
                        self._note(f"Tried {who}: {short:.0f} tokens/s on a short load")
                        continue
                    load = _load(count, 1, self._seed + 99, SEARCH_COMPLETION_COUNT)
                    speed = self._calm_rate(rate, load)
            except Exception as error:  # a foreign system may fail in any way
                self._leave_out(who, error)
                continue
            self._note(f"Tried {who}: {speed:.0f} tokens/s")
            if speed > best_speed:
                best, best_speed = plan, speed
        if best is not None:
            self._best.append(best)

    def _ours(self, stack: ExitStack, count: int) -> dict[str, Rate]:
        """Jitney as a server and in process, both with the user's settings."""
        target = stack.enter_context(engine_target(for_bench(self._settings, **sizes_at(count))))
        self._eos_tokens = target.engine.backend.vocabulary.eos_tokens
        self._backends[str(count)] = target.traits.name
        # The embedded model has no name: it runs as it does by default.
        model = None if self._settings.model is None else self._model
        server = jitney_server(model, self._words, count)

        def in_process(load: Workload) -> float:
            run = target.run(load)
            if run.failures:
                raise SetupError(f"jitney failed a request: {run.failures[0]}")
            return float(str(summary(run.requests, run.duration_s)["output_throughput"]))

        return {SERVED: _server_rate(stack, server), IN_PROCESS: in_process}

    def _peers(self, stack: ExitStack, families: list[Family], count: int) -> list[Contender]:
        """The others that start and run a short load, as they were fastest."""
        best = {(plan.name, plan.settings) for plan in self._best}
        plans = [plan for family in families for plan in family(count)]
        plans = [plan for plan in plans if (plan.name, plan.settings) in best]
        loaders: list[tuple[str, str, Callable[[], Rate]]] = [
            (plan.name, SERVED, partial(_server_rate, stack, plan))
            for plan in plans + other_servers(self._model, self._eos_tokens)
        ]
        loaders += [(name, IN_PROCESS, load) for name, load in library_peers(self._model, count)]
        peers = []
        for name, counterpart, load in loaders:
            try:
                rate = load()
                rate(self._warm_load(count))
                peers.append(Contender(name, rate, counterpart))
            except Exception as error:  # a foreign system may fail in any way
                self._leave_out(f"{name} at {count}", error)
        return peers

    def _measure(self, ours: dict[str, Rate], peers: list[Contender], count: int) -> None:
        for rate in ours.values():
            rate(self._warm_load(count))
        left = list(peers)
        for number in range(self._runs):
            load = _load(count, ROUNDS.get(count, 1), self._seed + number)
            name_before, before = "", 0.0
            for peer in list(left if number % 2 == 0 else reversed(left)):
                our_rate = ours[peer.counterpart]
                if peer.counterpart != name_before:
                    before = self._keep(peer.counterpart, count, self._calm_rate(our_rate, load))
                try:
                    theirs = self._calm_rate(peer.rate, load)
                    if theirs <= 0:
                        raise SetupError("it made no tokens")
                except Exception as error:  # a foreign system may fail in any way
                    self._leave_out(f"{peer.name} at {count}, from run {number + 1} on", error)
                    left.remove(peer)
                    name_before = ""
                    continue
                after = self._keep(peer.counterpart, count, self._calm_rate(our_rate, load))
                self._compare(peer, count, theirs, (before, after))
                name_before, before = peer.counterpart, after
            # Ours is measured also where nobody is there to be compared with it.
            compared = {peer.counterpart for peer in left}
            for name in ours:
                if name not in compared:
                    self._keep(name, count, self._calm_rate(ours[name], load))

    def _compare(
        self, peer: Contender, count: int, theirs: float, ours: tuple[float, float]
    ) -> None:
        """Note a ratio: ours before and after, over theirs."""
        self._keep(peer.name, count, theirs)
        self._compared_with[peer.name] = peer.counterpart
        ratio = statistics.fmean(ours) / theirs
        self._ratios.setdefault(peer.name, {}).setdefault(str(count), []).append(ratio)
        say(
            f"{count} at once: {peer.counterpart} {ours[0]:.0f} and {ours[1]:.0f}, "
            f"{peer.name} {theirs:.0f}, ratio {ratio:.2f}"
        )

    def _warm_load(self, count: int) -> Workload:
        return _load(count, 1, self._seed + 97, WARM_COMPLETION_COUNT)

    def _calm_rate(self, rate: Rate, load: Workload) -> float:
        return self._calm.measure(partial(rate, load))

    def _leave_out(self, who: str, error: Exception) -> None:
        reason = " ".join(str(error).split())[:REASON_CHARACTERS_MAX] or type(error).__name__
        self._note(f"{who} is left out: {reason}")

    def _note(self, sentence: str) -> None:
        say(sentence)
        self._notes.append(sentence)

    def _keep(self, name: str, count: int, rate: float) -> float:
        self._rates.setdefault(name, {}).setdefault(str(count), []).append(rate)
        return rate


def _load(count: int, rounds: int, seed: int, completion_count: int = COMPLETION_COUNT) -> Workload:
    return fixed(count * rounds, PROMPT_COUNT, completion_count, seed=seed, clients=count)


def _server_rate(stack: ExitStack, plan: ServerPlan) -> Rate:
    """Start a server, which lives as long as `stack`. Raises SetupError."""
    port = free_port()
    address = stack.enter_context(running_server(plan.on(port), port, plan.environment))
    name = served_model(address, None)

    def rate(load: Workload) -> float:
        target = HttpTarget(
            base_url=address, model=name, seed=load.seed, extra_body=dict(plan.extra_body)
        )
        return asyncio.run(_served_rate(target, load))

    return rate


async def _served_rate(target: HttpTarget, load: Workload) -> float:
    async with target.client() as client:
        started_at = time.monotonic()
        requests = await drive(load, lambda job: target.ask(client, job))
        seconds = time.monotonic() - started_at
    failures = [each.error for each in requests if each.error is not None]
    if failures:
        raise SetupError(f"{target.base_url} failed a request: {failures[0]}")
    count = sum(each.completion_count for each in requests)
    expected = sum(job.completion_count for job in load.jobs)
    # A server without `usage` may send two tokens at once.
    if count < (1 - SHORT_MAX) * expected:
        raise SetupError(
            f"{target.base_url} made {count} of {expected} tokens: its answers end early"
        )
    return count / seconds
