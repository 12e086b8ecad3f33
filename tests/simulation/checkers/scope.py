"""Invariant 6: a prefix is shared only on equal tokens and equal scope.

Keeps a record of its own of who fed each position of each slot, through copies, saved state and
take-overs, and looks at it whenever a slot gets a new owner.
"""

from collections.abc import Mapping

from jitney.core.batch import (
    Batch,
    Copy,
    Discard,
    MemoryOperation,
    Open,
    Release,
    Restore,
    Save,
    Store,
    Truncate,
)
from tests.simulation.alone import Oracle
from tests.simulation.seen import Executed, Happened, Name, Planned, Read, Seen, Violation

NAME = "scope"


class ScopeChecker:
    """Knows for every token in memory within which scope it was fed."""

    def __init__(
        self, oracle: Oracle, stored: dict[tuple[int, ...], set[str]], *, reuses: bool
    ) -> None:
        """`stored` says who fed what is on the disk, by its tokens, also before a restart."""
        self._oracle = oracle
        self._reuses = reuses
        self._owners: Mapping[int, Name] = {}
        self._fed: dict[int, list[str]] = {}
        self._saved: dict[int, list[str]] = {}
        self._stored = stored
        self._read: dict[int, tuple[int, ...]] = {}

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Planned():
                self._owners = seen.owners
            case Read():
                self._read[seen.ticket] = seen.tokens
            case Executed():
                opened = self._operate(seen.batch, seen.stored)
                for slot, count in opened.items():
                    if slot in self._owners:
                        self._compare(
                            self._owners[slot], seen.backend.tokens_of(slot)[:count], slot
                        )
                for entry in seen.batch.entries:
                    fed = self._fed.setdefault(entry.slot, [])
                    fed += [self._key(self._owners[entry.slot])] * entry.length
            case Happened(method="fail"):
                self._fed.clear()
                self._saved.clear()

    def _operate(self, batch: Batch, stored: Mapping[int, tuple[int, ...]]) -> dict[int, int]:
        """Follow the memory operations; how much each newly opened slot holds."""
        opened: dict[int, int] = {}
        for operation in batch.operations:
            self._keep(operation, stored)
            match operation:
                case Open():
                    opened[operation.slot] = len(self._fed.get(operation.slot, ()))
                case Copy():
                    self._fed[operation.target] = self._fed[operation.source][: operation.length]
                case Truncate():
                    del self._fed[operation.slot][operation.length :]
                case Release():
                    self._fed.pop(operation.slot, None)
                    opened.pop(operation.slot, None)
        return opened

    def _keep(self, operation: MemoryOperation, stored: Mapping[int, tuple[int, ...]]) -> None:
        """Follow what is kept outside the slots."""
        match operation:
            case Save():
                self._saved[operation.ticket] = list(self._fed[operation.slot])
            case Store():
                tokens = stored[operation.slot]
                self._stored.setdefault(tokens, set()).update(self._fed[operation.slot])
            case Restore() if operation.ticket in self._read:
                self._fed[operation.slot] = self._fetched(operation)
            case Restore():
                self._fed[operation.slot] = self._saved.pop(operation.ticket)
            case Discard() if operation.ticket in self._saved:
                del self._saved[operation.ticket]
            case Discard():
                # It came from the disk, before the last failure or after it.
                del self._read[operation.ticket]

    def _fetched(self, operation: Restore) -> list[str]:
        """Who fed what came from the disk: the owner, if one of its scope stored the same."""
        tokens = self._read.pop(operation.ticket)
        fed = self._stored.get(tokens, {"nobody"})
        owner = self._owners.get(operation.slot)
        own = None if owner is None else self._key(owner)
        return [own if own is not None and own in fed else min(fed)] * len(tokens)

    def _compare(self, owner: Name, held: tuple[int, ...], slot: int) -> None:
        strangers = set(self._fed.get(slot, ())) - {self._key(owner)}
        if strangers:
            raise Violation(
                NAME, f"{owner} of {self._key(owner)} was given what {sorted(strangers)} fed"
            )
        request = self._oracle.request(owner)
        known = request.prompt + self._oracle.alone(owner).sampled
        if known[: len(held)] != held:
            raise Violation(NAME, f"{owner} was given {len(held)} tokens that are not its own")

    def _key(self, owner: Name) -> str:
        # Without reuse only the completions of one request may share.
        return self._oracle.request(owner).scope if self._reuses else f"request {owner[0]}"
