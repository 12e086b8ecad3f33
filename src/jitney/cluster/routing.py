"""Chooses where a request runs: on the replica that is expected to give its first token soonest.

    expected = wait for a slot + prefill that waits there + prefill of what is not cached there

A replica reports its queue, its costs and the keys of the prefixes in its memory. A report is old
when it arrives. So the table adds what was sent since, and takes off what has ended since. A
conversation goes on where its prefix is, as long as that is faster: there is no table of sessions.
Keys depend on the scope, so tenants do not find each other's prefixes (invariant 6).

Sans-IO, one thread. The router on Ray and the simulation use the same table.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from jitney.core.chain import Chain
from jitney.core.limits import PREFIX_STRIDE

HEAD_STRIDES = 8
"""Prefixes are reported in steps of this many strides. The rest is computed again."""

HEAD_TOKENS = HEAD_STRIDES * PREFIX_STRIDE

HEADS_MAX = 4096
"""The most keys of one report: 32 KiB, and a memory of 260,000 tokens."""

PREFILL_S_UNKNOWN = 1e-3
"""Seconds for a prefill token before any replica has computed one."""

BESIDE_DECODES = 2.0
"""Prefill is so much slower beside sequences that generate: the mix gives them half of a tick."""

ENDS_PER_S_MIN = 0.05
"""Requests that end in a second, where fewer or none were seen."""


@dataclass(frozen=True, slots=True)
class Head:
    """What routing needs to know of a request: its length and the keys of its beginning."""

    prompt_count: int
    keys: tuple[int, ...] = ()


def head_of(tokens: Iterable[int], scope: str) -> Head:
    """The head of a request with these known tokens, within this scope."""
    known = list(tokens)
    # As the memory of an engine names scopes.
    chain = Chain("scope " + scope, known)
    depths = range(HEAD_STRIDES, len(known) // PREFIX_STRIDE + 1, HEAD_STRIDES)
    return Head(len(known), tuple(chain.key(depth) for depth in depths))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The state of a replica at one moment."""

    slot_count: int
    running_count: int
    waiting_count: int
    prefill_tokens: int
    """Tokens of prompts that wait or are being computed."""
    kv_free: int
    """Tokens of memory that are free or only cached."""
    tick_s: float
    prefill_token_s: float | None
    ends_per_s: float
    heads: frozenset[int]
    seen: Mapping[str, int] = field(default_factory=dict)
    """For each ingress, the number of its last request that this report counts."""


@dataclass(slots=True)
class _Sent:
    """A request that was sent to a replica and has not ended."""

    number: int
    prefill_count: int
    head: Head


@dataclass(slots=True)
class _Replica:
    report: Report | None = None
    sent: dict[str, _Sent] = field(default_factory=dict)
    ended_count: int = 0
    """Requests that the report counts and that have ended since it came."""

    def unseen(self, ingress: str) -> list[_Sent]:
        """What was sent and is not in the report."""
        seen = 0 if self.report is None else self.report.seen.get(ingress, 0)
        return [each for each in self.sent.values() if each.number > seen]


class RouteTable:
    """The replicas as one ingress knows them."""

    def __init__(self, ingress: str) -> None:
        self._ingress = ingress
        self._replicas: dict[str, _Replica] = {}
        self._turn = 0

    @property
    def replicas(self) -> list[str]:
        """The names of the known replicas."""
        return list(self._replicas)

    def keep(self, names: Iterable[str]) -> None:
        """These are the replicas now. Others are forgotten, and new ones have no report yet."""
        self._replicas = {name: self._replicas.get(name) or _Replica() for name in names}

    def report(self, name: str, report: Report) -> None:
        """A replica has reported. A report of an unknown one is ignored."""
        replica = self._replicas.get(name)
        if replica is not None and replica.report != report:
            replica.report = report
            replica.ended_count = 0

    def sent(self, name: str, request_id: str, number: int, head: Head) -> None:
        """A request was sent to a replica. Numbers grow with every request of this ingress."""
        replica = self._replicas.get(name)
        if replica is not None:
            prefill_count = head.prompt_count - self._cached(replica, head)
            replica.sent[request_id] = _Sent(number, prefill_count, head)

    def ended(self, name: str, request_id: str) -> None:
        """A request has ended or left the replica."""
        replica = self._replicas.get(name)
        sent = None if replica is None else replica.sent.pop(request_id, None)
        if replica is None or sent is None or replica.report is None:
            return
        if sent.number <= replica.report.seen.get(self._ingress, 0):
            replica.ended_count += 1

    def choose(self, head: Head, avoided: Iterable[str] = ()) -> str | None:
        """The replica to send a request to; None if there is none but those to avoid."""
        left = set(avoided)
        names = [name for name in self._replicas if name not in left]
        if not names:
            return None
        self._turn += 1
        # Equal ones take turns: a small difference of two estimates means nothing.
        at = self._turn % len(names)
        in_turn = names[at:] + names[:at]
        return min(in_turn, key=lambda name: round(self.expected_s(name, head), 4))

    def expected_s(self, name: str, head: Head) -> float:
        """The expected time until the first token of a request on this replica."""
        replica = self._replicas[name]
        report, unseen = replica.report, replica.unseen(self._ingress)
        own_count = head.prompt_count - self._cached(replica, head)
        sent_tokens = sum(each.prefill_count for each in unseen)
        token_s = self._token_s(report)
        if report is None:
            return (own_count + sent_tokens) * token_s
        running = max(0, report.running_count + report.waiting_count - replica.ended_count)
        taken = running + len(unseen)
        wait_s = max(0, taken - report.slot_count + 1) / max(report.ends_per_s, ENDS_PER_S_MIN)
        if wait_s == 0 and own_count + sent_tokens > report.kv_free:
            # One of the running requests has to end first.
            wait_s = 1 / max(report.ends_per_s, ENDS_PER_S_MIN)
        if running:
            token_s *= BESIDE_DECODES
        return wait_s + report.tick_s + (report.prefill_tokens + sent_tokens + own_count) * token_s

    def cached_count(self, name: str, head: Head) -> int:
        """Tokens of the head that this replica has, or will have when it runs."""
        return self._cached(self._replicas[name], head)

    def _cached(self, replica: _Replica, head: Head) -> int:
        """At least one token is always computed."""
        held = frozenset() if replica.report is None else replica.report.heads
        sent = {key for each in replica.unseen(self._ingress) for key in each.head.keys}
        depth = 0
        for key in head.keys:
            if key not in held and key not in sent:
                break
            depth += 1
        return min(depth * HEAD_TOKENS, head.prompt_count - 1)

    def _token_s(self, report: Report | None) -> float:
        if report is not None and report.prefill_token_s is not None:
            return report.prefill_token_s
        known = [
            each.report.prefill_token_s
            for each in self._replicas.values()
            if each.report is not None and each.report.prefill_token_s is not None
        ]
        return min(known, default=PREFILL_S_UNKNOWN)
