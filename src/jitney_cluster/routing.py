"""Chooses where a request runs: on the replica that is expected to give its first token soonest.

    expected = wait for a slot + prefill that waits there + prefill of what is not cached there

A replica reports its queue, its costs and the keys of the prefixes in its memory. A report is old
when it arrives. So the table adds what was sent since, and takes off what has ended since. An
ingress knows which of its own prompts wait for their first token, so it counts these itself. Of the
prefill in a report, only the part counts that takes longer than the report is old. A conversation
goes on where its prefix is, as long as that is faster: there is no table of sessions. Keys depend
on the scope, so tenants do not find each other's prefixes (invariant 6).

No I/O, no clock, no Ray; one thread. The router on Ray and the simulations use the same table.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from jitney.core.limits import PREFIX_STRIDE
from jitney.core.prefix import Chain
from jitney.core.snapshot import Snapshot

HEAD_STRIDES = 8
"""Prefixes are reported in steps of this many strides. The rest is computed again."""

HEAD_TOKENS = HEAD_STRIDES * PREFIX_STRIDE

HEADS_MAX = 4096
"""The most keys of one report: 32 KiB, and a memory of 260,000 tokens."""

PREFILL_S_UNKNOWN = 1e-3
"""Seconds for a prefill token before any replica has computed one."""

BESIDE_DECODES = 2.0
"""Prefill is so much slower beside sequences that generate: the mix gives them half of a tick."""

REPORT_AGE_S = 1.0
"""So old is a report, about. Prefill that takes less time is done by then."""

ENDED_EARLY_MAX = 1000
"""Serve may report the end of an order before its sending. So many such ends are remembered."""

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
class ReplicaReport:
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

    @classmethod
    def of(
        cls, snapshot: Snapshot, ends_per_s: float, heads: Iterable[int], seen: Mapping[str, int]
    ) -> Self:
        """The report of an engine with these levels and prefixes."""
        fit = snapshot.fit
        return cls(
            slot_count=snapshot.slot_count,
            running_count=snapshot.running_count,
            waiting_count=snapshot.waiting_count,
            prefill_tokens=snapshot.waiting_tokens + snapshot.prefill_left,
            kv_free=snapshot.kv_tokens - snapshot.kv_used + snapshot.kv_cached,
            tick_s=0.0 if fit is None else fit.seconds(snapshot.running_count),
            prefill_token_s=snapshot.prefill_token_s,
            ends_per_s=ends_per_s,
            heads=frozenset(sorted(heads)[:HEADS_MAX]),
            seen=dict(seen),
        )


@dataclass(slots=True)
class _SentOrder:
    """A request that was sent to a replica and has not ended."""

    number: int
    prefill_count: int
    head: Head
    has_begun: bool = False
    """Whether its first token has come, so that its prompt is computed."""


@dataclass(slots=True, eq=False)
class _RoutedReplica:
    """A replica as its report says, corrected by what was sent and has ended since.

    Each request is compared with each replica. So sums are kept, and what does not depend on the
    request is computed when it changes.
    """

    name: str
    report: ReplicaReport | None = None
    base_s: float = 0.0
    """Whatever is asked for, its first token is not expected before that."""
    _sent: dict[str, _SentOrder] = field(default_factory=dict)
    _sent_by_number: dict[int, _SentOrder] = field(default_factory=dict)
    _ended_early: dict[str, None] = field(default_factory=dict)
    """Ids that were not known when they ended."""
    _ended_count: int = 0
    """Requests that the report counts and that have ended since it came."""
    _held: frozenset[int] = frozenset()
    _seen: int = 0
    """The number of the last request that the report counts."""
    _unseen_count: int = 0
    """Requests that the report does not count, then the tokens and keys of these."""
    _unseen_tokens: int = 0
    _unseen_keys: dict[int, int] = field(default_factory=dict)
    _own_tokens: int = 0
    """Prompt tokens of this ingress that are to be computed there, by what it knows itself."""
    _token_s: float | None = None
    _fixed_s: float = 0.0
    _short_s: float = 0.0
    _room: float = math.inf
    _slowness: float = 1.0
    _before_count: float = 0.0

    def take(self, report: ReplicaReport, ingress: str) -> None:
        """It has reported."""
        self.report = report
        self._held = report.heads
        self._seen = report.seen.get(ingress, 0)
        self._ended_count = self._unseen_count = self._unseen_tokens = 0
        self._unseen_keys.clear()
        for sent in self._sent.values():
            self._count(sent, 1)
        self._weigh()

    def send(self, request_id: str, number: int, head: Head) -> None:
        """A request was sent to it."""
        if request_id in self._ended_early:
            del self._ended_early[request_id]
            return
        sent = _SentOrder(number, head.prompt_count - self.cached_count(head), head)
        self._forget(request_id)
        self._sent[request_id] = self._sent_by_number[number] = sent
        self._own_tokens += sent.prefill_count
        self._count(sent, 1)
        self._weigh()

    def begin(self, number: int) -> None:
        """The request with this number has its first token: its prompt is computed."""
        sent = self._sent_by_number.get(number)
        if sent is not None and not sent.has_begun:
            sent.has_begun = True
            self._own_tokens -= sent.prefill_count
            self._weigh()

    def end(self, request_id: str) -> None:
        """A request has ended or left."""
        sent = self._forget(request_id)
        if sent is None:
            self._ended_early[request_id] = None
            if len(self._ended_early) > ENDED_EARLY_MAX:
                del self._ended_early[next(iter(self._ended_early))]
            return
        if self.report is not None and sent.number <= self._seen:
            self._ended_count += 1
        self._weigh()

    def cached_count(self, head: Head) -> int:
        """Tokens of the head that it has, or will have. At least one is always computed.

        Whoever has a key has all before it, though where slots cannot be cut back only the last one
        is of use, and reported.
        """
        held, unseen, keys = self._held, self._unseen_keys, head.keys
        if held.isdisjoint(keys) and not unseen:
            return 0  # so it is of most replicas
        depth = len(keys)
        while depth and keys[depth - 1] not in held and keys[depth - 1] not in unseen:
            depth -= 1
        return min(depth * HEAD_TOKENS, head.prompt_count - 1)

    def expected_s(self, head: Head, unknown_token_s: float) -> float:
        """The expected time until the first token of a request here."""
        own_count = head.prompt_count - self.cached_count(head)
        token_s = unknown_token_s if self._token_s is None else self._token_s
        expected_s = self._fixed_s + (self._before_count + own_count) * token_s * self._slowness
        # Without memory one of the running requests has to end first.
        return expected_s + self._short_s if own_count > self._room else expected_s

    def _forget(self, request_id: str) -> _SentOrder | None:
        sent = self._sent.pop(request_id, None)
        if sent is not None:
            self._sent_by_number.pop(sent.number, None)
            if not sent.has_begun:
                self._own_tokens -= sent.prefill_count
            self._count(sent, -1)
        return sent

    def _count(self, sent: _SentOrder, by: int) -> None:
        """Add what the report does not know, or take it off."""
        if sent.number <= self._seen:
            return
        self._unseen_count += by
        self._unseen_tokens += by * sent.prefill_count
        unseen = self._unseen_keys
        for key in sent.head.keys:
            count = unseen.get(key, 0) + by
            if count:
                unseen[key] = count
            else:
                del unseen[key]

    def _weigh(self) -> None:
        """Compute what does not depend on a request."""
        report = self.report
        if report is None:
            self._before_count = self._own_tokens
            return
        running = max(0, report.running_count + report.waiting_count - self._ended_count)
        over_count = max(0, running + self._unseen_count - report.slot_count + 1)
        self._short_s = 1 / max(report.ends_per_s, ENDS_PER_S_MIN)
        self._fixed_s = over_count * self._short_s + report.tick_s
        # Who waits for a slot waits for memory at the same time.
        self._room = math.inf if over_count else report.kv_free - self._unseen_tokens
        self._token_s = report.prefill_token_s
        self._slowness = BESIDE_DECODES if running else 1.0
        self._before_count = max(self._own_tokens, self._reported_tokens(report))
        before_s = self._before_count * (self._token_s or 0.0) * self._slowness
        self.base_s = self._fixed_s + before_s

    def _reported_tokens(self, report: ReplicaReport) -> float:
        """Prefill that still waits by the report, which is old: most of it may be done."""
        if not self._token_s:
            return report.prefill_tokens
        done_count = REPORT_AGE_S / (self._token_s * self._slowness)
        return max(0.0, report.prefill_tokens - done_count)


class RouteTable:
    """The replicas as one ingress knows them."""

    def __init__(self, ingress: str) -> None:
        self._ingress = ingress
        self._replicas: dict[str, _RoutedReplica] = {}
        self._turn = 0
        self._least_token_s: float | None = None
        """Of all replicas, for those that have not measured it; None: to be computed."""

    @property
    def replicas(self) -> list[str]:
        """The names of the known replicas."""
        return list(self._replicas)

    def keep(self, names: Iterable[str]) -> None:
        """These are the replicas now. Others are forgotten, and new ones have no report yet."""
        self._replicas = {name: self._replicas.get(name) or _RoutedReplica(name) for name in names}
        self._least_token_s = None

    def report(self, name: str, report: ReplicaReport) -> None:
        """A replica has reported. A report of an unknown one is ignored."""
        if self._known(name).report != report:
            self._known(name).take(report, self._ingress)
            self._least_token_s = None

    def sent(self, name: str, request_id: str, number: int, head: Head) -> None:
        """A request was sent to a replica. Numbers grow with every order of this ingress."""
        self._known(name).send(request_id, number, head)

    def began(self, name: str, number: int) -> None:
        """The request with this number has its first token."""
        self._known(name).begin(number)

    def ended(self, name: str, request_id: str) -> None:
        """A request has ended or left the replica."""
        self._known(name).end(request_id)

    def choose(self, head: Head, avoided: Iterable[str] = ()) -> str | None:
        """The replica to send a request to; None if there is none but those to avoid."""
        replicas, without = list(self._replicas.values()), set(avoided)
        if without:
            replicas = [each for each in replicas if each.name not in without]
        if not replicas:
            return None
        self._turn += 1
        # Equal ones take turns: a small difference of two estimates means nothing.
        at = self._turn % len(replicas)
        unknown_token_s = self._unknown_token_s()
        best, best_s = replicas[at], math.inf
        for each in replicas[at:] + replicas[:at]:
            if each.base_s >= best_s:
                continue
            expected_s = each.expected_s(head, unknown_token_s)
            if expected_s < best_s and (rounded_s := round(expected_s, 4)) < best_s:
                best, best_s = each, rounded_s
        return best.name

    def expected_s(self, name: str, head: Head) -> float:
        """The expected time until the first token of a request on this replica."""
        return self._replicas[name].expected_s(head, self._unknown_token_s())

    def _known(self, name: str) -> _RoutedReplica:
        """The replica; one that is gone gets what is told of it and is forgotten."""
        return self._replicas.get(name) or _RoutedReplica(name)

    def _unknown_token_s(self) -> float:
        """Seconds for a prefill token of a replica that has not computed one."""
        if self._least_token_s is None:
            known = [
                each.report.prefill_token_s
                for each in self._replicas.values()
                if each.report is not None and each.report.prefill_token_s is not None
            ]
            self._least_token_s = min(known, default=PREFILL_S_UNKNOWN)
        return self._least_token_s
