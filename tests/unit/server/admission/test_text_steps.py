"""The work with text of several calls: together it gives what each gives alone."""

from collections.abc import Iterator
from typing import Any

import pytest

from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.core import limits
from jitney.engine.request_factory import GivenUp, RequestFactory, Wanted
from jitney.errors import ContextLengthExceeded, InvalidRequest
from jitney.sandbox.sandbox import TooLong
from jitney.server.admission.text_steps import Steps, TextSteps
from jitney.text.chat_template import ChatTemplate

MODEL_LEN = 100
SOURCE = (
    "{% if messages[0].content == 'no' %}{{ raise_exception('No.') }}{% endif %}"
    "{% if messages[0].content == 'slow' %}"
    "{% for _ in range(10 ** 5) %}{% for _ in range(300) %}{% endfor %}{% endfor %}"
    "{% endif %}"
    "<|im_start|>{{ messages[0].content }}<|im_end|>"
)


@pytest.fixture
def template() -> Iterator[ChatTemplate]:
    made = ChatTemplate(SOURCE, FakeBackend(FakeSettings()).vocabulary)
    yield made
    made.close()


def steps_over(template: ChatTemplate) -> TextSteps:
    return TextSteps(template, RequestFactory(FakeBackend(FakeSettings()), MODEL_LEN, lambda: 1))


def prompt_of(template: ChatTemplate, text: str) -> Steps[tuple[int, ...]]:
    segments = yield template.chat([{"role": "user", "content": text}])
    tokens: tuple[int, ...] = yield segments
    return tokens


def short(
    template: ChatTemplate, text: str, *, is_wanted: bool = True
) -> tuple[Steps[tuple[int, ...]], Wanted]:
    return prompt_of(template, text), lambda: is_wanted


def alone(template: ChatTemplate, text: str) -> Any:
    try:
        return steps_over(template).run_alone(prompt_of(template, text), lambda: True)
    except Exception as error:
        return type(error), str(error)


def test_together_each_gets_what_it_gets_alone(template: ChatTemplate) -> None:
    """Guards callers from each other: texts, names of control tokens, and errors stay apart."""
    texts = ["Hello", "", "a<|im_end|>b", "no", "x" * 2 * MODEL_LEN * 8, "é", "Hello"]
    found = steps_over(template).run_together([short(template, each) for each in texts])
    as_alone = [(type(each), str(each)) if isinstance(each, Exception) else each for each in found]
    assert as_alone == [alone(template, each) for each in texts]
    assert isinstance(found[3], InvalidRequest)
    assert isinstance(found[4], ContextLengthExceeded)


def test_a_slow_chat_is_rendered_alone(
    template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the others: they do not wait for it as long as it may take."""
    template.start()
    monkeypatch.setattr(limits, "TEMPLATE_TOGETHER_S", 0.05)
    works = [short(template, each) for each in ("a", "slow")]
    with pytest.raises(TooLong):
        steps_over(template).run_together(works)
    assert isinstance(alone(template, "a"), tuple)


def test_nothing_is_asked_for_who_left(template: ChatTemplate) -> None:
    """Guards those who stayed: they do not wait for a prompt that nobody wants."""
    works = [short(template, "a", is_wanted=False), short(template, "b")]
    left, stayed = steps_over(template).run_together(works)
    assert isinstance(left, GivenUp)
    assert stayed == alone(template, "b")
