"""How large the memory of a model is: what backends share. Pure; called by their kinds.

A budget that people gave is taken or refused, never lowered in silence.
"""

from dataclasses import dataclass

from jitney.config import KV_TOKENS_DEFAULT, Settings
from jitney.core import limits
from jitney.errors import ConfigError, ModelError

MODEL_LEN_DEFAULT = 4096
"""The longest sequence where none was asked for: what a model could do at most is often more than
anybody wants to pay for."""

PAGED_SPARE_MIN = 64
POOL_SPARE_MIN = 16
"""Slots beyond those that run, for cached prefixes, where they cost nothing or little."""

SHARE = 0.25
"""Of the memory that the weights leave free, so much is taken when nobody set a budget."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens in all, slots, and tokens of each slot; 0 of those means one pool."""

    kv_tokens: int
    slots: int
    slot_tokens_max: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMemory:
    """What the memory of one token is, and how much there is for all of them."""

    token_bytes: float
    """0 where the model does not say."""
    unit: int
    """Memory is taken in multiples of so many tokens."""
    free_bytes: int | None
    """None where the system does not say, or it is not this memory that is used."""

    def budget(self, settings: Settings) -> int | None:
        """The tokens that people gave; None where they did not. Raises a SetupError."""
        kv_tokens = settings.kv_tokens
        if settings.memory_limit is not None:
            kv_tokens = self._tokens_of(settings.memory_limit, settings.max_model_len or 0)
        if kv_tokens is not None:
            self.check_free(kv_tokens, settings)
        return kv_tokens

    def check_free(self, kv_tokens: int, settings: Settings) -> None:
        """Refuse what the machine does not have, by the setting that asks for it."""
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
        kv_tokens = int(limit / self.token_bytes) // self.unit * self.unit
        needed = max(length, self.unit)
        if kv_tokens < needed:
            raise ConfigError(
                f"memory_limit ({limit} bytes) holds {kv_tokens} tokens of this model, at "
                f"{self.token_bytes:g} bytes each, and at least {needed} are needed; raise it."
            )
        return kv_tokens


def size_paged(settings: Settings, trained_len: int, memory: TokenMemory) -> Sizes:
    """The sizes where memory is one pool of blocks, touched only as it is used.

    Unless a budget was given there is room for as many of the longest sequences as may run, or for
    what a share of the free memory holds.
    """
    slots = settings.max_num_seqs + max(PAGED_SPARE_MIN, settings.max_num_seqs)
    budget = memory.budget(settings)
    if budget is not None:
        return Sizes(budget, slots)
    length = settings.max_model_len or min(trained_len, MODEL_LEN_DEFAULT)
    longest = -(-length // memory.unit) * memory.unit
    wanted = longest * settings.max_num_seqs
    if memory.free_bytes is not None:
        fits = int(memory.free_bytes * SHARE / memory.token_bytes) // memory.unit * memory.unit
        # Where not even one sequence fits, the backend refuses and says what is missing.
        wanted = max(min(wanted, fits), longest)
        memory.check_free(wanted, settings)
    return Sizes(min(wanted, limits.TOKENS_MAX), slots)


def pool_slots(max_num_seqs: int) -> int:
    """Slots where further ones cost nothing."""
    return max_num_seqs + max(POOL_SPARE_MIN, max_num_seqs)


def kv_tokens_wanted(settings: Settings) -> int:
    """The budget as given, or what is usual."""
    return settings.kv_tokens or max(KV_TOKENS_DEFAULT, settings.max_model_len or 0)
