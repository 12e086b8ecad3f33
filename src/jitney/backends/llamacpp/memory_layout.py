"""Decides the size of llama.cpp's memory, and which of two layouts it has. Pure.

In one *pool*, slots share the cells of a prefix, and memory is `kv_tokens`; but attention reads
every used cell for every token. With *cells of its own* for each slot, a forward pass is two to
four times faster, and memory is slots times the longest sequence
(docs/decisions/0008-cells-of-their-own.md). So slots get their own cells where they fit.
"""

from jitney.backends.shared import sizing
from jitney.config import Settings
from jitney.errors import ConfigError
from jitney.models.gguf import GgufHeader

SLOTS_MAX = 256
"""llama.cpp has at most this many sequences."""

OWN_SPARE_MIN = 4
"""Extra slots for cached prefixes, where each slot has cells of its own."""

STATES_SHARE = 0.125
"""The share of that memory which the states of all slots take, where that is more than a few spare
slots need."""

POOL_SHARE = 0.5
"""The share of the memory beside the weights that a pool takes where the user gave no size."""

GROUP = 4
UNIT = 256
"""llama.cpp takes memory in multiples of this many tokens."""


Q8 = "q8_0"
Q8_BLOCK, Q8_BLOCK_BYTES = 32, 34
"""Numbers of a block, and its bytes with a scale of 16 bits. A block is within one head."""


def token_bytes_of(header: GgufHeader, kv_type: str) -> int:
    """Bytes of the keys and values of a token, where their numbers are of this type."""
    if kv_type != Q8:
        return header.kv_bytes_per_token
    return header.kv_bytes_per_token * Q8_BLOCK_BYTES // (2 * Q8_BLOCK)


def unfit_heads(header: GgufHeader, kv_type: str) -> str | None:
    """Why keys and values of this model cannot have this type, as a clause."""
    unfit = [each for each in header.head_lengths if each % Q8_BLOCK]
    if kv_type != Q8 or not unfit:
        return None
    return (
        f"kv_cache_dtype {Q8} needs heads with a multiple of {Q8_BLOCK} numbers, and those of this "
        f"model have {unfit[0]}; leave it out"
    )


def size_llamacpp(settings: Settings, header: GgufHeader, free_bytes: int | None) -> sizing.Sizes:
    """The sizes for these settings; `free_bytes` is None where the system does not say."""
    if header.state_bytes:
        return _size_recurrent(settings, header, free_bytes)
    pool_slots_count = min(sizing.pool_slots(settings.max_num_seqs), SLOTS_MAX)
    token_bytes = token_bytes_of(header, settings.kv_cache_dtype)
    is_on_gpu = settings.gpu_layers != 0
    memory = sizing.TokenMemory(
        token_bytes=token_bytes, unit=UNIT, free_bytes=None if is_on_gpu else free_bytes
    )
    budget = memory.budget(settings)
    own = own_cells(settings, header, budget, _share_of(memory, header))
    if budget is not None:
        if is_on_gpu or own.kv_tokens > budget:
            return sizing.Sizes(budget, pool_slots_count)
        return sizing.Sizes(budget, own.slots, own.slot_tokens_max)
    kv_tokens = sizing.kv_tokens_of(settings)
    if memory.free_bytes is None or token_bytes == 0:
        return sizing.Sizes(kv_tokens, pool_slots_count)
    spare = max(memory.free_bytes - header.file_bytes, 0)
    if own.kv_tokens * token_bytes <= spare * sizing.SHARE:
        return own
    if settings.max_model_len:
        return sizing.Sizes(kv_tokens, pool_slots_count)
    # Where almost nothing fits, the backend raises an error that says what is missing.
    fits = max(int(spare * POOL_SHARE) // token_bytes // UNIT, 1) * UNIT
    kv_tokens = max(kv_tokens, _whole(header.context_length or 0, UNIT))
    return sizing.Sizes(min(kv_tokens, fits), pool_slots_count)


def _size_recurrent(settings: Settings, header: GgufHeader, free_bytes: int | None) -> sizing.Sizes:
    """One pool, because the library copies whole states only there. Keys and values have what the
    states leave. Raises a SetupError."""
    limit, spare = settings.memory_limit, None
    if free_bytes is not None and settings.gpu_layers == 0:
        spare = max(free_bytes - header.file_bytes, 0)
    slots = _slots_of_states(settings, header.state_bytes, spare if limit is None else limit)
    states_bytes = slots * header.state_bytes
    token_bytes = token_bytes_of(header, settings.kv_cache_dtype)
    memory = sizing.TokenMemory(
        token_bytes=token_bytes,
        unit=UNIT,
        free_bytes=None if spare is None else max(spare - states_bytes, 0),
    )
    if limit is not None:
        least = states_bytes + UNIT * token_bytes
        if limit < least:
            raise ConfigError(
                f"memory_limit ({limit} bytes) is too little for {slots} slots of this model, each "
                f"with a state of {header.state_bytes} bytes, and {UNIT} tokens; give at least "
                f"{least}, or lower max_num_seqs."
            )
        if token_bytes:
            kv_tokens = (limit - states_bytes) // token_bytes // UNIT * UNIT
            memory.check_free(kv_tokens, settings)
            return sizing.Sizes(kv_tokens, slots)
    kv_tokens = sizing.kv_tokens_of(settings)
    if settings.kv_tokens is not None:
        memory.check_free(kv_tokens, settings)
    elif token_bytes and memory.free_bytes is not None and not settings.max_model_len:
        fits = max(memory.fitting(POOL_SHARE), UNIT)
        kv_tokens = min(max(kv_tokens, header.context_length or 0), fits)
    return sizing.Sizes(_whole(kv_tokens, UNIT), slots)


def _slots_of_states(settings: Settings, state_bytes: int, room: int | None) -> int:
    """As many spare slots as a share of the room holds; a few, where it is not known."""
    count = settings.max_num_seqs
    fitting = 0 if room is None else int(room * STATES_SHARE) // state_bytes
    slots = max(count + OWN_SPARE_MIN, min(fitting, sizing.pool_slots(count)))
    return min(slots, SLOTS_MAX)


def _share_of(memory: sizing.TokenMemory, header: GgufHeader) -> int | None:
    """The tokens for which cells of their own may be taken; None where that is not known."""
    if memory.free_bytes is None or memory.token_bytes == 0:
        return None
    spare = max(memory.free_bytes - header.file_bytes, 0)
    return int(spare * sizing.SHARE / memory.token_bytes)


def own_cells(
    settings: Settings,
    header: GgufHeader,
    budget: int | None = None,
    tokens_max: int | None = None,
) -> sizing.Sizes:
    """The sizes with which each slot has cells of its own.

    Where each sequence has an even part of the `budget`, there are as many extra slots as fit it.
    Without a length of the user's, slots are as long as the model can, or half of that and so on,
    if `tokens_max` is enough for it; and at least `LENGTH_SHARED`.
    """
    count = settings.max_num_seqs
    # In whole groups of rows, because some kernels need them.
    slots = min(_whole(count + max(OWN_SPARE_MIN, count // 2), GROUP), SLOTS_MAX)
    length = settings.max_model_len or _longest(header, slots, budget or tokens_max or 0)
    if settings.max_per_sequence == "even" and budget is not None:
        part = _whole(min(length, budget // count), UNIT)
        fitting = budget // max(part, 1) // GROUP * GROUP
        if fitting >= count:
            return sizing.Sizes(min(slots, fitting) * part, min(slots, fitting), part)
    length = _whole(length, UNIT)
    return sizing.Sizes(slots * length, slots, length)


def _longest(header: GgufHeader, slots: int, tokens_max: int) -> int:
    """The longest sequence for which all slots fit. Halved, so that free memory, which is never
    the same, gives the same lengths at most starts."""
    length = header.context_length or sizing.LENGTH_SHARED
    while length > sizing.LENGTH_SHARED and slots * _whole(length, UNIT) > tokens_max:
        length = max(length // 2, sizing.LENGTH_SHARED)
    return length


def _whole(amount: int, unit: int) -> int:
    """The next multiple of the unit."""
    return -(-amount // unit) * unit
