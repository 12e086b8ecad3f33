"""Makes the tokens of a script the likeliest ones: `ScriptedAnswers`.

Called by `FakeBackend` on the thread that runs batches. The next token follows from the prompt in
the slot and from how many tokens came after it. Where a constraint forbids it, the answer ends with
a fault.

Tests: tests/unit/backends/fake/test_scripted.py.
"""

from jitney.backends.fake.oracle import Logits
from jitney.backends.fake.script import Script, ScriptAnswer
from jitney.backends.shared.slots import EntryRows
from jitney.core.batch import Fault, FaultKind, Sample

CERTAIN = 1e6
"""The logit of a scripted token: no temperature, penalty or bias outweighs it."""


class ScriptedAnswers:
    """The answer that each slot gives, from the moment when its prompt is complete."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._end = script.vocabulary.eos_tokens[0]
        self._answers: dict[int, ScriptAnswer] = {}
        self._delay_s = 0.0

    def taken_delay_s(self) -> float:
        """How long the tokens take that were preferred since the last time."""
        delay_s, self._delay_s = self._delay_s, 0.0
        return delay_s

    def forget(self, slot: int) -> None:
        """Another sequence has the slot."""
        self._answers.pop(slot, None)

    def prefer(self, each: EntryRows, logits: Logits) -> None:
        """Raise the logit of the token that comes next, or set the fault of the slot."""
        slot, contents = each.entry.slot, each.contents
        if slot not in self._answers:
            self._answers[slot] = self._script.answer(contents.tokens[: contents.prompt_count])
        answer = self._answers[slot]
        if answer.tokens is None:
            reason = (
                f"The script has no line for answer {answer.turn} of this conversation; "
                f"the text that its lines are compared with ends in {answer.compared!r}."
            )
            contents.fault = Fault(reason, FaultKind.PROMPT)
            return
        self._delay_s = max(self._delay_s, answer.delay_s)
        logits[self._next(each, answer.tokens)] = CERTAIN

    def checked(self, each: EntryRows, sample: Sample) -> Sample:
        """The sample, or a fault where a constraint chose another token than the script."""
        contents, answer = each.contents, self._answers.get(each.entry.slot)
        assert contents.sampling is not None, "it was opened"
        is_free = contents.sampling.constraint is None or sample.token is None
        if is_free or answer is None or answer.tokens is None:
            return sample
        if sample.token == self._next(each, answer.tokens):
            return sample
        reason = (
            f"The script's answer to turn {answer.turn} of this conversation does not fit what the "
            "request enforces (a schema, a grammar, a tool or a budget for thinking); change its "
            "line or the request."
        )
        contents.fault = Fault(reason, FaultKind.PROMPT)
        return Sample(fault=contents.fault)

    def _next(self, each: EntryRows, tokens: list[int]) -> int:
        at = each.entry.end - each.contents.prompt_count
        return tokens[at] if at < len(tokens) else self._end
