"""`jitney bench stalls`: what one long prompt does to those who are generating.

Eight streams generate, then a long prompt arrives. Under one large prefill the streams stand still
until it is computed. Under `bounded-stall` it is computed in slices beside them, and its own first
token comes a little later.
"""

import itertools
from functools import partial

from jitney.config import Settings
from jitney.core.scheduler_settings import Mix
from jitney.errors import SetupError
from jitney_lab.bench.in_process import JOINING, UNLIMITED, EngineRun, engine_target, for_bench
from jitney_lab.bench.report import Result, spread
from jitney_lab.bench.steal import CalmParts
from jitney_lab.bench.workload import Job, Say, Workload

STREAM_COUNT = 8
STREAM_PROMPT_COUNT = 32
STREAM_TOKENS = 640
"""Enough to outlast the prompt: a slice has at least 16 tokens, so 4,000 take at most 250 ticks.
When the prompt has its first token, the streams are cancelled."""

ARRIVES_S = 1.0
"""The prompt comes so long after the streams."""

LARGE = "one large prefill"
BOUNDED = "bounded-stall"
COLUMNS = ("prefill", "worst gap ms", "first token of the prompt s")
SETS = frozenset(UNLIMITED) | JOINING.keys() | {"max_num_seqs", "max_model_len", "mix"}
"""The settings that are not the user's here."""


def measure(settings: Settings, *, prompt_count: int, runs: int, seed: int, say: Say) -> Result:
    """The worst gap of the streams and the first token of the prompt, both ways in turn."""
    found: dict[str, list[dict[str, object]]] = {name: [] for name in _changes(prompt_count)}
    calm = CalmParts(say)
    for number in range(runs):
        changes = list(_changes(prompt_count).items())
        for name, change in changes if number % 2 == 0 else reversed(changes):
            say(f"run {number + 1} of {runs}, {name}")
            room = max(prompt_count + 1, STREAM_PROMPT_COUNT + STREAM_TOKENS)
            sizes = {"max_num_seqs": STREAM_COUNT + 1, "max_model_len": room}
            changed = for_bench(settings, **JOINING, **sizes, **change)
            with engine_target(changed) as target:
                backend = target.traits.name
                # The first time, the sizes of its passes and their cost are new to it.
                run = partial(target.run, last_job=STREAM_COUNT)
                run(_load(prompt_count, seed + runs + number))
                load = _load(prompt_count, seed + number)
                found[name].append(_figures(calm.measure(partial(run, load))))

    figures: dict[str, object] = {
        "runs": runs,
        "stolen_share": calm.share,
        "backend": backend,
        "load": {"streams": STREAM_COUNT, "arrives_s": ARRIVES_S},
        "prompt_count": prompt_count,
    }
    return _result(found, figures)


def _result(found: dict[str, list[dict[str, object]]], figures: dict[str, object]) -> Result:
    """Both ways run by run, as a table and as a sentence."""

    def values(name: str, key: str) -> list[float]:
        return [float(str(each[key])) for each in found[name]]

    def ratios(key: str) -> list[float]:
        pairs = zip(values(BOUNDED, key), values(LARGE, key), strict=True)
        return [ours / theirs for ours, theirs in pairs]

    rows = tuple(
        (name, spread(values(name, "worst_gap_ms"), 0), spread(values(name, "ttft_s")))
        for name in found
    )
    note = (
        f"{BOUNDED} against {LARGE}: the worst gap is {spread(ratios('worst_gap_ms'))} of it, the "
        f"first token of the prompt takes {spread(ratios('ttft_s'))} times as long."
    )
    return Result(
        name="stalls",
        title=f"{STREAM_COUNT} streams and a prompt of {figures['prompt_count']:,} tokens, "
        f"median of {figures['runs']}",
        columns=COLUMNS,
        rows=rows,
        notes=(note,),
        figures={**figures, "ways": found},
    )


def _changes(prompt_count: int) -> dict[str, dict[str, object]]:
    # The streams' own prompts are computed in one pass too, however short the long one is.
    whole = max(prompt_count + STREAM_COUNT, STREAM_COUNT * STREAM_PROMPT_COUNT)
    large = {"max_num_batched_tokens": whole, "prefill_chunk": whole}
    return {LARGE: {"mix": Mix.DECODE_FIRST, **large}, BOUNDED: {"mix": Mix.BOUNDED_STALL}}


def _load(prompt_count: int, seed: int) -> Workload:
    streams = [
        Job(number=number, prompt_count=STREAM_PROMPT_COUNT, completion_count=STREAM_TOKENS)
        for number in range(STREAM_COUNT)
    ]
    long = Job(number=STREAM_COUNT, at_s=ARRIVES_S, prompt_count=prompt_count, completion_count=1)
    return Workload(name="stalls", seed=seed, jobs=(*streams, long))


def _figures(run: EngineRun) -> dict[str, object]:
    """The gaps of all streams while the prompt was computed. Raises a SetupError."""
    *streams, long = run.requests
    if run.failures or long.ttft_s is None:
        reason = run.failures[0] if run.failures else "no token came."
        raise SetupError(f"A request failed: {reason}")
    first_at = long.token_times[0]
    if min(stream.token_times[-1] for stream in streams) < first_at:
        raise SetupError(
            "The streams were over before the first token of the prompt came, so their gaps mean "
            "nothing; take a shorter prompt (--input-len) or a larger model."
        )
    by_stream = [
        [
            (round(later - long.sent_at, 4), round(1e3 * (later - earlier), 2))
            for earlier, later in itertools.pairwise(stream.token_times)
            if later > long.sent_at and earlier < first_at
        ]
        for stream in streams
    ]
    if not any(by_stream):
        raise SetupError("No stream had begun when the first token of the prompt came; try again.")
    worst_ms, worst = max(
        ((gap, gaps) for gaps in by_stream for _, gap in gaps), key=lambda pair: pair[0]
    )
    return {
        "worst_gap_ms": worst_ms,
        "ttft_s": long.ttft_s,
        # That with the worst gap.
        "gaps_of_one_stream": worst,
    }
