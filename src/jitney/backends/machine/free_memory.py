"""Checks whether a model and its memory fit this machine, before the library takes memory.

Called while a backend is built. Linux has a file with the free memory, and macOS a program. Without
both, nothing is refused. The estimate is low: a model that is refused here could not have run.
"""

import re
from pathlib import Path

from jitney.backends.machine.processor import output_of, text_of
from jitney.errors import NoRoom

MEMINFO = Path("/proc/meminfo")
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+)\b", re.MULTILINE)
_PAGE_SIZE = re.compile(r"page size of (\d+) bytes")
_PAGES = re.compile(r"^Pages (free|inactive|speculative): +(\d+)\.?$", re.MULTILINE)


def check_weights(model: Path, weights_bytes: int) -> None:
    """Raise NoRoom for a model whose weights alone are larger than the free memory."""
    if (reason := too_large(weights_bytes)) is not None:
        raise NoRoom(f"{model} cannot be loaded: {reason}.")


def too_large(weights_bytes: int) -> str | None:
    """Why such weights cannot be loaded here, as a clause; None where they may be."""
    available = available_bytes()
    if available is None or weights_bytes <= available:
        return None
    return (
        f"it has {_gib(weights_bytes)} of weights and {_gib(available)} of memory is free; take a "
        "smaller model or a smaller quantisation"
    )


def refuse_too_large(weights_bytes: int) -> None:
    """Raise NoRoom for such weights, before it is known where they will be."""
    if (reason := too_large(weights_bytes)) is not None:
        raise NoRoom(f"{reason}.")


def free_beside(model: Path, weights_bytes: int) -> int | None:
    """The free memory after the weights are loaded. Raises NoRoom where they do not fit."""
    check_weights(model, weights_bytes)
    free = available_bytes()
    return None if free is None else max(free - weights_bytes, 0)


def check_states(slots: int, state_bytes: int) -> None:
    """Raise NoRoom where the recurrent states of so many slots do not fit."""
    available = available_bytes()
    if available is not None and slots * state_bytes > available:
        raise NoRoom(
            f"The states of {slots} slots take {_gib(slots * state_bytes)} of memory for this "
            f"model, and {_gib(available)} is free; lower max_num_seqs."
        )


def check_memory(kv_tokens: int, token_bytes: int, work_bytes: int) -> None:
    """Raise NoRoom where keys and values for `kv_tokens`, with the work space, do not fit."""
    available = available_bytes()
    needed = kv_tokens * token_bytes + work_bytes
    if available is None or needed <= available:
        return
    fits = max(0, available - work_bytes) // max(1, token_bytes) // 256 * 256
    advice = (
        f"lower kv_tokens to at most {fits}"
        if fits
        else "lower kv_tokens and max_num_batched_tokens"
    )
    raise NoRoom(
        f"kv_tokens {kv_tokens} takes {_gib(needed)} of memory for this model, and "
        f"{_gib(available)} is free; {advice}."
    )


def available_bytes() -> int | None:
    """The memory that can be taken without swapping; None where the system does not say."""
    written = _AVAILABLE.search(text_of(MEMINFO))
    if written is not None:
        return int(written[1]) * 1024
    output = output_of("vm_stat")
    size, counts = _PAGE_SIZE.search(output), _PAGES.findall(output)
    if size is None or not counts:
        return None
    return int(size[1]) * sum(int(count) for _, count in counts)


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
