"""The door: what is refused before it reaches native code, and what a request carries."""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.core import limits
from jitney.core.backend import Segment
from jitney.core.params import SamplingParams, StructuredOutputsParams
from jitney.core.request import Priority, RequestId
from jitney.engine.request_factory import FreshIds, GivenUp, RequestFactory, RequestOptions
from jitney.errors import ContextLengthExceeded, InvalidRequest


@pytest.fixture
def factory() -> Iterator[RequestFactory]:
    """A door to a context of 64 tokens, with seeds 1, 2, 3, ..."""
    seeds = iter(range(1, 100))
    backend = FakeBackend(FakeSettings())
    yield RequestFactory(backend, 64, lambda: next(seeds))
    backend.close()


def test_names_of_control_tokens_count_only_in_special_pieces(factory: RequestFactory) -> None:
    """Guards against a user who ends the system's turn by writing its end token."""
    special = factory.encode((("<|end|>", True),))
    plain = factory.encode((("<|end|>", False),))
    assert len(special) == 1
    assert len(plain) == len("<|end|>")
    assert factory.encode_text("<|end|>") == special


def test_a_seed_is_drawn_only_when_none_is_given(factory: RequestFactory) -> None:
    """Guards repeatability, and against every unseeded request being the same."""
    prompt = factory.encode_text("abc")
    drawn = [factory.make(prompt, SamplingParams()).seed for _ in range(2)]
    given = factory.make(prompt, SamplingParams(seed=0)).seed
    assert (drawn, given) == ([1, 2], 0)


def test_a_request_carries_its_options(factory: RequestFactory) -> None:
    """Guards the fields that decide who is served when, and what may be shared."""
    options = RequestOptions(
        id=RequestId("x"), priority=Priority.HIGH, tenant="t", scope="s", request_timeout_s=3.0
    )
    request = factory.make((65,), SamplingParams(), options)
    assert (request.id, request.priority, request.tenant, request.scope) == ("x", 2, "t", "s")
    assert (request.queue_timeout_s, request.request_timeout_s) == (None, 3.0)


def test_requests_without_an_id_get_one_of_their_own(factory: RequestFactory) -> None:
    """Guards against two live requests under one id."""
    first, second = (factory.make((65,), SamplingParams()).id for _ in range(2))
    assert first != second


@pytest.mark.parametrize("prompt", [(), (-1,), (10**6,), (True,), ("a",)])
def test_prompts_that_are_no_tokens_are_refused(
    factory: RequestFactory, prompt: tuple[int, ...]
) -> None:
    """Guards native code against tokens that it would look up without a check."""
    with pytest.raises(InvalidRequest):
        factory.make(prompt, SamplingParams())


def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(
    factory: RequestFactory,
) -> None:
    """Guards against a request that could never have a completion."""
    factory.make((65,) * 63, SamplingParams())
    with pytest.raises(ContextLengthExceeded, match=r"64 tokens.*64"):
        factory.make((65,) * 64, SamplingParams())


def test_tokens_in_the_sampling_must_be_in_the_vocabulary(factory: RequestFactory) -> None:
    """Guards the sampler against writing outside of its logits."""
    with pytest.raises(InvalidRequest, match="logit_bias"):
        factory.make((65,), SamplingParams(logit_bias={10**6: 1.0}))
    with pytest.raises(InvalidRequest, match="stop_token_ids"):
        factory.make((65,), SamplingParams(stop_token_ids=[10**6]))


def test_a_constraint_that_cannot_be_compiled_is_refused_at_the_door(
    factory: RequestFactory,
) -> None:
    """Guards the engine thread against grammars from strangers."""
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="(unclosed"))
    with pytest.raises(InvalidRequest):
        factory.make((65,), params)


def test_texts_that_are_too_long_or_no_text_are_refused(
    factory: RequestFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the tokenizer against sizes and contents that it was not made for."""
    monkeypatch.setattr(limits, "PROMPT_CHARACTERS_MAX", 10)
    with pytest.raises(InvalidRequest, match="11 characters"):
        factory.encode_text("x" * 11)
    with pytest.raises(InvalidRequest, match="surrogate"):
        factory.encode_text("\ud83d")
    with pytest.raises(InvalidRequest, match="a text or tokens"):
        factory.encode_text(b"bytes")  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["queue_timeout_s", "request_timeout_s"])
def test_time_limits_must_be_above_zero(field: str) -> None:
    """Guards against a limit of nothing, or of no number, taken for no limit."""
    for seconds in (0.0, -1.0, float("nan")):
        with pytest.raises(InvalidRequest, match=field):
            RequestOptions(**{field: seconds})  # type: ignore[arg-type]


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards everybody else: tokenising megabytes for nothing would hold them up."""
    backend = FakeBackend(FakeSettings())
    longest = max(map(len, backend.vocabulary.pieces))
    factory = RequestFactory(backend, 64, lambda: 0)

    def never(texts: Sequence[Segment]) -> list[int]:
        raise AssertionError("it was tokenised")

    monkeypatch.setattr(backend, "encode", never)
    with pytest.raises(ContextLengthExceeded, match="bytes"):
        factory.encode_text("é" * (64 * longest))


class Counting(FakeBackend):
    """Remembers how many texts each call brought."""

    def __init__(self) -> None:
        super().__init__(FakeSettings())
        self.calls: list[int] = []

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        self.calls.append(len(texts))
        return super().encode(texts)


def counting(model_len_max: int = 4096) -> tuple[Counting, RequestFactory]:
    backend = Counting()
    return backend, RequestFactory(backend, model_len_max, lambda: 0)


NAMES = (("x", True), ("<|end|>", False))


def test_all_parts_of_a_prompt_are_one_message() -> None:
    """Guards everybody's turn at the tokenizer: each call is a round trip to another process."""
    backend, factory = counting()
    tokens = factory.encode(NAMES * 100)
    assert backend.calls == [200]
    assert tokens == tuple(FakeBackend(FakeSettings()).encode([("x<|end|>", False)])) * 100


def test_more_parts_than_the_context_has_tokens_are_refused_unread() -> None:
    """Guards the tokenizer: each part is a token at least, so that it could never fit."""
    backend, factory = counting(64)
    with pytest.raises(ContextLengthExceeded, match="66 parts"):
        factory.encode(NAMES * 33)
    assert backend.calls == []
    assert len(factory.encode((("x", True), ("", False)) * 64)) == 64


def test_long_work_is_cut_into_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards those who wait for the tokenizer: one slice is the most that they wait for."""
    monkeypatch.setattr(limits, "SLICE_TEXTS", 3)
    monkeypatch.setattr(limits, "SLICE_CHARACTERS", 10)
    backend, factory = counting()
    factory.encode(tuple((text, True) for text in ("a", "", "b", "c", "d")))
    assert backend.calls == [3, 1]
    backend.calls.clear()
    factory.encode(tuple(("x" * size, True) for size in (6, 4, 1, 11, 2)))
    assert backend.calls == [2, 1, 1, 1]


def test_what_nobody_waits_for_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the tokenizer against the work of those who left."""
    monkeypatch.setattr(limits, "SLICE_TEXTS", 2)
    backend, factory = counting()
    with pytest.raises(GivenUp):
        factory.encode(NAMES * 100, lambda: len(backend.calls) < 3)
    assert backend.calls == [2, 2, 2]
    with pytest.raises(GivenUp):
        factory.encode_text("x", lambda: False)
    assert len(backend.calls) == 3


def test_no_constraint_is_compiled_for_who_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards those who wait for the compiler, which does one at a time."""
    backend, factory = counting()
    prepared: list[object] = []
    monkeypatch.setattr(backend, "prepare", prepared.append)
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a+"))
    with pytest.raises(GivenUp):
        factory.make((65,), params, is_wanted=lambda: False)
    assert not prepared
    factory.make((65,), params)
    assert len(prepared) == 1


def test_no_id_is_given_twice() -> None:
    """Guards callers from each other: who knows an id can cancel its request."""
    fresh = FreshIds()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: fresh.take(), range(5000)))
    assert len(set(found)) == 5000
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in found)
