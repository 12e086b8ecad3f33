"""`jitney bench compare`: the same workload on jitney and on the peers that are installed.

Servers are compared with `jitney serve`, libraries with jitney in process. All are loaded and warm
before the first clock starts. Jitney is measured before and after each peer, and a ratio is its
mean over theirs, so what drifts on a shared machine cancels out. What comes after one peer is what
comes before the next. Every other run goes backwards.
"""

import asyncio
import heapq
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from jitney.config import Resolved, Settings, known_settings
from jitney.errors import SetupError
from jitney.loading import ready_model
from jitney.loading.model_source import located, source_of
from jitney_lab.bench.drive import drive
from jitney_lab.bench.http_target import HttpTarget, served_model
from jitney_lab.bench.in_process import UNLIMITED, engine_target, for_bench
from jitney_lab.bench.peers.libraries import library_peers
from jitney_lab.bench.peers.server_process import free_port, running_server
from jitney_lab.bench.peers.servers import (
    ROOM_TOKENS,
    Room,
    ServerPlan,
    jitney_server,
    llama_servers,
    other_servers,
    unpack_for_vllm,
    vllm_python,
    vllm_servers,
)
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
CLOSE_MIN = 0.75
"""Two settings are close if the slower has at least this share of the faster's speed."""

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

Family = Callable[[Room], list[ServerPlan]]
"""Every way to start one system, of which the fastest is measured."""


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
    usual = Settings()
    found = located(
        replace(
            settings,
            backend="llamacpp",
            # Those of OpenVINO, which say nothing about this file.
            dtype=usual.dtype,
            kv_cache_dtype=usual.kv_cache_dtype,
        )
    )
    given = source_of(found)
    try:
        ready = ready_model(found)
    except SetupError as error:
        say(f"Nobody is measured with a file that jitney converts for llama.cpp: {error}")
        return {"": given}
    return {"": given} if ready == given else {"": given, CONVERTED: ready}


def sizes_at(count: int) -> dict[str, object]:
    """Our settings for so many clients."""
    return {"max_num_seqs": count, "max_model_len": ROOM_TOKENS}


class Comparison:
    """Measures everybody on one model, at one number of clients after the other."""

    def __init__(
        self, resolved: Resolved, files: dict[str, Path], *, runs: int, seed: int, say: Say
    ) -> None:
        self._resolved = resolved
        self._files = files
        self._model = files[""]
        self._runs = runs
        self._seed = seed
        self._say = say
        self._calm = CalmParts(say)
        self._families: list[Family] = []
        self._best: list[ServerPlan] = []
        self._tried: list[str] = []
        self._left_out: list[str] = []
        self._eos_tokens: tuple[int, ...] = ()
        self._backends: dict[str, str] = {}
        self._rates: dict[str, dict[str, list[float]]] = {}
        self._ratios: dict[str, dict[str, list[float]]] = {}
        self._compared_with: dict[str, str] = {}

    def run(self, clients: tuple[int, ...] = CLIENTS) -> Result:
        """Search the peers' best settings, and measure. Raises SetupError."""
        with ExitStack() as files:
            self._families = self._found_families(files)
            for family in self._families:
                self._search(family, min(max(clients), SEARCH_CLIENTS_MAX))
            for count in clients:
                self._measure_at(count)
        return self._result(clients)

    def _measure_at(self, count: int) -> None:
        try:
            with ExitStack() as stack:
                ours = self._ours(stack, count)
                self._measure(ours, self._peers(stack, count), count)
        except SetupError as error:
            # What was measured before is not lost.
            if not self._rates:
                raise
            self._leave_out(f"jitney at {count}", error)

    def _result(self, clients: tuple[int, ...]) -> Result:
        rows = []
        for shown in map(str, clients):
            for name, rates in self._rates.items():
                ratios = self._ratios.get(name, {}).get(shown)
                if shown in rates:
                    over = "" if ratios is None else spread(ratios)
                    rows.append((name, shown, spread(rates[shown], 0), over))
        return Result(
            name="compare",
            title=f"{PROMPT_COUNT} tokens in, {COMPLETION_COUNT} out, median of {self._runs}",
            columns=("system", "clients", "tokens/s", "jitney over it"),
            rows=tuple(rows),
            notes=(
                *self._tried,
                *self._left_out,
                *(() if self._ratios else (NOBODY,)),
            ),
            figures={
                "runs": self._runs,
                "stolen_share": self._calm.share,
                "load": {"prompt_count": PROMPT_COUNT, "completion_count": COMPLETION_COUNT},
                "backend": self._backends,
                "tokens_per_s": self._rates,
                "jitney_over": self._ratios,
                "compared_with": self._compared_with,
                "chosen": {plan.name: plan.settings for plan in self._best},
                "tried": self._tried,
                "left_out": self._left_out,
            },
        )

    def _found_families(self, files: ExitStack) -> list[Family]:
        """llama-server on each file, and vLLM, whose files live as long as the stack."""
        families: list[Family] = [
            partial(llama_servers, file, label=label) for label, file in self._files.items()
        ]
        python = vllm_python()
        if python is not None:
            folder = Path(files.enter_context(TemporaryDirectory())) / self._model.stem
            self._say("Unpacking the model for vLLM; it takes a minute or more")
            try:
                unpack_for_vllm(python, self._model, folder)
                families.append(partial(vllm_servers, python, folder))
            except SetupError as error:
                self._leave_out("vLLM", error)
        return families

    def _search(self, family: Family, count: int) -> None:
        """Find the fastest build and settings of a system for so many clients: a trial of each, and
        one more of the two best if they are close, because a single one may have been disturbed.

        Of a build that is several times slower than another build, no more settings are tried.
        """
        speeds: dict[str, float] = {}
        plans: dict[str, ServerPlan] = {}
        short_best: dict[str, float] = {}
        slow: set[str] = set()
        for plan in family(Room(slots=count)):
            if plan.name in slow:
                continue
            others = [best for name, best in short_best.items() if name != plan.name]
            short_min = max(others, default=0.0) / SLOWER_MAX
            tried = self._try(plan, count, short_min)
            if tried is not None:
                short, speed = tried
                short_best[plan.name] = max(short_best.get(plan.name, 0.0), short)
                if short_best[plan.name] < short_min:
                    slow.add(plan.name)
                if speed is not None:
                    plans[plan.settings + plan.name] = plan
                    speeds[plan.settings + plan.name] = speed
        for key in _close_best(speeds):
            tried = self._try(plans[key], count, 0.0)
            if tried is not None and tried[1] is not None:
                speeds[key] = max(speeds[key], tried[1])
        if speeds:
            self._best.append(plans[max(speeds, key=speeds.__getitem__)])

    def _try(
        self, plan: ServerPlan, count: int, short_min: float
    ) -> tuple[float, float | None] | None:
        """Tokens per second of a short load and of a longer one, which a server that is slower
        than `short_min` is spared; None if it does not run."""
        speed = None
        self._say(f"Trying {plan.name}, {plan.settings}")
        try:
            with ExitStack() as stack:
                rate = _server_rate(stack, plan)
                load = fixed(count, 32, 8, seed=self._seed, clients=count)
                short = self._calm_rate(rate, load)
                if short >= short_min:
                    seed = self._seed + 99
                    load = _load(count, 1, seed, SEARCH_COMPLETION_COUNT)
                    speed = self._calm_rate(rate, load)
        except Exception as error:  # a foreign system may fail in any way
            self._leave_out(f"{plan.name} ({plan.settings})", error)
            return None
        sentence = f"Tried {plan.name}, {plan.settings}: {_told(short, speed)}"
        self._say(sentence)
        self._tried.append(sentence)
        return short, speed

    def _ours(self, stack: ExitStack, count: int) -> dict[str, Rate]:
        """Jitney as a server and in process, both with the user's settings."""
        settings = self._resolved.settings
        changed = for_bench(settings, **sizes_at(count))
        target = stack.enter_context(engine_target(changed))
        self._eos_tokens = target.eos_tokens
        self._backends[str(count)] = target.traits.name
        # The embedded model has no name: it runs as it does by default.
        model = None if settings.model is None else self._model
        server = jitney_server(model, self._given(changed))

        def in_process(load: Workload) -> float:
            run = target.run(load)
            if run.failures:
                raise SetupError(f"jitney failed a request: {run.failures[0]}")
            return float(str(summary(run.requests, run.duration_s)["output_throughput"]))

        return {SERVED: _server_rate(stack, server), IN_PROCESS: in_process}

    def _given(self, changed: Settings) -> dict[str, object]:
        """What our server must be told: what the user gave, and what is not the default."""
        given = self._resolved.given()
        values = {each.name: getattr(changed, each.name) for each in known_settings()}
        return {
            each.name: values[each.name]
            for each in known_settings()
            if each.name != "model" and (each.name in given or values[each.name] != each.default)
        }

    def _peers(self, stack: ExitStack, count: int) -> list[Contender]:
        """The peers that start, those with a choice of settings as they were fastest."""
        room = Room(slots=count)
        best = {(plan.name, plan.settings) for plan in self._best}
        plans = [
            plan
            for family in self._families
            for plan in family(room)
            if (plan.name, plan.settings) in best
        ]
        peers = []
        for plan in plans + other_servers(self._model, room, self._eos_tokens):
            try:
                peers.append(Contender(plan.name, _server_rate(stack, plan), SERVED))
            except Exception as error:  # a foreign system may fail in any way
                self._leave_out(f"{plan.name} at {count}", error)
        for name, load in library_peers(self._model, count):
            try:
                peers.append(Contender(name, load(), IN_PROCESS))
            except Exception as error:  # as above
                self._leave_out(f"{name} at {count}", error)
        return peers

    def _measure(self, ours: dict[str, Rate], peers: list[Contender], count: int) -> None:
        for rate in ours.values():
            rate(self._warm_load(count))
        left = [peer for peer in peers if self._is_warm(peer, count)]
        for number in range(self._runs):
            load = _load(count, ROUNDS.get(count, 1), self._seed + number)
            name_before, before = "", 0.0
            for peer in list(left if number % 2 == 0 else reversed(left)):
                our_rate = ours[peer.counterpart]
                if peer.counterpart != name_before:
                    before = self._note(peer.counterpart, count, self._calm_rate(our_rate, load))
                after = self._measure_peer(peer, load, before, our_rate, number)
                if after is None:
                    left.remove(peer)
                name_before, before = ("", 0.0) if after is None else (peer.counterpart, after)
            # Ours is measured also where nobody is there to be compared with it.
            compared = {peer.counterpart for peer in left}
            for name in ours:
                if name not in compared:
                    self._note(name, count, self._calm_rate(ours[name], load))

    def _is_warm(self, peer: Contender, count: int) -> bool:
        """Run a short load; false if the peer cannot, and then it is left out."""
        try:
            peer.rate(self._warm_load(count))
        except Exception as error:  # a foreign system may fail in any way
            self._leave_out(f"{peer.name} at {count}", error)
            return False
        return True

    def _warm_load(self, count: int) -> Workload:
        return _load(count, 1, self._seed + 97, WARM_COMPLETION_COUNT)

    def _measure_peer(
        self, peer: Contender, load: Workload, before: float, our_rate: Rate, number: int
    ) -> float | None:
        """Theirs, and ours after it, which it returns; None if the peer fails and is left out."""
        count = load.clients or 1
        try:
            theirs = self._calm_rate(peer.rate, load)
            if theirs <= 0:
                raise SetupError("it made no tokens")
        except Exception as error:  # a foreign system may fail in any way
            self._leave_out(f"{peer.name} at {count}, from run {number + 1} on", error)
            return None
        self._note(peer.name, count, theirs)
        self._compared_with[peer.name] = peer.counterpart
        after = self._note(peer.counterpart, count, self._calm_rate(our_rate, load))
        ratio = statistics.fmean((before, after)) / theirs
        self._ratios.setdefault(peer.name, {}).setdefault(str(count), []).append(ratio)
        self._say(
            f"{count} at once, run {number + 1}: {peer.counterpart} {before:.0f} and "
            f"{after:.0f}, {peer.name} {theirs:.0f}, ratio {ratio:.2f}"
        )
        return after

    def _calm_rate(self, rate: Rate, load: Workload) -> float:
        return self._calm.measure(partial(rate, load))

    def _leave_out(self, who: str, error: Exception) -> None:
        reason = " ".join(str(error).split())[:REASON_CHARACTERS_MAX] or type(error).__name__
        sentence = f"{who} is left out: {reason}"
        self._say(sentence)
        self._left_out.append(sentence)

    def _note(self, name: str, count: int, rate: float) -> float:
        self._rates.setdefault(name, {}).setdefault(str(count), []).append(rate)
        return rate


def _close_best(speeds: dict[str, float]) -> list[str]:
    """The two fastest, if they are close; else none."""
    best = heapq.nlargest(2, speeds, speeds.__getitem__)
    return best if len(best) > 1 and speeds[best[1]] >= CLOSE_MIN * speeds[best[0]] else []


def _load(count: int, rounds: int, seed: int, completion_count: int = COMPLETION_COUNT) -> Workload:
    return fixed(count * rounds, PROMPT_COUNT, completion_count, seed=seed, clients=count)


def _server_rate(stack: ExitStack, plan: ServerPlan) -> Rate:
    """Start a server, which lives as long as `stack`. Raises SetupError."""
    port = free_port()
    with ExitStack() as undo:
        address = undo.enter_context(running_server(plan.on(port), port, plan.environment))
        name = served_model(address, None)
        stack.push(undo.pop_all())

    def rate(load: Workload) -> float:
        target = HttpTarget(
            base_url=address, model=name, seed=load.seed, extra_body=dict(plan.extra_body)
        )
        return asyncio.run(_asked(target, load))

    return rate


def _told(short: float, speed: float | None) -> str:
    return f"{short:.0f} tokens/s on a short load" if speed is None else f"{speed:.0f} tokens/s"


async def _asked(target: HttpTarget, load: Workload) -> float:
    async with target.client() as client:
        started_at = time.monotonic()
        requests = await drive(load, lambda job: target.ask(client, job))
        seconds = time.monotonic() - started_at
    failures = [each.error for each in requests if each.error is not None]
    if failures:
        raise SetupError(f"{target.base_url} failed a request: {failures[0]}")
    made = sum(each.completion_count for each in requests)
    wanted = sum(job.completion_count for job in load.jobs)
    # A server without `usage` may send two tokens at once.
    if made < (1 - SHORT_MAX) * wanted:
        raise SetupError(f"{target.base_url} made {made} of {wanted} tokens: its answers end early")
    return made / seconds
