"""What a simulated fleet is asked: `Traffic`, the same for every router.

Prompts begin with one of eight system prompts, or continue a conversation, or share nothing. Their
first token says with what they begin.
"""

import random
from dataclasses import dataclass, replace

from jitney.core.params import SamplingParams
from jitney.core.request import Request, RequestId
from tests.simulation.fleet.model import VALUES, answer_of
from tests.simulation.fleet.world import FleetWorld

SYSTEM_LENGTHS = (64, 64, 96, 128, 128, 160, 192, 256)
_SYSTEM = 1_000
OWN = 10_000
"""Tokens from here on begin something that nobody else has."""

_POOL = 2**14
_KEPT_PER_REPLICA = 20
"""Conversations that may come back."""

_PROMPT_MAX = 400
_ALONE_SHARE = 0.15
_BACK_SHARE = 0.3
_TALK_SHARE = 0.6


@dataclass(slots=True, eq=False)
class Asked:
    """One request, and what its caller will do."""

    number: int
    at: float
    ingress: int
    request: Request
    cancel_at: float | None = None
    poison_at: int | None = None
    """The position whose computation kills the replica."""


class Traffic:
    """Draws requests one by one. It does not depend on what becomes of them."""

    def __init__(self, world: FleetWorld) -> None:
        self._world = world
        self._draw = random.Random(f"{world.seed} traffic")
        self._pool = tuple(self._draw.choices(range(1, VALUES), k=_POOL))
        self._systems = [
            (_SYSTEM + at, *self._words(length - 1)) for at, length in enumerate(SYSTEM_LENGTHS)
        ]
        self._talks: list[tuple[str, tuple[int, ...]]] = []
        """Of each conversation its scope, and everything that was said."""
        self._params: dict[tuple[int, bool, int], SamplingParams] = {}
        numbers = range(world.request_count)
        self._poisons = self._draw.sample(numbers, min(world.poison_count, len(numbers)))
        self._now = 0.0
        self._number = 0

    def next(self) -> Asked | None:
        """The next request; None after the last."""
        world, draw = self._world, self._draw
        number = self._number
        if number >= world.request_count:
            return None
        self._number += 1
        self._now += draw.expovariate(world.per_s * world.replica_count)
        scope, prompt = self._prompt(number)
        request = Request(
            id=RequestId(str(number)),
            prompt=prompt,
            params=self._wanted(),
            seed=draw.getrandbits(40),
            scope=scope,
        )
        request = self._limited(request)
        asked = Asked(number, self._now, draw.randrange(world.ingress_count), request)
        if number in self._poisons:
            asked.poison_at = self._poisoned(request)
            return asked
        if world.are_prompts_shared and len(prompt) < _PROMPT_MAX and draw.random() < _TALK_SHARE:
            self._keep(scope, prompt + answer_of(request, 0)[0])
        if draw.random() < world.cancel_share:
            asked.cancel_at = self._now + draw.uniform(0.0, 30 * world.pass_s)
        return asked

    def _poisoned(self, request: Request) -> int:
        """A position that this request computes wherever it runs: nobody else has it."""
        last = len(request.prompt) - 1
        made_count = len(answer_of(request, 0)[0])
        return self._draw.choice((last, self._draw.randint(last, last + max(0, made_count - 1))))

    def _prompt(self, number: int) -> tuple[str, tuple[int, ...]]:
        """The scope and the prompt of a request."""
        draw = self._draw
        kind = draw.random()
        own = (OWN + number,)
        if kind < _BACK_SHARE and self._talks:
            at = draw.randrange(len(self._talks))
            self._talks[at], self._talks[-1] = self._talks[-1], self._talks[at]
            scope, said = self._talks.pop()
            return scope, said + own + self._words(draw.randint(8, 48))
        scope = f"tenant {draw.randrange(self._world.scope_count)}"
        if not self._world.are_prompts_shared or kind > 1 - _ALONE_SHARE:
            return scope, own + self._words(draw.randint(16, 360))
        return scope, draw.choice(self._systems) + own + self._words(draw.randint(8, 64))

    def _words(self, count: int) -> tuple[int, ...]:
        at = self._draw.randrange(_POOL - count)
        return self._pool[at : at + count]

    def _wanted(self) -> SamplingParams:
        """Parameters are checked when they are made, so equal ones are made once."""
        draw = self._draw
        count = 2 if draw.random() < self._world.several_share else 1
        key = (draw.randint(4, 28), draw.random() < 0.3, count)
        found = self._params.get(key)
        if found is None:
            max_tokens, ignore_eos, count = key
            found = self._params[key] = SamplingParams(
                temperature=0, max_tokens=max_tokens, ignore_eos=ignore_eos, n=count
            )
        return found

    def _limited(self, request: Request) -> Request:
        """With a deadline, if it has one: for the whole, or for the wait before the first slot."""
        draw = self._draw
        if draw.random() >= self._world.deadline_share:
            return request
        name = draw.choice(("request_timeout_s", "queue_timeout_s"))
        limit_s = draw.uniform(2.0, 60.0) * self._world.pass_s
        if name == "request_timeout_s":
            return replace(request, request_timeout_s=limit_s)
        return replace(request, queue_timeout_s=limit_s)

    def _keep(self, scope: str, said: tuple[int, ...]) -> None:
        if len(self._talks) >= _KEPT_PER_REPLICA * self._world.replica_count:
            self._talks[self._draw.randrange(len(self._talks))] = (scope, said)
        else:
            self._talks.append((scope, said))
