"""Which options of `jitney plan` are refused: numbers without meaning, and what nothing would use.

Tests: tests/unit/lab/plan/test_checks.py.
"""

from jitney.cli.flags import own_flags
from jitney.config import Resolved
from jitney.errors import ConfigError
from jitney_lab.cli import bounds
from jitney_lab.cli.bench_result import leave_unused
from jitney_lab.cli.plan_verb import PlanOptions
from jitney_lab.plan.replica import REPLICAS_MAX
from jitney_lab.plan.what_if import NAMES, WHOLE_MAX

PEAK_MAX = 1.98
SHARE_MIN = 1e-6
WITH_TRACE = "with --trace, whose requests have their lengths; leave one of the two out"

SIMULATED = NAMES | {"seed"}
"""The settings that count where the cost comes from a file; it has the others in it."""


def check_numbers(options: PlanOptions) -> None:
    """Refuse numbers that mean nothing. Raises ConfigError."""
    replicas_max = REPLICAS_MAX if options.day else WHOLE_MAX
    bounds.check("--request-rate", options.request_rate, bounds.RATE_MIN, bounds.RATE_MAX)
    bounds.check("--input-len", options.input_len, 1, bounds.LENGTH_MAX)
    bounds.check("--output-len", options.output_len, 1, bounds.LENGTH_MAX)
    bounds.check("--random-range-ratio", options.range_ratio, 0, 1)
    bounds.check("--burstiness", options.burstiness, bounds.RATE_MIN, bounds.RATE_MAX)
    bounds.check("--replicas", options.replicas, 1, replicas_max)
    bounds.check("--day-peak", options.day_peak, 1, PEAK_MAX)
    bounds.check("--share", options.share, SHARE_MIN, 1)


def check_used(options: PlanOptions, *, is_timed: bool = False) -> None:
    """Refuse an option that nothing would use. Raises ConfigError.

    `is_timed`: there is a trace that says when its requests arrive.
    """
    has_changes, has_trace = bool(options.what_if), options.trace is not None
    searches = not options.day and not has_changes
    has_lengths = options.input_len is not None or options.output_len is not None
    unused = (
        (has_changes, "day", "with --what-if, which replays one load; leave one of the two out"),
        (
            searches,
            "replicas",
            "without --day or --what-if, because the number of replicas is searched; leave it out",
        ),
        (not options.day, "day_peak", "without --day; add that, or leave it out"),
        (has_trace, "input_len", WITH_TRACE),
        (has_trace, "output_len", WITH_TRACE),
        (has_trace, "range_ratio", WITH_TRACE),
        (
            not has_lengths,
            "range_ratio",
            "without --input-len or --output-len; add one of them, or leave it out",
        ),
        (
            not searches,
            "share",
            "with --day or --what-if, which say the share and search nothing; leave it out",
        ),
        (
            is_timed and has_changes,
            "burstiness",
            "with --what-if and a trace that says when its requests arrive; leave it out, or take "
            "the timestamps out of the file",
        ),
        (
            options.cost is not None,
            "save_cost",
            "with --cost, because nothing is measured; leave one of the two out",
        ),
    )
    spelled = {flag.name: flag.spelled[0] for flag in own_flags(PlanOptions)}
    for is_unused, name, reason in unused:
        value = getattr(options, name)
        # By identity: 0 is a number that was given, and equals False.
        if is_unused and value is not None and value is not False:
            raise ConfigError(f"{spelled[name]} would not be used {reason}.")


def check_unused_settings(options: PlanOptions, resolved: Resolved) -> None:
    """Say which settings a cost from a file makes useless. Raises ConfigError if one is a flag."""
    if options.cost is None:
        return
    ignored = [name for name in resolved.given() if name not in SIMULATED]
    refusal = (
        " with --cost, which was measured with its own model, backend and memory; leave one of the "
        "two out"
    )
    leave_unused(resolved, ignored, refusal, f"because the cost of ticks comes from {options.cost}")
