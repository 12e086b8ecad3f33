"""One line per turn of a simulated run, for people who replay a seed."""

from collections.abc import Callable

from jitney.core.batch import Batch, Open
from jitney.core.events import FinishEvent, PreemptEvent, StartEvent
from tests.simulation.seen import (
    Happened,
    Injected,
    Planned,
    Seen,
    Steered,
    Submitted,
    Ticked,
    TokenEvent,
)

LEGEND = """\
columns of the trace:
  turn     number of the turn
  time     virtual seconds since the start of the clock
  run/wait sequences that run, sequences that wait
  kv       tokens of memory in use / of these only cached
  then     what happened in the turn, in order:
           +id            a request was accepted (-id: refused)
           #3 s0[0:16]r1.0 batch 3: slot 0 computes positions 0 to 15 for completion 0 of r1;
                          ! after the span: a token is wanted; ~: it continues from the last one
           {copy ...}     memory operations at the head of the batch, but for opened slots
           r1.0>          got its first slot   r1.0<saved   preempted, and how
           r1.0:abc       a token (its number) r1.0=stop    ended, and why
           *crash         a fault was injected
           (pause r1)     somebody asked for a pause, a resume, another class or a drain
"""


class Trace:
    """Gathers what happened in a turn and writes it as one line."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._parts: list[str] = []

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Submitted():
                self._parts.append(f"{'+' if seen.error is None else '-'}{seen.request.id}")
            case Planned(batch=Batch() as batch):
                self._parts.append(_batch(batch, seen))
            case Steered():
                self._parts.append(f"({seen.kind} {seen.request_id})")
            case Injected():
                self._parts.append(f"*{seen.kind}")
            case Happened():
                self._events(seen)
            case Ticked():
                snapshot = seen.snapshot
                self._write(
                    f"{seen.number:5d} {seen.at:10.3f} {snapshot.running_count:3d}/"
                    f"{snapshot.waiting_count:<3d} {snapshot.kv_used:5d}/{snapshot.kv_cached:<5d} "
                    + " ".join(self._parts)
                )
                self._parts.clear()

    def flush(self) -> None:
        """Write what happened in a turn that did not come to its end."""
        self._write("  ... " + " ".join(self._parts))
        self._parts.clear()

    def _events(self, seen: Happened) -> None:
        for event in seen.events:
            name = f"{event.request_id}.{event.index}"
            match event:
                case StartEvent():
                    self._parts.append(f"{name}>")
                case PreemptEvent():
                    self._parts.append(f"{name}<{event.reason}")
                case TokenEvent():
                    self._parts.append(f"{name}:{event.token}")
                case FinishEvent():
                    self._parts.append(f"{name}={event.reason}({seen.method})")
                case _:
                    pass


def _batch(batch: Batch, seen: Planned) -> str:
    owners = {slot: f"{request_id}.{index}" for slot, (request_id, index) in seen.owners.items()}
    parts = [f"#{batch.number}"]
    operations = [each for each in batch.operations if not isinstance(each, Open)]
    if operations:
        parts.append("{" + "; ".join(_operation(each) for each in operations) + "}")
    for entry in batch.entries:
        wanted = "!" if entry.wants_token else ""
        continues = "~" if entry.continues else ""
        span = f"s{entry.slot}[{entry.start}:{entry.end}]{wanted}{continues}"
        parts.append(span + owners.get(entry.slot, "nobody"))
    return " ".join(parts)


def _operation(operation: object) -> str:
    return repr(operation).replace("(", " ").replace(")", "").lower()
