"""Makes the tokens of a script the likeliest ones: `ScriptedAnswers`.

Called by `FakeBackend` on the thread that runs batches. The next token follows from the prompt in
the slot and from how many tokens came after it. A constraint may still choose another one.

Tests: tests/unit/backends/fake/test_scripted.py.
"""

from jitney.backends.fake.oracle import Logits
from jitney.backends.fake.script import Script, ScriptAnswer
from jitney.backends.shared.slots import EntryRows
from jitney.core.batch import Fault, FaultKind

CERTAIN = 1e6
"""The logit of a scripted token: no temperature, penalty or bias outweighs it."""


class ScriptedAnswers:
    """The answer that each slot gives, from the moment when its prompt is complete."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._end = script.vocabulary.eos_tokens[0]
        self._answers: dict[int, ScriptAnswer] = {}

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
            reason = f"The script has no line for answer {answer.turn} of this conversation."
            contents.fault = Fault(reason, FaultKind.PROMPT)
            return
        at = each.entry.end - contents.prompt_count
        logits[answer.tokens[at] if at < len(answer.tokens) else self._end] = CERTAIN
