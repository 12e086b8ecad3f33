"""Invariant 10: a failure in the backend harms only what it must, and the engine goes on.

A fault of one entry fails that sequence and no other. A lost batch fails nobody, except one that
had an entry or got its slot in FAILURES_MAX of them. The poisoned end with an error; when nothing
but poison loses batches, nobody else fails at all. Whoever was part of SUSPECT_FAILURES and has not
got past the last one is alone in its batch: nobody else computes or gets a slot with it.
"""

from collections import Counter

from jitney.core.batch import Batch, Open
from jitney.core.events import FinishEvent, FinishReason
from jitney.core.limits import FAILURES_MAX, SUSPECT_FAILURES
from tests.simulation.alone import Oracle
from tests.simulation.seen import (
    Happened,
    Injected,
    Name,
    Planned,
    Seen,
    Submitted,
    TokenEvent,
    Violation,
)
from tests.simulation.workload import POISON, is_poisoned

NAME = "isolation"


class IsolationChecker:
    """Knows who was in which batch, and which fault struck whom."""

    def __init__(self, oracle: Oracle, *, by_chance: bool) -> None:
        self._oracle = oracle
        self._by_chance = by_chance
        self._live: set[Name] = set()
        self._members: dict[int, dict[int, Name]] = {}
        self._opened: dict[int, list[Name]] = {}
        self._faulty: dict[int, Name] = {}
        self._lost_count: Counter[Name] = Counter()
        self._in_a_row: Counter[Name] = Counter()
        self._known_then: dict[Name, int] = {}
        """Lost batches in a row, and the tokens that were known at the last one."""
        self._made: dict[Name, list[int]] = {}
        """The tokens that each has made."""

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Submitted(error=None):
                self._live |= seen.names
            case Planned(batch=Batch() as batch):
                owners = seen.owners
                self._members[batch.number] = {
                    entry.slot: owners[entry.slot] for entry in batch.entries
                }
                opened = [each.slot for each in batch.operations if isinstance(each, Open)]
                self._opened[batch.number] = [owners[slot] for slot in opened if slot in owners]
                self._suspect(self._implicated(batch.number))
            case Injected(slot=int() as slot, batch=batch):
                self._faulty[batch.number] = self._members[batch.number][slot]
            case Happened():
                self._judge(seen)

    def _judge(self, seen: Happened) -> None:
        faulty: Name | None = None
        if seen.method == "apply" and seen.batch is not None:
            self._pass(seen.batch)
            faulty = self._faulty.pop(seen.batch.number, None)
        elif seen.method == "fail":
            # Outcomes come back in order: it is the oldest batch in flight that was lost.
            oldest = min(self._members, default=None)
            if oldest is not None:
                self._lose(self._implicated(oldest))
            self._members.clear()
            self._opened.clear()
            self._faulty.clear()
        was_live = faulty in self._live
        failed = set()
        for event in seen.events:
            if isinstance(event, TokenEvent):
                self._made.setdefault((event.request_id, event.index), []).append(event.token)
            if isinstance(event, FinishEvent):
                name = (event.request_id, event.index)
                self._live.discard(name)
                self._judge_end(name, event, faulty)
                if event.reason is FinishReason.FAILED:
                    failed.add(name)
        if was_live and faulty not in failed:
            raise Violation(NAME, f"{faulty} had no token that is a number and did not fail")

    def _implicated(self, number: int) -> set[Name]:
        return {*self._members[number].values(), *self._opened[number]}

    def _pass(self, batch: Batch) -> None:
        """The batch came back: who got past the position of its last loss is no suspect now."""
        members = self._members.pop(batch.number)
        del self._opened[batch.number]
        for entry in batch.entries:
            if entry.end > self._known_then.get(members[entry.slot], 0):
                del self._in_a_row[members[entry.slot]]

    def _lose(self, names: set[Name]) -> None:
        self._lost_count.update(names)
        self._in_a_row.update(names)
        for name in names:
            made = self._made.get(name, ())
            self._known_then[name] = len(self._oracle.request(name).prompt) + len(made)

    def _suspect(self, names: set[Name]) -> None:
        suspects = sorted(each for each in names if self._in_a_row[each] >= SUSPECT_FAILURES)
        if suspects and len(names) > 1:
            others = sorted(names - {suspects[0]})
            raise Violation(NAME, f"{others[0]} shares a batch with the suspect {suspects[0]}")

    def _was_harmless(self, prompt: tuple[int, ...]) -> bool:
        """Whether an answer went as the prompt does: its memory has the poison, which is harmless
        where it is made, and whoever takes it over never computes it."""
        if POISON not in prompt:
            return False
        poison = prompt[: prompt.index(POISON) + 1]
        for name, made in self._made.items():
            known = (*self._oracle.request(name).prompt, *made)
            if len(known) - len(made) < len(poison) and known[: len(poison)] == poison:
                return True
        return False

    def _judge_end(self, name: Name, event: FinishEvent, faulty: Name | None) -> None:
        request = self._oracle.request(name)
        has_finished = event.reason in (FinishReason.STOP, FinishReason.LENGTH)
        if is_poisoned(request) and has_finished and not self._was_harmless(request.prompt):
            raise Violation(NAME, f"{name} is poisoned and finished all the same")
        if event.reason is not FinishReason.FAILED or name == faulty:
            return
        lost = self._lost_count[name]
        if lost < FAILURES_MAX:
            raise Violation(NAME, f"{name} failed after {lost} lost batches: {event.message}")
        if not is_poisoned(request) and not self._by_chance:
            raise Violation(NAME, f"{name} is innocent and failed in place of a poisoned one")
