"""Policies that nobody should trust: they order the waiting by chance, lie, or break."""

from collections.abc import Callable
from random import Random

from jitney.core.scheduler_settings import Candidate

KINDS = ("random", "constant", "lying", "raising", "shortest prompt")


class HostilePolicy:
    """One kind of policy, with chance of its own: the same seed gives the same ranks."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind = kind
        self._random = Random(f"policy {seed}")

    def __repr__(self) -> str:
        return f"HostilePolicy({self.kind})"

    def rank(self, candidate: Candidate) -> float:
        """A number, or what pretends to be one."""
        ranks: dict[str, Callable[[], float]] = {
            "random": self._random.random,
            "constant": lambda: 1.0,
            "lying": lambda: self._random.choice((float("inf"), float("nan"), -1e308, 10**400)),
            "raising": self._raise,
            "shortest prompt": lambda: candidate.prompt_tokens,
        }
        return ranks[self.kind]()

    def _raise(self) -> float:
        if self._random.random() < 0.5:
            raise RuntimeError("the policy broke")
        return self._random.random()
