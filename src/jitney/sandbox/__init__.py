"""Text of strangers is worked on in a process with limits: see `jitney.sandbox.owner`."""

from jitney.sandbox.owner import (
    Bounds,
    Busy,
    Crashed,
    Failed,
    Gone,
    Guarded,
    GuardedError,
    TooLong,
    TooMuchMemory,
)

__all__ = [
    "Bounds",
    "Busy",
    "Crashed",
    "Failed",
    "Gone",
    "Guarded",
    "GuardedError",
    "TooLong",
    "TooMuchMemory",
]
