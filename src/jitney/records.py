"""What the engine does, told as it happens: the records that `LLM.engine.observe` hands out.

The public place of these names. docs/reference/records.md lists every field.
"""

from jitney.core.events import PreemptReason
from jitney.engine.observe import Observer
from jitney.engine.records import (
    BackendLost,
    KvPressure,
    Member,
    Record,
    RequestAccepted,
    RequestDone,
    RequestFailed,
    RequestPreempted,
    RequestRefused,
    RequestStarted,
    TickRecord,
)

__all__ = [
    "BackendLost",
    "KvPressure",
    "Member",
    "Observer",
    "PreemptReason",
    "Record",
    "RequestAccepted",
    "RequestDone",
    "RequestFailed",
    "RequestPreempted",
    "RequestRefused",
    "RequestStarted",
    "TickRecord",
]
