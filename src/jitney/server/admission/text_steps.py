"""The work with text for a reply, alone or together with that of other calls. Worker threads.

A question to the chat template or to the tokenizer goes to another process and back, which takes
longer than the answer. So the work is a generator, which asks where it needs an answer. `run_alone`
answers the questions of one such generator, and `run_together` those of many, in one message.

Tests: tests/unit/server/admission/test_text_steps.py.
"""

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, TypeVar

from jitney.core.backend import Segment
from jitney.engine.request_factory import GivenUp, RequestFactory, Wanted
from jitney.errors import JitneyError
from jitney.text.chat_template import ChatTask, ChatTemplate

ResultT = TypeVar("ResultT")

Question = ChatTask | tuple[Segment, ...]
"""A chat, whose answer is the segments of its prompt; or such segments, whose answer is tokens."""

Steps = Generator[Question, Any, ResultT]  # Any: the answer to what was asked last


class TextSteps:
    """Answers questions with the template and the tokenizer of one model."""

    def __init__(self, template: ChatTemplate | None, request_factory: RequestFactory) -> None:
        self._template = template
        self._request_factory = request_factory

    def run_alone(self, steps: Steps[ResultT], is_wanted: Wanted) -> ResultT:
        """The result of one work. Raises its error."""
        answer: Any = None
        while True:
            try:
                question = _advance(steps, answer)
            except StopIteration as end:
                result: ResultT = end.value
                return result
            try:
                if isinstance(question, ChatTask):
                    answer = self._known_template.ask(question)
                else:
                    answer = self._request_factory.encode(question, is_wanted)
            except Exception as error:
                answer = error

    def run_together(
        self, works: Sequence[tuple[Steps[ResultT], Wanted]]
    ) -> list[ResultT | Exception]:
        """The result of each short work, or its error. Raises if the works have to be run alone."""
        results: dict[int, ResultT | Exception] = {}
        answers: dict[int, Any] = dict.fromkeys(range(len(works)))
        while answers:
            chats: dict[int, ChatTask] = {}
            prompts: dict[int, tuple[Segment, ...]] = {}
            for place, answer in answers.items():
                steps, is_wanted = works[place]
                try:
                    question = _advance(steps, answer if is_wanted() else GivenUp())
                except StopIteration as end:
                    results[place] = end.value
                except Exception as error:
                    results[place] = error
                else:
                    asked: dict[int, Any] = chats if isinstance(question, ChatTask) else prompts
                    asked[place] = question
            answers = _answers(chats, lambda some: self._known_template.ask_together(some))
            wanted = [works[place][1] for place in prompts]
            answers |= _answers(prompts, partial(self._encode, wanted))
        return [results[place] for place in range(len(works))]

    def _encode(self, wanted: list[Wanted], prompts: list[tuple[Segment, ...]]) -> Sequence[Any]:
        if len(prompts) > 1:
            return self._request_factory.encode_together(prompts)
        try:
            return [self._request_factory.encode(prompts[0], wanted[0])]
        except (JitneyError, GivenUp) as error:
            # Nobody else can be its cause. A text that ends processes must not end another one.
            return [error]

    @property
    def _known_template(self) -> ChatTemplate:
        assert self._template is not None, "Only who has seen it makes a chat"
        return self._template


def _advance(steps: Steps[ResultT], answer: Any) -> Question:
    """The next question. Raises StopIteration with the result, or the error of the work."""
    return steps.throw(answer) if isinstance(answer, Exception) else steps.send(answer)


def _answers(asked: dict[int, Any], ask: Callable[[list[Any]], Sequence[Any]]) -> dict[int, Any]:
    """The answer to each question, if there is any."""
    return dict(zip(asked, ask(list(asked.values())), strict=True)) if asked else {}
