"""How many tokens the batches of a key may use: `Allowances`. Event loop.

A key with a limit has a day's worth at first. What its lines use comes back evenly, all of it
within a day, so a line may begin while less than a day's worth is used. Its tokens are counted when
it ends: the lines that run at that moment may use more. Time counts while the server runs, by a
clock that only grows; a step of the wall clock changes nothing. The store knows what was used, in
the transaction that has the results, and now and then what came back.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping

from jitney.config import Key
from jitney.engine.answer import Usage
from jitney.engine.clock import Clock
from jitney.server.batches import limits
from jitney.server.batches.database import DiskError
from jitney.server.batches.store import StoreThread

_log = logging.getLogger("jitney.server.batches")

DAY_S = 86_400.0


class Allowances:
    """What is used of each key's tokens. Keys without a limit are not counted."""

    def __init__(self, keys: Iterable[Key], clock: Clock) -> None:
        self._per_day = {
            key.name: key.batch_tokens_max for key in keys if key.batch_tokens_max is not None
        }
        self._clock = clock
        self._counted_at = clock.now()
        self._used: dict[str, float] = {}
        self._logged: set[str] = set()

    @property
    def used_up_count(self) -> int:
        """How many keys have used all of it. Any thread."""
        return sum(used >= self._per_day[owner] for owner, used in list(self._used.items()))

    def adopt(self, stored: Mapping[str, float]) -> None:
        """Go on from what an earlier process has noted."""
        for owner, used in stored.items():
            if owner in self._per_day:
                # Where the limit was higher then, it is not paid for weeks.
                most = limits.ALLOWANCE_DAYS_MAX * self._per_day[owner]
                self._used.setdefault(owner, min(used, most))

    def has_left(self, owner: str) -> bool:
        """Whether a line of this key may begin."""
        per_day = self._per_day.get(owner)
        if per_day is None:
            return True
        used = self.used().get(owner, 0.0)
        if used < per_day:
            # Not with each line that may begin after a wait: people read this.
            self._logged -= {owner} if used < per_day / 2 else set()
            return True
        if owner not in self._logged:
            self._logged.add(owner)
            _log.warning(
                "The batches of %s wait: their %.0f tokens a day are used up, and come back with "
                "time (batch_tokens_per_day of the key file)",
                owner,
                per_day,
            )
        return False

    def spend(self, owner: str, usage: Usage) -> None:
        """A line of this key has ended."""
        if owner in self._per_day:
            before = self.used().get(owner, 0.0)
            self._used[owner] = before + usage.prompt_count + usage.completion_count

    def used(self) -> dict[str, float]:
        """What keys have used at this moment and did not get back, by their names."""
        now = self._clock.now()
        days = (now - self._counted_at) / DAY_S
        self._counted_at = now
        for owner, used in self._used.items():
            self._used[owner] = max(0.0, used - days * self._per_day[owner])
        return dict(self._used)

    async def tend(self, thread: StoreThread, wake: Callable[[], None]) -> None:
        """Note now and then what came back, and let those begin who have some again."""
        noted: dict[str, float] = {}
        while self._per_day:
            await asyncio.sleep(limits.ALLOWANCE_S)
            wake()
            used = self.used()
            if used == noted:
                continue
            with contextlib.suppress(DiskError):  # the next time notes more
                await thread.call(lambda store: store.batches.settle((), used))  # noqa: B023, at once
                noted = used
