"""`jitney bench overhead`: what a tick costs outside the pass, and a call over HTTP, by part.

The production tick runs on this thread, with clocks around its scheduler and its backend. Only
ticks in which everybody generates count.

    pass      the backend's part: inputs, the forward pass, and the choice of tokens
    plan      choose who runs, and make the batch
    apply     take over the outcome
    rest      text, deltas, stop strings, records, statistics

Then `jitney bench serve` sends chats from another process, of one token and of many, to a server on
a thread of this one. That gives the cost of a request and of a token: processor time of this
process in the functions of `SERVED`, and of the engine thread, whose backend is here too. `rest` is
the event loop and everything else; the process of the chat template does not count.

Tests: tests/unit/lab/bench/test_strategies.py.
"""

import logging
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pkgutil import resolve_name
from typing import Any  # Any: arguments and results of any call
from unittest.mock import patch

from jitney.cli.serve import bind, url_of
from jitney.config import ServeSettings, Settings
from jitney.core.scheduler import Scheduler
from jitney.core.scheduler_settings import Mix
from jitney.engine.clock import SystemClock
from jitney.engine.mailbox import Mailbox
from jitney.engine.observe import Observers
from jitney.engine.tick import Tick
from jitney.errors import SetupError
from jitney.loading import load_backend, select_backend
from jitney.loading.compose import assemble, scheduler_settings
from jitney.server.application import Application
from jitney.server.http.line_writer import LogWriter
from jitney.server.lifecycle import Lifecycle
from jitney_lab.bench.in_process import UNLIMITED, for_bench
from jitney_lab.bench.report import Result
from jitney_lab.bench.workload import Say, fixed

Seconds = Callable[[], float]

PROMPT_COUNT = 32
COMPLETION_COUNT = 96
PARTS = ("plan", "apply", "rest")
COLUMNS = ("sequences", "tick ms", "pass ms", *(f"{part} ms" for part in PARTS), "outside the pass")


SERVED = {
    "server.http.protocol.GuardedProtocol.data_received": "read",
    "server.routes.check_body": "check",
    "server.admission.text_steps.TextSteps.run_alone": "text",
    "server.admission.text_steps.TextSteps.run_together": "text",
    "server.answer_call.Generation._send": "submit",
    "engine.loop.Loop._run_once": "engine",
    "server.openai.replies.Reply.events": "frame",
    "server.http.protocol.GuardedProtocol.write_piece": "send",
    "server.middleware.RequestContext._note": "log",
}
"""The part of each function. `text` is template and tokenizer, without the waits."""

SETS = frozenset(UNLIMITED) | {"max_num_seqs", "mix", "backend_process"}
"""The settings that are not the user's here."""


def _timed(
    call: Callable[..., Any],
    part: str,
    seconds: dict[str, float],
    clock: Seconds = time.perf_counter,
) -> Callable[..., Any]:
    """The same call, which adds its seconds to those of a part."""

    def timed(*arguments: object, **options: object) -> object:
        started_s = clock()
        try:
            return call(*arguments, **options)
        finally:
            seconds[part] += clock() - started_s

    return timed


def measure(settings: Settings, *, sizes: tuple[int, ...], seed: int, say: Say) -> Result:
    """The parts of a tick at every size, in the median of its ticks. Raises SetupError."""
    # One backend for all sizes: another one may be chosen for few sequences.
    chosen = select_backend(for_bench(settings, max_num_seqs=max(sizes))).name
    settings = for_bench(settings, backend=chosen)
    found = {}
    for size in sizes:
        say(f"{size} at once")
        found[size] = _parts(settings, size, seed)
    rows = []
    for size, parts in found.items():
        outside = 1 - parts["pass"] / parts["tick"]
        milliseconds = [f"{1e3 * parts[part]:.3f}" for part in ("tick", "pass", *PARTS)]
        rows.append((str(size), *milliseconds, f"{100 * outside:.1f} %"))
    say(f"{max(sizes)} callers over HTTP")
    http = _served(for_bench(settings, max_num_seqs=max(sizes), backend_process=False), seed)
    return Result(
        name="overhead",
        title="What a tick costs outside the forward pass",
        columns=COLUMNS,
        rows=tuple(rows),
        notes=tuple(
            f"A {what} over HTTP: {1e6 * sum(parts.values()):,.0f} us of processor time ("
            + ", ".join(f"{part} {1e6 * each:,.1f}" for part, each in parts.items())
            + ")"
            for what, parts in http.items()
        ),
        figures={
            "backend": chosen,
            "load": {"prompt_count": PROMPT_COUNT, "completion_count": COMPLETION_COUNT},
            "seconds": found,
            "http": http,
        },
    )


def _parts(settings: Settings, size: int, seed: int) -> dict[str, float]:
    changed = for_bench(
        settings,
        max_num_seqs=size,
        backend_process=False,
        # All prompts are computed in one tick, so that all generate at the same time.
        mix=Mix.DECODE_FIRST,
        max_num_batched_tokens=max(settings.max_num_batched_tokens, size * PROMPT_COUNT),
    )
    backend = load_backend(changed)
    try:
        limits = scheduler_settings(changed, backend.traits)
        seconds = dict.fromkeys(("plan", "apply", "pass"), 0.0)
        core = Scheduler(limits, backend.traits, backend.vocabulary.eos_tokens)
        for owner, name, part in (
            (core, "plan", "plan"),
            (core, "apply", "apply"),
            (backend, "execute", "pass"),
        ):
            setattr(owner, name, _timed(getattr(owner, name), part, seconds))
        tick = Tick(core, backend, SystemClock(), Observers())
        _submit(tick, size, seed)
        ticks = []
        while tick.has_work:
            decodes_before = core.snapshot().prefilling_count == 0
            for name in seconds:
                seconds[name] = 0.0
            started_at = time.perf_counter()
            tick.run()
            whole_s = time.perf_counter() - started_at
            if decodes_before and core.snapshot().running_count == size:
                ticks.append({"tick": whole_s, **seconds})
    finally:
        backend.close()
    if not ticks:
        raise SetupError(
            f"No tick had {size} sequences that generate, so there is no figure for this size; "
            "leave it out of --sizes, or give more memory with --set kv_tokens=N."
        )
    medians = {name: statistics.median(each[name] for each in ticks) for name in ticks[0]}
    known = sum(medians[name] for name in ("plan", "apply", "pass"))
    return {**medians, "rest": medians["tick"] - known}


def _served(settings: Settings, seed: int) -> dict[str, dict[str, float]]:
    """Seconds of each part for a request and for a token, with a caller for each slot."""
    logging.basicConfig(level=logging.INFO, handlers=[LogWriter(os.open(os.devnull, os.O_WRONLY))])
    started = threading.Event()
    seconds = dict.fromkeys(SERVED.values(), 0.0)
    with ExitStack() as stack, bind("127.0.0.1", 0) as listener:
        for name, part in SERVED.items():
            call = resolve_name(f"jitney.{name}")
            stack.enter_context(
                patch(f"jitney.{name}", _timed(call, part, seconds, time.thread_time))
            )
        assembly = assemble(settings)
        stack.callback(assembly.close, 0.0)
        application = Application(assembly, ServeSettings(), ())
        stack.callback(application.close)
        lifecycle = Lifecycle(application.service, application.app)
        serving = threading.Thread(target=lifecycle.run, args=(listener, started.set))
        serving.start()
        stack.callback(serving.join)
        stack.callback(lifecycle.stop)
        started.wait()

        def one_load(length: int) -> dict[str, float]:
            seconds.update(dict.fromkeys(seconds, 0.0))
            before_s, count = time.process_time(), 8 * settings.max_num_seqs
            flags = f"--seed {seed} --max-concurrency {settings.max_num_seqs} --num-prompts {count}"
            flags += (
                f" --input-len {PROMPT_COUNT} --output-len {length} --endpoint /v1/chat/completions"
            )
            command = f"-m jitney bench serve --base-url {url_of(listener)} {flags}"
            subprocess.run(
                [sys.executable, "-P", *command.split()], check=True, capture_output=True
            )
            rest_s = time.process_time() - before_s - sum(seconds.values())
            return {part: each / count for part, each in {**seconds, "rest": rest_s}.items()}

        one_load(1)
        short, long = one_load(1), one_load(COMPLETION_COUNT)
    # What a token does not do differs by noise alone.
    token = {each: max(0.0, long[each] - short[each]) / (COMPLETION_COUNT - 1) for each in short}
    return {"request": short, "token": token}


def _submit(tick: Tick, size: int, seed: int) -> None:
    for job in fixed(size, PROMPT_COUNT, COMPLETION_COUNT, seed=seed, clients=size).jobs:
        request = job.request(job.tokens(seed, range(100, 200)))
        tick.submit(request, Mailbox(streams=True))
