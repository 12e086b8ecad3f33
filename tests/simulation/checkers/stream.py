"""Invariant 5: deltas joined are the text; no half characters, nothing of a stop string.

The text is compared with a plain search over the whole of it, decoded at once.
"""

from dataclasses import dataclass, field

from jitney.core.request import Request
from jitney.engine.answer import Answer, Completion, Delta, Ending
from tests.simulation.alone import Oracle, cut
from tests.simulation.seen import Fetched, Name, Seen, Violation

NAME = "stream"


@dataclass(slots=True)
class _Stream:
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprob_count: int = 0
    is_over: bool = False


class StreamChecker:
    """Joins what readers fetched."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._streams: dict[Name, _Stream] = {}
        self._ended: set[str] = set()

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Fetched(item=Delta() as delta):
                self._delta(seen.request, delta)
            case Fetched(item=Ending(answer=Answer() as answer)):
                self._ended.add(seen.request.id)
                for completion in answer.completions:
                    self._completion(seen.request, completion, seen.streams)

    def _delta(self, request: Request, delta: Delta) -> None:
        name = (request.id, delta.index)
        stream = self._streams.setdefault(name, _Stream())
        if stream.is_over or request.id in self._ended:
            raise Violation(NAME, f"{name} got {delta.text!r} after its end")
        stream.text += delta.text
        stream.tokens += delta.tokens
        stream.logprob_count += len(delta.logprobs)
        stream.is_over = delta.finish_reason is not None
        # What came before the end is for good: nothing of it may be held back or taken back.
        whole = self._oracle.alone(name).text
        if not stream.is_over and not whole.startswith(stream.text):
            raise Violation(NAME, f"{name} was sent {stream.text!r}, its text is {whole!r}")

    def _completion(self, request: Request, completion: Completion, streams: bool) -> None:
        name = (request.id, completion.index)
        naive = cut(completion.tokens, request.params)
        if completion.text != naive.text:
            raise Violation(
                NAME, f"{name} has the text {completion.text!r}, its tokens say {naive.text!r}"
            )
        if not streams:
            return
        stream = self._streams.get(name, _Stream())
        if not stream.is_over:
            raise Violation(NAME, f"{name} ended and its last delta did not say so")
        if stream.text != completion.text or tuple(stream.tokens) != completion.tokens:
            raise Violation(
                NAME, f"the deltas of {name} are {stream.text!r}, its text {completion.text!r}"
            )
        if stream.logprob_count != len(completion.logprobs or ()):
            raise Violation(NAME, f"the deltas of {name} have {stream.logprob_count} logprobs")
