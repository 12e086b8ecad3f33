"""The router's sums against a recount of everything that was said, for any order of it."""

import itertools
import math
from dataclasses import dataclass, field
from typing import Any  # Any: the arguments of a step

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitney_cluster.routing import (
    BESIDE_DECODES,
    ENDS_PER_S_MIN,
    HEAD_TOKENS,
    PREFILL_S_UNKNOWN,
    REPORT_AGE_S,
    Head,
    ReplicaReport,
    RouteTable,
    head_of,
)

US = "ingress"
LONG = tuple(range(4 * HEAD_TOKENS))

NAMES = st.sampled_from("abcd")
TOKENS = st.integers(0, 5).map(lambda steps: LONG[: steps * HEAD_TOKENS // 2 + 1])
HEADS = TOKENS.map(lambda tokens: head_of(tokens, ""))
COUNTS = st.integers(0, 50)
REPORTS = st.builds(
    ReplicaReport,
    slot_count=st.integers(1, 8),
    running_count=COUNTS,
    waiting_count=COUNTS,
    prefill_tokens=st.integers(0, 10**6),
    kv_free=st.integers(0, 10**6),
    tick_s=st.floats(0, 10),
    prefill_token_s=st.none() | st.floats(0, 10),
    ends_per_s=st.floats(0, 1e4),
    heads=HEADS.map(lambda head: frozenset(head.keys)),
    seen=st.dictionaries(st.sampled_from([US, "another"]), COUNTS),
)
STEPS = st.one_of(
    st.tuples(st.just("keep"), st.lists(NAMES, unique=True)),
    st.tuples(st.just("report"), NAMES, REPORTS),
    st.tuples(st.just("sent"), NAMES, st.sampled_from("qrst"), COUNTS, HEADS),
    st.tuples(st.just("began"), NAMES, COUNTS),
    st.tuples(st.just("ended"), NAMES, st.sampled_from("qrst")),
)


@dataclass
class Recounted:
    """A replica of a `RecountedTable`: everything that was said of it."""

    report: ReplicaReport | None = None
    sent: dict[str, tuple[int, int, Head]] = field(default_factory=dict)
    ended_count: int = 0
    begun: set[str] = field(default_factory=set)
    ended_early: set[str] = field(default_factory=set)

    @property
    def own_count(self) -> int:
        """Prompt tokens of requests without a first token."""
        waiting = [each for name, each in self.sent.items() if name not in self.begun]
        return sum(prefill_count for _, prefill_count, _ in waiting)

    @property
    def seen(self) -> int:
        return 0 if self.report is None else self.report.seen.get(US, 0)

    @property
    def unseen(self) -> list[tuple[int, int, Head]]:
        return [each for each in self.sent.values() if each[0] > self.seen]

    def cached_count(self, head: Head) -> int:
        held = set() if self.report is None else set(self.report.heads)
        held |= {key for _, _, sent in self.unseen for key in sent.keys}
        depth = next((at for at, key in enumerate(head.keys) if key not in held), len(head.keys))
        return min(depth * HEAD_TOKENS, head.prompt_count - 1)


class RecountedTable:
    """The table without sums: whatever is asked, everything is added up again."""

    def __init__(self) -> None:
        self.replicas: dict[str, Recounted] = {}
        self.turn = 0

    def keep(self, names: list[str]) -> None:
        self.replicas = {name: self.replicas.get(name, Recounted()) for name in names}

    def report(self, name: str, report: ReplicaReport) -> None:
        if name in self.replicas and self.replicas[name].report != report:
            self.replicas[name].report = report
            self.replicas[name].ended_count = 0

    def sent(self, name: str, request_id: str, number: int, head: Head) -> None:
        if name in self.replicas and request_id in self.replicas[name].ended_early:
            self.replicas[name].ended_early.discard(request_id)
        elif name in self.replicas:
            prefill_count = head.prompt_count - self.replicas[name].cached_count(head)
            self.replicas[name].sent[request_id] = (number, prefill_count, head)
            self.replicas[name].begun.discard(request_id)

    def began(self, name: str, number: int) -> None:
        if name in self.replicas:
            replica = self.replicas[name]
            replica.begun |= {each for each, sent in replica.sent.items() if sent[0] == number}

    def ended(self, name: str, request_id: str) -> None:
        if name in self.replicas:
            replica = self.replicas[name]
            replica.ended_early |= {request_id} - set(replica.sent)
            number, *_ = replica.sent.pop(request_id, (math.inf,))
            replica.ended_count += replica.report is not None and number <= replica.seen

    def choose(self, head: Head) -> str | None:
        names = list(self.replicas)
        if not names:
            return None
        self.turn += 1
        at = self.turn % len(names)
        return min(names[at:] + names[:at], key=lambda name: round(self.expected_s(name, head), 4))

    def expected_s(self, name: str, head: Head) -> float:
        replica = self.replicas[name]
        report, unseen = replica.report, replica.unseen
        reports = [each.report for each in self.replicas.values() if each.report is not None]
        known = [each.prefill_token_s for each in reports if each.prefill_token_s is not None]
        token_s = min(known, default=PREFILL_S_UNKNOWN)
        unseen_count = sum(prefill_count for _, prefill_count, _ in unseen)
        own_count = head.prompt_count - replica.cached_count(head)
        if report is None:
            return (own_count + replica.own_count) * token_s
        token_s = token_s if report.prefill_token_s is None else report.prefill_token_s
        running = max(0, report.running_count + report.waiting_count - replica.ended_count)
        end_s = 1 / max(report.ends_per_s, ENDS_PER_S_MIN)
        wait_s = max(0, running + len(unseen) - report.slot_count + 1) * end_s
        if not wait_s and own_count + unseen_count > report.kv_free:
            wait_s = end_s
        token_s *= BESIDE_DECODES if running else 1.0
        before_s = report.prefill_tokens * token_s
        if report.prefill_token_s:
            before_s = max(0.0, before_s - REPORT_AGE_S)
        before_s = max(before_s, replica.own_count * token_s)
        return wait_s + report.tick_s + before_s + own_count * token_s


@given(st.lists(STEPS, max_size=30), HEADS)
def test_sums_are_those_of_a_recount(steps: list[tuple[Any, ...]], head: Head) -> None:
    """Guards the sums: what is added twice, or not taken off, would repel or attract for ever."""
    table, recounted = RouteTable(US), RecountedTable()
    numbers = itertools.count(1)
    for name, *values in steps:
        if name == "sent":
            # No order has the number of another; here they grow beyond those of reports too.
            values[2] = next(numbers)
        getattr(table, name)(*values)
        getattr(recounted, name)(*values)
        for each in recounted.replicas:
            assert table._known(each).cached_count(head) == recounted.replicas[each].cached_count(
                head
            )
            assert table.expected_s(each, head) == pytest.approx(recounted.expected_s(each, head))
        chosen, among = table.choose(head), recounted.choose(head)
        if chosen != among:
            # Two orders of one sum may be rounded to neighbours.
            assert chosen is not None
            assert among is not None
            assert table.expected_s(chosen, head) == pytest.approx(table.expected_s(among, head))


@given(st.lists(STEPS, max_size=30), HEADS, st.sets(NAMES))
def test_it_chooses_a_known_one_whatever_happened(
    steps: list[tuple[str, ...]], head: Head, avoided: set[str]
) -> None:
    """Guards the router: reports come late, twice, or of replicas that have left."""
    table = RouteTable(US)
    known: list[str] = []
    for name, *values in steps:
        getattr(table, name)(*values)
        known = list(values[0]) if name == "keep" else known
        assert table.replicas == known
        for each in known:
            assert 0 <= table.expected_s(each, head) < math.inf
            assert 0 <= table._known(each).cached_count(head) < head.prompt_count
        chosen = table.choose(head, avoided)
        assert chosen in set(known) - avoided if set(known) - avoided else chosen is None
