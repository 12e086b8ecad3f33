"""The groups of the strategy `adaptive` under three loads, as a plot.

`python -m benchmarks.adaptive` writes `docs/images/adaptive.png`; matplotlib is in `.[bench]`. The
production scheduler runs on the fake backend and on time that passes when it is told to, so the
same sizes come out on every machine.

    calm    few arrive: a group is whoever came while the last one ran
    deep    more arrive than leave: groups fill every place
    slow    as deep, but full groups make ticks longer than the target: groups are smaller
"""

import argparse
import random
from dataclasses import dataclass
from pathlib import Path

from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.core.events import StartEvent
from jitney.core.params import SamplingParams
from jitney.core.request import Request, RequestId
from jitney.core.scheduler import Scheduler
from jitney.core.scheduler_settings import SchedulerSettings, Strategy

SEQUENCES_MAX = 16
TICK_S_TARGET = 0.05
PROMPT_COUNT = 4
COMPLETION_COUNT = 16
VOCABULARY = 256
SECONDS = 20.0
TICK_S = 0.005
IMAGE = Path(__file__).parents[1] / "docs" / "images" / "adaptive.png"


@dataclass(frozen=True, slots=True)
class Load:
    """How many requests arrive, and what each of their tokens takes beside `TICK_S` a tick."""

    name: str
    per_s: float
    token_s: float

    @property
    def size_in_target(self) -> int:
        """The largest group whose ticks take no longer than the target, one token each."""
        return min(SEQUENCES_MAX, int((TICK_S_TARGET - TICK_S) / self.token_s))


@dataclass(slots=True)
class Departure:
    """A group, and when it left."""

    at_s: float
    size: int = 0


CALM = Load("calm", per_s=4.0, token_s=0.001)
DEEP = Load("deep", per_s=50.0, token_s=0.001)
SLOW = Load("slow", per_s=50.0, token_s=0.006)
LOADS = (CALM, DEEP, SLOW)


def departures(load: Load) -> list[Departure]:
    """Every group that departs within `SECONDS`."""
    backend = FakeBackend(FakeSettings(eos_period=0, tick_s=TICK_S, token_s=load.token_s))
    settings = SchedulerSettings(
        model_len_max=backend.traits.model_len_max,
        max_num_seqs=SEQUENCES_MAX,
        strategy=Strategy.ADAPTIVE,
        stall_s_target=TICK_S_TARGET,
        enable_prefix_caching=False,
    )
    scheduler = Scheduler(settings, backend.traits, backend.vocabulary.eos_tokens)
    arrivals = _arrivals(load)
    found: list[Departure] = []
    now = 0.0
    while now < SECONDS:
        while arrivals[-1].arrived_at <= now:
            scheduler.submit(arrivals.pop().request, now)
        planned = scheduler.plan(now)
        if scheduler.counters["groups_departed"] > len(found):
            found.append(Departure(now))
        if planned is None:
            wake_at = scheduler.wake_at(now)
            next_at = arrivals[-1].arrived_at
            now = next_at if wake_at is None else min(wake_at, next_at)
            continue
        outcome = backend.execute(planned.batch)
        now += outcome.seconds
        events = scheduler.apply(planned, outcome, now)
        if found:
            found[-1].size += sum(isinstance(event, StartEvent) for event in events)
    return found


@dataclass(frozen=True, slots=True)
class _Arrival:
    arrived_at: float
    request: Request


def _arrivals(load: Load) -> list[_Arrival]:
    """The last one first; one of them comes after the end."""
    generator = random.Random(load.name)
    params = SamplingParams(temperature=0.0, max_tokens=COMPLETION_COUNT)
    found: list[_Arrival] = []
    at_s = 0.0
    while at_s < SECONDS:
        at_s += generator.expovariate(load.per_s)
        prompt = tuple(generator.randrange(VOCABULARY) for _ in range(PROMPT_COUNT))
        request = Request(id=RequestId(str(len(found))), prompt=prompt, params=params, seed=0)
        found.append(_Arrival(at_s, request))
    return found[::-1]


def draw(groups: dict[Load, list[Departure]], path: Path) -> None:
    """One line for each load, with a dot where a group departs."""
    # Only whoever draws needs it.
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4), layout="constrained")
    for load, found in groups.items():
        times = [each.at_s for each in found]
        sizes = [each.size for each in found]
        (line,) = axes.step(times, sizes, ".-", where="post", label=_label(load))
        if load is SLOW:
            size = load.size_in_target
            target = f"ticks of {size} take {1e3 * TICK_S_TARGET:.0f} ms, the target"
            axes.axhline(size, color=line.get_color(), linestyle=":", label=target)
    axes.set(
        xlim=(0, SECONDS),
        ylim=(0, SEQUENCES_MAX + 1),
        xlabel="virtual seconds",
        ylabel="sequences in the group",
        title=f"Strategy adaptive: sizes of groups, {SEQUENCES_MAX} places",
    )
    axes.legend(loc="center right", bbox_to_anchor=(1.0, 0.65))
    figure.savefig(path, dpi=110)


def _label(load: Load) -> str:
    full_ms = 1e3 * (TICK_S + SEQUENCES_MAX * load.token_s)
    return f"{load.name}: {load.per_s:.0f} requests/s, ticks of a full group {full_ms:.0f} ms"


def main() -> None:
    """Say the sizes and draw them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adaptive", description=__doc__)
    parser.add_argument("--out", type=Path, default=IMAGE, help="where the plot goes")
    path = parser.parse_args().out
    groups = {load: departures(load) for load in LOADS}
    for load, found in groups.items():
        sizes = [each.size for each in found]
        mean = sum(sizes) / len(sizes)
        print(f"{_label(load)}: {len(sizes)} groups, {mean:.1f} in the mean")
        print("   ", *sizes)
    draw(groups, path)


if __name__ == "__main__":
    main()
