"""Invariant 4: tokens and text are those of the same request run alone.

Each token is compared as it comes out of the scheduler, whole completions when they are told.
"""

from jitney.core.events import FinishReason
from jitney.core.request import Request
from jitney.engine.answer import Answer, Completion, Ending
from tests.simulation.alone import Oracle
from tests.simulation.seen import Fetched, Happened, Name, Seen, TokenEvent, Violation

NAME = "oracle"
_WHOLE = (FinishReason.STOP, FinishReason.LENGTH)


class OracleChecker:
    """Compares with the fake backend's own arithmetic over the request alone."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._counts: dict[Name, int] = {}

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Happened():
                for event in seen.events:
                    if isinstance(event, TokenEvent):
                        self._token(event)
            case Fetched(item=Ending(answer=Answer() as answer)):
                for completion in answer.completions:
                    self._completion(seen.request, completion)
                self._prompt(seen.request, answer)

    def _token(self, event: TokenEvent) -> None:
        name = (event.request_id, event.index)
        count = self._counts.get(name, 0)
        self._counts[name] = count + 1
        sampled = self._oracle.alone(name).sampled
        expected = sampled[count] if count < len(sampled) else None
        if event.token != expected:
            raise Violation(
                NAME, f"token {count} of {name} is {event.token}, alone it is {expected}"
            )

    def _completion(self, request: Request, completion: Completion) -> None:
        name = (request.id, completion.index)
        alone = self._oracle.alone(name)
        tokens, count = completion.tokens, len(completion.tokens)
        if alone.sampled[:count] != tokens:
            raise Violation(NAME, f"{name} has tokens {tokens}, alone {alone.sampled}")
        logprobs = completion.logprobs
        if logprobs is not None and tuple(each.token for each in logprobs) != tokens:
            raise Violation(NAME, f"{name} has logprobs of other tokens than its own")
        if (logprobs is None) != (request.params.logprobs is None):
            raise Violation(NAME, f"{name} has logprobs {logprobs}")
        if completion.finish_reason not in _WHOLE:
            return
        count = completion.usage.completion_count
        found = (tokens, completion.text, completion.finish_reason, count)
        if found != (alone.tokens, alone.text, alone.reason, alone.completion_count):
            raise Violation(NAME, f"{name} is {found}, alone {alone}")
        if completion.stop_reason not in alone.stop_reasons:
            raise Violation(
                NAME, f"{name} stopped by {completion.stop_reason}, not {alone.stop_reasons}"
            )

    def _prompt(self, request: Request, answer: Answer) -> None:
        """Logprobs of the prompt: each position once, none missing once a token was made."""
        scored = answer.prompt_logprobs
        if scored is None:
            return
        tokens = tuple(each.token for each in scored)
        expected = request.prompt[1:]
        has_run = any(completion.tokens for completion in answer.completions)
        if tokens != expected[: len(tokens)] or (has_run and len(tokens) < len(expected)):
            raise Violation(NAME, f"{request.id} has logprobs of {len(tokens)} prompt tokens")
