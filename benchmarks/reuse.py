"""What sharing a prefix saves: the same requests with reuse and without, on any backend."""

import statistics
from collections.abc import Callable

from benchmarks.load import (
    RUNS,
    VOCABULARY,
    Figures,
    Job,
    Run,
    make_engine,
    random_jobs,
    say,
    serve,
)
from jitney.core.backend import Backend

SYSTEM_COUNT = 512
TAIL_COUNT = 30
COMPLETION_COUNT = 32
LENGTH_MAX = 768
"""Room for each sequence."""


def measure_reuse(
    load: Callable[[], Backend], *, runs: int = RUNS, warms_up: bool = False
) -> Figures:
    """Prompt tokens computed and time to the first token, without reuse over with it.

    A backend that is slow when it sees a size of batch for the first time `warms_up` on requests
    of the same sizes, whose prefixes are of no use afterwards.
    """
    computed_ratios, first_ratios = [], []
    for number in range(runs):
        computed, first = {}, {}
        # The order alternates, so that a drift of the machine does not always favour the same one.
        for reuse in (True, False) if number % 2 == 0 else (False, True):
            engine = make_engine(load(), enable_prefix_caching=reuse, model_len_max=LENGTH_MAX)
            if warms_up:
                serve(engine, _jobs(1000 + number))
            before = engine.stats().counters["computed_prompt_tokens"]
            run = serve(engine, _jobs(number))
            computed[reuse] = engine.stats().counters["computed_prompt_tokens"] - before
            first[reuse] = _median_first(run)
            engine.close()
        computed_ratios.append(computed[False] / computed[True])
        first_ratios.append(first[False] / first[True])
        say(
            f"prompt tokens computed {computed[True]} against {computed[False]} "
            f"({computed_ratios[-1]:.1f} times fewer); first token after "
            f"{first[True]:.2f} s against {first[False]:.2f} s "
            f"({first_ratios[-1]:.1f} times sooner)"
        )
    return {"computed_ratio": computed_ratios, "first_token_ratio": first_ratios}


def _jobs(number: int) -> list[Job]:
    system = random_jobs(1, SYSTEM_COUNT, 1, seed=300 + number, vocabulary_size=VOCABULARY)[0]
    tails = random_jobs(
        16, TAIL_COUNT, COMPLETION_COUNT, seed=400 + number, vocabulary_size=VOCABULARY
    )
    return [Job(system.prompt + tail.prompt, tail.completion_count) for tail in tails]


def _median_first(run: Run) -> float:
    firsts = [answer.completions[0].timing.first_token_s for answer in run.answers]
    return statistics.median(first for first in firsts if first is not None)
