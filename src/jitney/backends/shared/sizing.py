"""Decides how much memory a model gets: the part that backends share. Pure; called by their kinds.

A budget from the user is taken or refused, never lowered in silence.
"""

from dataclasses import dataclass
from math import ceil

from jitney.config import KV_TOKENS_DEFAULT, Settings
from jitney.core import limits
from jitney.errors import ConfigError, ModelError

LENGTH_SHARED = 4096
"""There is memory for `max_num_seqs` sequences of this length, where the user gave no length and no
budget. One alone may be as long as the model and the memory allow: few are."""

PAGED_SPARE_MIN = 64
POOL_SPARE_MIN = 16
"""Extra slots for cached prefixes, where slots cost little or nothing."""

SHARE = 0.25
"""The share of the memory beside the weights that is taken where the user gave no budget."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """All tokens, slots, and tokens of each slot; `slot_tokens_max` 0 means one pool."""

    kv_tokens: int
    slots: int
    slot_tokens_max: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMemory:
    """The memory of one token, and the free memory."""

    token_bytes: float
    """0 where the model does not say."""
    unit: int
    """Memory is taken in multiples of this many tokens."""
    free_bytes: int | None
    """None where the system does not say, or the model uses another memory."""

    def budget(self, settings: Settings) -> int | None:
        """The tokens that the user gave; None without. Raises a SetupError."""
        kv_tokens = settings.kv_tokens
        if settings.memory_limit is not None:
            kv_tokens = self._tokens_of(settings.memory_limit, settings.max_model_len or 0)
        if kv_tokens is not None:
            self.check_free(kv_tokens, settings)
        return kv_tokens

    def whole(self, tokens: int) -> int:
        """So many tokens, in whole units."""
        return ceil(tokens / self.unit) * self.unit

    def fitting(self, share: float) -> int:
        """The tokens that a share of the free memory holds, in whole units."""
        assert self.free_bytes is not None, "The caller knows it"
        return int(self.free_bytes * share / self.token_bytes) // self.unit * self.unit

    def check_free(self, kv_tokens: int, settings: Settings) -> None:
        """Raise ModelError, with the name of the setting, where the memory is not free."""
        needed_bytes = kv_tokens * self.token_bytes
        if self.free_bytes is None or needed_bytes <= self.free_bytes:
            return
        if settings.memory_limit is not None:
            name = "memory_limit"
        else:
            name = "max_model_len" if settings.kv_tokens is None else "kv_tokens"
        raise ModelError(
            f"{name} asks for {needed_bytes / 2**30:.1f} GiB of memory for keys and values, and "
            f"{self.free_bytes / 2**30:.1f} GiB are free; lower it."
        )

    def _tokens_of(self, limit: int, length: int) -> int:
        if self.token_bytes == 0:
            raise ConfigError(
                "memory_limit cannot be used with this model, whose header does not say how much "
                "memory a token takes; give kv_tokens."
            )
        fits = min(int(limit / self.token_bytes), limits.TOKENS_MAX)
        kv_tokens = fits // self.unit * self.unit
        needed = self.whole(max(length, self.unit))
        if kv_tokens < needed:
            raise ConfigError(
                f"memory_limit ({limit} bytes) is too little for {needed} tokens of this model, at "
                f"{self.token_bytes:g} bytes each; give at least {ceil(needed * self.token_bytes)}."
            )
        return kv_tokens


def size_paged(settings: Settings, trained_len: int, memory: TokenMemory) -> Sizes:
    """The sizes where memory is one pool of blocks. Only used blocks take memory.

    Without a budget there is room for `max_num_seqs` of the longest sequences, or for the tokens
    that a share of the free memory holds. Without a length, that is for so many of
    `LENGTH_SHARED`, or for one as long as the model can.
    """
    slots = settings.max_num_seqs + max(PAGED_SPARE_MIN, settings.max_num_seqs)
    budget = memory.budget(settings)
    if budget is not None:
        return Sizes(budget, slots)
    length = memory.whole(settings.max_model_len or min(trained_len, LENGTH_SHARED))
    kv_tokens = length * settings.max_num_seqs
    if memory.free_bytes is not None:
        if settings.max_model_len is None:
            kv_tokens = max(kv_tokens, memory.whole(trained_len))
            length = min(length, memory.fitting(1.0))
        # Where not even one sequence fits, `check_free` raises an error.
        kv_tokens = max(min(kv_tokens, memory.fitting(SHARE)), length, memory.unit)
        memory.check_free(kv_tokens, settings)
    return Sizes(min(kv_tokens, limits.TOKENS_MAX), slots)


def pool_slots(max_num_seqs: int) -> int:
    """How many slots to have where they cost nothing."""
    return max_num_seqs + max(POOL_SPARE_MIN, max_num_seqs)


def kv_tokens_of(settings: Settings, default: int = KV_TOKENS_DEFAULT) -> int:
    """The budget of the user, or the default."""
    return settings.kv_tokens or max(default, settings.max_model_len or 0)
