"""How large the memory of a model is, and how it is laid out. Pure; called by `loading`.

A backend that pages has one pool of blocks. llama.cpp has two layouts. In one *pool* a prefix is
shared by marking its cells, and memory is what was asked for; but attention looks at every used
cell for every token. With *cells of its own* for each slot a forward pass is two to four times
faster, and memory is slots times the longest sequence (docs/decisions/0008-cells-of-their-own.md).
So: cells of their own where they fit the budget.
"""

from dataclasses import dataclass

from jitney.backends.openvino.families import BLOCK_TOKENS
from jitney.config import KV_TOKENS_DEFAULT, Settings
from jitney.core import limits
from jitney.errors import ConfigError, ModelError
from jitney.models.gguf import GgufHeader

MODEL_LEN_DEFAULT = 4096
"""The longest sequence where none was asked for: what a model could do at most is often more than
anybody wants to pay for."""

SLOTS_MAX = 256
"""llama.cpp tells at most so many sequences apart."""

PAGED_SPARE_MIN = 64
POOL_SPARE_MIN = 16
OWN_SPARE_MIN = 4
"""Slots beyond those that run, for cached prefixes. In a pool they cost nothing, but llama.cpp
looks at each of them."""

OWN_SHARE = 0.25
POOL_SHARE = 0.5
"""Of the memory that the weights leave free, so much is taken when nobody set a budget."""

GROUP = 4
UNIT = 256
"""llama.cpp takes memory in multiples of so many tokens."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens in all, slots, and tokens of each slot; 0 of those means one pool."""

    kv_tokens: int
    slots: int
    slot_tokens_max: int


def size_llamacpp(settings: Settings, header: GgufHeader, free_bytes: int | None) -> Sizes:
    """The sizes for these settings; `free_bytes` is None where the system does not say."""
    check_sequences(settings)
    own = _own_cells(settings, header)
    pool = Sizes(0, min(pool_slots(settings.max_num_seqs), SLOTS_MAX), 0)
    token_bytes = header.kv_bytes_per_token
    budget = _budget_given(settings, token_bytes, UNIT)
    if budget is not None:
        if settings.gpu_layers == 0:
            _check_free(budget * token_bytes, settings, free_bytes)
        fits = settings.gpu_layers == 0 and own.kv_tokens <= budget
        return Sizes(budget, own.slots, own.slot_tokens_max) if fits else _with(pool, budget)
    spare = None if free_bytes is None else max(free_bytes - header.file_bytes, 0)
    if settings.gpu_layers != 0 or spare is None or token_bytes == 0:
        return _with(pool, kv_tokens_wanted(settings))
    if own.kv_tokens * token_bytes <= spare * OWN_SHARE:
        return own
    # Where next to nothing fits, the backend refuses and says what is missing.
    fits_tokens = max(int(spare * POOL_SHARE) // token_bytes // UNIT, 1) * UNIT
    wanted = kv_tokens_wanted(settings)
    return _with(pool, wanted if settings.max_model_len else min(wanted, fits_tokens))


def own_cells_tokens(settings: Settings, header: GgufHeader) -> int:
    """The budget with which each slot of llama.cpp has cells of its own."""
    return _own_cells(settings, header).kv_tokens


def size_paged(
    settings: Settings, trained_len: int, token_bytes: float, free_bytes: int | None
) -> Sizes:
    """The sizes where memory is one pool of blocks, touched only as it is used.

    Unless a budget was given there is room for as many of the longest sequences as may run, or for
    what a share of the free memory holds.
    """
    slots = settings.max_num_seqs + max(PAGED_SPARE_MIN, settings.max_num_seqs)
    budget = _budget_given(settings, token_bytes, BLOCK_TOKENS)
    if budget is not None:
        _check_free(budget * token_bytes, settings, free_bytes)
        return Sizes(budget, slots, 0)
    length = settings.max_model_len or min(trained_len, MODEL_LEN_DEFAULT)
    wanted = -(-length // BLOCK_TOKENS) * BLOCK_TOKENS * settings.max_num_seqs
    if free_bytes is not None:
        fits = int(free_bytes * OWN_SHARE / token_bytes) // BLOCK_TOKENS * BLOCK_TOKENS
        # Where not even one sequence fits, the backend refuses and says what is missing.
        wanted = max(min(wanted, fits), -(-length // BLOCK_TOKENS) * BLOCK_TOKENS)
        _check_free(wanted * token_bytes, settings, free_bytes)
    return Sizes(min(wanted, limits.TOKENS_MAX), slots, 0)


def check_sequences(settings: Settings) -> None:
    """Refuse what llama.cpp cannot do whatever the model; before one is fetched for nothing."""
    if settings.max_num_seqs > SLOTS_MAX:
        raise ConfigError(
            f"max_num_seqs is {settings.max_num_seqs}, and llama.cpp tells at most "
            f"{SLOTS_MAX} sequences apart; lower it."
        )


def pool_slots(max_num_seqs: int) -> int:
    """Slots where further ones cost nothing."""
    return max_num_seqs + max(POOL_SPARE_MIN, max_num_seqs)


def kv_tokens_wanted(settings: Settings) -> int:
    """The budget as given, or what is usual."""
    return settings.kv_tokens or max(KV_TOKENS_DEFAULT, settings.max_model_len or 0)


def _own_cells(settings: Settings, header: GgufHeader) -> Sizes:
    length = settings.max_model_len or min(
        header.context_length or MODEL_LEN_DEFAULT, MODEL_LEN_DEFAULT
    )
    length = -(-length // UNIT) * UNIT
    spare = max(OWN_SPARE_MIN, settings.max_num_seqs // 2)
    # In whole groups of rows, as its kernels may take them.
    slots = min(-(-(settings.max_num_seqs + spare) // GROUP) * GROUP, SLOTS_MAX)
    return Sizes(slots * length, slots, length)


def _budget_given(settings: Settings, token_bytes: float, unit: int) -> int | None:
    limit = settings.memory_limit
    if limit is None:
        return settings.kv_tokens
    if token_bytes == 0:
        raise ConfigError(
            "memory_limit cannot be used with this model, whose header does not say how much "
            "memory a token takes; give kv_tokens."
        )
    kv_tokens = int(limit / token_bytes) // unit * unit
    needed = max(settings.max_model_len or 0, unit)
    if kv_tokens < needed:
        raise ConfigError(
            f"memory_limit ({limit} bytes) holds {kv_tokens} tokens of this model, at "
            f"{token_bytes:g} bytes each, and at least {needed} are needed; raise it."
        )
    return kv_tokens


def _check_free(needed_bytes: float, settings: Settings, free_bytes: int | None) -> None:
    """Refuse a budget that the machine does not have, in whichever layout it would be used."""
    if free_bytes is not None and needed_bytes > free_bytes:
        given = "memory_limit" if settings.memory_limit is not None else "kv_tokens"
        name = "max_model_len" if given == "kv_tokens" and settings.kv_tokens is None else given
        raise ModelError(
            f"{name} asks for {needed_bytes / 2**30:.1f} GiB of memory for keys and values, and "
            f"{free_bytes / 2**30:.1f} GiB are free; lower it."
        )


def _with(pool: Sizes, kv_tokens: int) -> Sizes:
    return Sizes(kv_tokens, pool.slots, 0)
