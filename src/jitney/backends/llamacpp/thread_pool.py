"""The threads of a context of llama.cpp, which live as long as it does.

Without them, a build without OpenMP starts and ends all its threads in every pass. On sixteen cores
these are fifteen for each token, and where two of them begin on one core, all others wait.

Called by `bindings`, on the thread of the context.
"""

import ctypes
import os
from collections.abc import Callable
from ctypes import POINTER, c_bool, c_char_p, c_int, c_uint32, c_void_p
from typing import Any, ClassVar  # Any: functions and pointers of ctypes

POLL = 0
"""Threads sleep between two passes. With the library's own value, 50, they spin for a quarter of a
second, on cores that the server needs."""

_POLL_USUAL = 50
_CORES_MAX = 512
_CPU = 0


class PoolParams(ctypes.Structure):
    """How many threads there are, on which cores, and how they wait."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("cpumask", c_bool * _CORES_MAX),
        ("n_threads", c_int),
        ("prio", c_int),
        ("poll", c_uint32),
        ("strict_cpu", c_bool),
        ("paused", c_bool),
        # Where the library's structure is larger, it overwrites only this.
        ("guard", ctypes.c_uint8 * 4096),
    ]


def attach_pool(handle: Any, context: Any, threads: int) -> Callable[[], None] | None:
    """Let a context compute with so many threads, or with some of them, from now on.

    The handle of ctypes is that of the library, which was started. The result ends the threads:
    call it once, when the context is gone. None where one thread is enough, and for a library that
    has no such pools or other structures. It makes its own threads then.
    """
    if threads < 2:
        return None
    params = PoolParams()
    try:
        _typed(handle.ggml_threadpool_params_init, None, POINTER(PoolParams), c_int)(
            ctypes.byref(params), threads
        )
        attach = _typed(handle.llama_attach_threadpool, None, c_void_p, c_void_p, c_void_p)
        new, free = (_of_kernels(handle, f"ggml_threadpool_{name}") for name in ("new", "free"))
    except AttributeError:
        return None
    if not (new and free) or (params.n_threads, params.poll) != (threads, _POLL_USUAL):
        return None
    params.poll = POLL
    pool = ctypes.CFUNCTYPE(c_void_p, POINTER(PoolParams))(new)(ctypes.byref(params))
    if not pool:
        return None
    attach(context, pool, pool)
    process = os.getpid()

    def end() -> None:
        # A fork has the pool but not its threads, and would wait for their end for ever.
        if os.getpid() == process:
            ctypes.CFUNCTYPE(None, c_void_p)(free)(pool)

    return end


def _of_kernels(handle: Any, name: str) -> int | None:
    """The address of a function of the kernels, which are a library of their own in some builds."""
    device = _typed(handle.ggml_backend_dev_by_type, c_void_p, c_int)(_CPU)
    if not device:
        return None
    kernels = _typed(handle.ggml_backend_dev_backend_reg, c_void_p, c_void_p)(device)
    find = _typed(handle.ggml_backend_reg_get_proc_address, c_void_p, c_void_p, c_char_p)
    address: int | None = find(kernels, name.encode())
    return address


def _typed(function: Any, gives: Any, *takes: Any) -> Any:
    function.restype, function.argtypes = gives, takes
    return function
