"""What one key can learn of another one's prompts: nothing, by count or by clock.

Key A has a prefix cached. Key B sends a prompt that begins with it or with another one of the same
length, and looks at `cached_tokens` and at the time to its first token. Whether those two
tell the cases apart is the area under the ROC curve: 0.5 is a coin, 1 is certainty. The same is
done by a key of A's own scope, where the answer has to be near 1, or the clock could see nothing.
On the fake backend each prompt token takes time, as one of a model would (`benchmarks.http.paced`).
"""

import asyncio
import json
import math
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.http.paced import program
from benchmarks.http.report import Report
from benchmarks.http.served import Served, served
from benchmarks.http.wire import DONE, Connection, Json
from benchmarks.load import percentile

PROBES = 2000
OWN_PROBES_SHARE = 0.1
"""The signal within a scope is plain: a tenth as many probes show it."""

AUC_MAX = 0.55
AUC_OWN_MIN = 0.95
PREFIX_TOKENS, TAIL_TOKENS = 512, 8
TICK_MS, TOKEN_US = 2.0, 100.0
FLAGS = ("--max-num-seqs", "4", "--max-model-len", "1024")
PATH = "/v1/completions"
KEYS = """keys:
  - {name: victim, key: key-of-victim}
  - {name: attacker, key: key-of-attacker}
  - {name: colleague, key: key-of-colleague, cache_scope: victim}
"""


@dataclass(slots=True)
class Seen:
    """What a key saw for prompts whose prefix was cached by the victim, and for others."""

    first_s: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    cached: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})


def auc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """The chance that one of the first is greater than one of the second; ties are half."""
    ranked = sorted([(value, True) for value in positive] + [(value, False) for value in negative])
    rank_sum, at = 0.0, 0
    while at < len(ranked):
        end = at
        while end < len(ranked) and ranked[end][0] == ranked[at][0]:
            end += 1
        # Ranks count from one; those of equal values are their mean.
        rank_sum += (at + 1 + end) / 2 * sum(is_one for _, is_one in ranked[at:end])
        at = end
    count = len(positive)
    return (rank_sum - count * (count + 1) / 2) / (count * len(negative))


def auc_error(value: float, positive_count: int, negative_count: int) -> float:
    """The standard error of an area, after Hanley and McNeil."""
    one, two = value / (2 - value), 2 * value * value / (1 + value)
    spread = (
        value * (1 - value)
        + (positive_count - 1) * (one - value * value)
        + (negative_count - 1) * (two - value * value)
    )
    return math.sqrt(max(0.0, spread) / (positive_count * negative_count))


def tenants(report: Report) -> None:
    """2,000 probes of one key for prompts of another: `cached_tokens` and time to first token."""
    is_fake = report.options.backend in (None, "fake")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.yaml"
        file.write_text(KEYS)
        file.chmod(0o600)
        fake = ("--backend", "fake", "--kv-tokens", "65536") if is_fake else ()
        flags = (*FLAGS, "--api-key-file", str(file), *fake)
        started_as = program(TICK_MS, TOKEN_US) if is_fake else ("jitney",)
        with served(*flags, program=started_as) as server:
            asyncio.run(_tenants(report, server))


async def _tenants(report: Report, server: Served) -> None:
    probes = report.options.probes or PROBES
    own = max(40, int(probes * OWN_PROBES_SHARE))
    for key, count in (("colleague", own), ("attacker", probes)):
        seen = await _probe(server, key, count)
        _tell(report, key, seen)


async def _probe(server: Served, key: str, count: int) -> Seen:
    """Half of the probes begin as the victim's latest prompt does; which ones is random."""
    seen, generator = Seen(), random.Random(key)
    victim = await Connection.open(server.port, "key-of-victim")
    prober = await Connection.open(server.port, f"key-of-{key}")
    for number in generator.sample(range(count), count):
        is_known = number % 2 == 0
        prefix = _letters(generator, PREFIX_TOKENS)
        await _ask(victim, [*prefix, *_letters(generator, TAIL_TOKENS)])
        guess = prefix if is_known else _letters(generator, PREFIX_TOKENS)
        first_s, cached = await _ask(prober, [*guess, *_letters(generator, TAIL_TOKENS)])
        seen.first_s[is_known].append(first_s)
        seen.cached[is_known].append(cached)
    victim.close()
    prober.close()
    return seen


async def _ask(connection: Connection, prompt: list[int]) -> tuple[float, int]:
    """Seconds to the first token, and how many prompt tokens were said to be cached."""
    body: Json = {
        "prompt": prompt,
        "max_tokens": 1,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started_s, first_s, cached = time.perf_counter(), 0.0, -1
    head = await connection.begin(PATH, body)
    if head.status != 200:
        raise RuntimeError(f"{head.status}: {(await connection.rest(head))[:300]!r}")
    async for data in connection.events():
        first_s = first_s or time.perf_counter() - started_s
        if data != DONE and (usage := json.loads(data).get("usage")):
            cached = usage["prompt_tokens_details"]["cached_tokens"]
    return first_s, cached


def _letters(generator: random.Random, count: int) -> list[int]:
    return generator.choices(range(97, 123), k=count)


def _tell(report: Report, key: str, seen: Seen) -> None:
    counts = len(seen.first_s[True]), len(seen.first_s[False])
    # A cached prefix is sooner, so the times are compared the other way round.
    by_time = auc(seen.first_s[False], seen.first_s[True])
    by_count = auc(seen.cached[True], seen.cached[False])
    error = auc_error(by_time, *counts)
    report.say(
        f"{key}: {sum(counts)} probes; first token after "
        f"{percentile(seen.first_s[True], 0.5) * 1e3:.1f} ms behind a prefix of the victim's and "
        f"{percentile(seen.first_s[False], 0.5) * 1e3:.1f} ms behind another; AUC by time "
        f"{by_time:.3f} (95 % within {1.96 * error:.3f}), by cached_tokens {by_count:.3f}; "
        f"cached_tokens at most {max(seen.cached[True]):.0f}"
    )
    report.figure(f"{key}_auc_time", by_time)
    report.figure(f"{key}_auc_count", by_count)
    if key == "attacker":
        report.check(
            f"another scope: AUC by time at most {AUC_MAX} either way",
            max(by_time, 1 - by_time) <= AUC_MAX,
        )
        report.check(
            "another scope: cached_tokens is 0 each time",
            max(*seen.cached[True], *seen.cached[False]) == 0,
        )
    else:
        report.check(
            f"the same scope: AUC at least {AUC_OWN_MIN} by both, so that the clock can see",
            min(by_time, by_count) >= AUC_OWN_MIN,
        )
