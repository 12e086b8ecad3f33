"""Where a request runs: near its prefix, away from queues, and in turns where all are alike."""

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace

import pytest

from jitney_cluster.routing import (
    ENDED_EARLY_MAX,
    HEAD_STRIDES,
    HEAD_TOKENS,
    REPORT_AGE_S,
    Head,
    ReplicaReport,
    RouteTable,
    head_of,
)
from tests.unit.cluster.conftest import IDLE_REPORT as IDLE
from tests.unit.core.schedulers import TRAITS, applied, live, scheduler, submit

US = "ingress"
LONG = tuple(range(4 * HEAD_TOKENS))
FULL = replace(IDLE, running_count=4)


def table_of(reports: dict[str, ReplicaReport | None]) -> RouteTable:
    table = RouteTable(US)
    table.keep(reports)
    for name, report in reports.items():
        if report is not None:
            table.report(name, report)
    return table


def holding(tokens: Iterable[int], scope: str = "") -> ReplicaReport:
    """The report of an idle replica with this prefix in its memory."""
    return replace(IDLE, heads=frozenset(head_of(tokens, scope).keys))


def always(table: RouteTable, head: Head) -> str | None:
    """The one choice of several in a row; a turn would give others."""
    chosen = {table.choose(head) for _ in range(6)}
    assert len(chosen) == 1, chosen
    return chosen.pop()


def test_a_head_has_a_key_for_each_whole_step() -> None:
    assert head_of(LONG[: HEAD_TOKENS - 1], "") == Head(HEAD_TOKENS - 1)
    head = head_of(LONG, "")
    assert (head.prompt_count, len(set(head.keys))) == (len(LONG), 4)
    assert head_of(LONG[: 2 * HEAD_TOKENS + 5], "").keys == head.keys[:2]
    assert head_of((*LONG[:HEAD_TOKENS], 7, *LONG), "").keys[1:] != head.keys[1:]


def test_keys_are_equal_in_another_process() -> None:
    """Guards routing by prefix: the keys of a report are made in the process of a replica."""
    script = (
        "from jitney_cluster.routing import head_of\n"
        f"print(head_of({LONG!r}, 'a tenant \\u00e9').keys)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for seed in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-c", script],
            env={**environment, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert told.stdout.strip() == str(head_of(LONG, "a tenant \u00e9").keys)


def test_a_cached_prefix_attracts() -> None:
    table = table_of({"a": IDLE, "b": holding(LONG), "c": holding(LONG[:HEAD_TOKENS])})
    assert always(table, head_of(LONG, "")) == "b"
    assert table._known("c").cached_count(head_of(LONG, "")) == HEAD_TOKENS


def test_a_state_attracts_though_only_its_end_is_reported() -> None:
    """Guards conversations with models whose slots cannot be cut back: what a scheduler tells of
    its states is what the router counts."""
    traits = replace(TRAITS, state_bytes=8, kv_tokens=4_000, model_len_max=1_000)
    one = scheduler(4, traits)
    submit(one, live("a", LONG, max_tokens=4))
    while (batch := one.plan(0.0)) is not None:
        applied(one, batch)
    near = replace(IDLE, heads=one.heads(HEAD_STRIDES))
    table = table_of({"near": near, "far": IDLE})
    going_on, other = head_of((*LONG, 5, 5, 5, 5, 7), ""), head_of((*LONG[:150], *LONG), "")
    assert always(table, going_on) == "near"
    assert table._known("near").cached_count(going_on) == len(LONG)
    assert table.expected_s("near", going_on) < table.expected_s("far", going_on)
    assert table._known("near").cached_count(other) == 0
    assert table._known("near").cached_count(Head(10)) == 0


def test_scopes_keep_tenants_apart() -> None:
    """Guards invariant 6: a tenant does not learn from routing where another one's prompt is."""
    table = table_of({"a": holding(LONG, "theirs"), "b": holding(LONG, "ours")})
    assert always(table, head_of(LONG, "ours")) == "b"
    assert table._known("a").cached_count(head_of(LONG, "ours")) == 0
    assert table._known("a").cached_count(head_of(LONG, "")) == 0


@pytest.mark.parametrize(
    "busy",
    [
        pytest.param(FULL, id="no free slot"),
        pytest.param(replace(FULL, waiting_count=9), id="a queue"),
        pytest.param(replace(IDLE, prefill_tokens=5000), id="prefill before it"),
        pytest.param(replace(IDLE, kv_free=100), id="no memory"),
        pytest.param(replace(IDLE, prefill_token_s=0.1), id="a slow machine"),
    ],
)
def test_what_makes_it_wait_repels(busy: ReplicaReport) -> None:
    assert always(table_of({"busy": busy, "free": IDLE}), head_of(LONG, "")) == "free"


def test_a_long_queue_outweighs_a_prefix() -> None:
    """Guards against a herd: everybody with one system prompt on one replica."""
    heads = holding(LONG).heads
    head = head_of(LONG, "")
    queued = replace(FULL, waiting_count=20, heads=heads)
    assert always(table_of({"near": queued, "far": IDLE}), head) == "far"
    near = replace(IDLE, running_count=1, heads=heads)
    assert always(table_of({"near": near, "far": IDLE}), head) == "near"


def test_among_full_ones_the_shorter_queue_wins() -> None:
    long, short = replace(FULL, waiting_count=9), replace(FULL, waiting_count=2)
    assert always(table_of({"long": long, "short": short}), Head(10)) == "short"
    quick = replace(long, ends_per_s=100.0)
    assert always(table_of({"quick": quick, "short": short}), Head(10)) == "quick"


@pytest.mark.parametrize("report", [None, IDLE, FULL])
def test_equal_replicas_take_turns(report: ReplicaReport | None) -> None:
    table = table_of(dict.fromkeys("abc", report))
    chosen = [table.choose(Head(10)) for _ in range(9)]
    assert all(chosen.count(name) == 3 for name in "abc")


def test_a_difference_that_means_nothing_does_not_stop_the_turns() -> None:
    table = table_of({"a": IDLE, "b": replace(IDLE, tick_s=IDLE.tick_s + 1e-6)})
    assert {table.choose(Head(10)) for _ in range(2)} == {"a", "b"}


def test_what_was_sent_corrects_a_report_that_is_old() -> None:
    """Guards bursts: many requests between two reports do not all go to the same replica."""
    table = table_of({"a": IDLE, "b": replace(IDLE, running_count=1)})
    assert always(table, Head(10)) == "a"
    for number in range(1, 5):
        table.sent("a", f"q{number}", number, Head(10))
    assert always(table, Head(10)) == "b"
    assert table.expected_s("a", Head(10)) > 1 / IDLE.ends_per_s


def test_a_prompt_of_ours_counts_until_its_first_token() -> None:
    """Guards the tail under load: an old report does not know which prompts are computed by now,
    and the replica with the luckiest report would get everything for a second."""
    table = table_of({"a": IDLE, "b": IDLE})
    idle_s = table.expected_s("a", Head(10))
    table.sent("a", "q1", 1, Head(1000))
    waiting_s = table.expected_s("a", Head(10))
    assert waiting_s > idle_s
    table.report("a", replace(IDLE, prefill_tokens=1000, seen={US: 1}))
    assert table.expected_s("a", Head(10)) == waiting_s, "it is counted once"
    table.began("a", 99)
    table.began("gone", 1)
    assert table.expected_s("a", Head(10)) == waiting_s
    for _ in range(2):
        table.began("a", 1)
        assert table.expected_s("a", Head(10)) == idle_s, "its report is old"
    table.ended("a", "q1")
    assert table.expected_s("a", Head(10)) == idle_s


def test_prefill_of_others_counts_as_far_as_it_outlasts_the_report() -> None:
    per_s = 1 / 1e-3
    short = replace(IDLE, prefill_tokens=int(REPORT_AGE_S * per_s))
    long = replace(IDLE, prefill_tokens=int((REPORT_AGE_S + 3) * per_s))
    table = table_of({"short": short, "long": long, "idle": IDLE})
    assert table.expected_s("short", Head(10)) == table.expected_s("idle", Head(10))
    later_s = table.expected_s("long", Head(10)) - table.expected_s("idle", Head(10))
    assert later_s == pytest.approx(3)


def test_an_end_that_is_told_before_the_sending_leaves_nothing() -> None:
    """Guards replicas that refuse at once: each such order would repel others for ever."""
    table = table_of({"a": IDLE})
    before = table.expected_s("a", Head(10))
    for number in range(1, 2 * ENDED_EARLY_MAX):
        table.ended("a", f"q{number}")
        table.sent("a", f"q{number}", number, Head(1000))
    assert table.expected_s("a", Head(10)) == before
    table.sent("a", "q1", 5000, Head(1000))
    assert table.expected_s("a", Head(10)) > before, "its end was for the order before"


def test_a_prefix_on_its_way_attracts() -> None:
    """Guards a shared prompt that is new: the second to come follows the first."""
    table = table_of({"a": IDLE, "b": IDLE})
    head = head_of(LONG, "")
    table.sent("a", "q1", 1, head)
    assert table._known("a").cached_count(head) == len(LONG) - 1
    table.ended("a", "q1")
    assert table._known("a").cached_count(head) == 0


def test_the_avoided_are_not_chosen() -> None:
    table = table_of({"a": holding(LONG), "b": FULL, "c": IDLE})
    head = head_of(LONG, "")
    assert table.choose(head, ["a"]) == "c"
    assert table.choose(head, ("a", "c", "unknown")) == "b"
    assert table.choose(head, "abc") is None
    assert RouteTable(US).choose(head) is None


def test_a_new_replica_is_as_fast_as_the_fastest_known() -> None:
    """Guards new replicas: without a report they get work, and not all of it."""
    table = table_of({"new": None})
    alone_s = table.expected_s("new", Head(100))
    table = table_of({"new": None, "slow": replace(IDLE, prefill_token_s=1.0), "b": IDLE})
    table.report("b", replace(IDLE, prefill_token_s=alone_s / 200))
    assert table.expected_s("new", Head(100)) == pytest.approx(alone_s / 2)
    table.sent("new", "q1", 1, Head(300))
    assert table.expected_s("new", Head(100)) == pytest.approx(2 * alone_s)
