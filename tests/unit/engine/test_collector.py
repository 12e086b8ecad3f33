"""Events to deltas and answers: invariant 5, verdicts, logprobs, timing, errors."""

import pytest

from jitney.core.batch import FaultKind, TokenLogprob
from jitney.core.events import FinishEvent, FinishReason, PromptEvent, StartEvent
from jitney.core.params import SamplingParams, StructuredOutputsParams
from jitney.core.request import Request, RequestId
from jitney.core.sequence import make_sequences
from jitney.core.stops import StopTable
from jitney.engine.answer import Answer, Delta, Usage
from jitney.engine.collector import READ_TOO_SLOWLY, Collector
from jitney.engine.mailbox import Mailbox
from jitney.errors import BackendFailed, DeadlineExceeded, InvalidRequest, QueueFull
from jitney.tokenizers.byte_tokenizer import byte_vocabulary, encode
from tests.unit.engine.worlds import make_request


class Story:
    """A collector, the mailbox behind it, and a short way to tell it events."""

    def __init__(self, request: Request, *, is_bounded: bool = False) -> None:
        self.mailbox = Mailbox(is_bounded=is_bounded)
        self.collector = Collector(request, byte_vocabulary(), self.mailbox, 10.0)

    def token(self, token: int, *, index: int = 0, at: float = 12.0) -> FinishReason | None:
        asked = self.collector.request.params.logprobs is not None
        logprob = TokenLogprob(token, -0.5) if asked else None
        return self.collector.push_token(index, token, at, logprob)

    def text(self, text: str) -> list[FinishReason]:
        verdicts = [self.token(token) for token in encode(text, special=False)]
        return [verdict for verdict in verdicts if verdict is not None]

    def finish(
        self,
        reason: FinishReason = FinishReason.LENGTH,
        *,
        index: int = 0,
        stop_reason: int | None = None,
        message: str | None = None,
        fault_kind: FaultKind = FaultKind.BACKEND,
    ) -> None:
        counts = (9, 2, 1)
        self.collector.push(
            FinishEvent(
                RequestId("0"), index, 15.0, reason, *counts, stop_reason, message, fault_kind
            )
        )

    def answer(self, at: float = 15.0) -> Answer:
        answer = self.collector.ending(at).answer
        assert answer is not None
        return answer

    def deltas(self) -> list[Delta]:
        found = []
        while isinstance(item := self.mailbox.fetch(), Delta):
            found.append(item)
        return found


def test_deltas_joined_are_the_text_of_the_answer() -> None:
    """Guards invariant 5, read after every token and only once."""
    text = "héllo the bus 🚌 日本"
    story = Story(make_request())
    seen = []
    for token in encode(text, special=False):
        story.token(token)
        seen.extend(story.deltas())
    story.finish()
    seen.extend(story.deltas())
    answer = story.answer()
    assert "".join(delta.text for delta in seen) == answer.completions[0].text == text
    tokens = [token for delta in seen for token in delta.tokens]
    assert tuple(tokens) == answer.completions[0].tokens
    assert [delta.finish_reason for delta in seen][-1] is FinishReason.LENGTH


def test_half_a_character_waits_for_its_other_half() -> None:
    """Guards against broken characters in a stream; the token comes with its text."""
    story = Story(make_request())
    first, second = "é".encode()
    story.token(first)
    assert story.deltas() == []
    story.token(second)
    (delta,) = story.deltas()
    assert (delta.text, delta.tokens) == ("é", (first, second))


def test_a_stop_string_across_tokens_is_a_verdict_and_never_seen() -> None:
    """Guards against a leaked stop string, and against text after it."""
    story = Story(make_request(stop=["END"]))
    verdicts = story.text("ab EN")
    assert verdicts == []
    assert [delta.text for delta in story.deltas()] == ["ab "]
    assert story.text("Dxyz") == [FinishReason.STOP]
    story.finish(FinishReason.STOP)
    (last,) = story.deltas()
    assert (last.text, last.finish_reason, last.stop_reason) == ("", FinishReason.STOP, "END")
    completion = story.answer().completions[0]
    assert (completion.text, completion.stop_reason) == ("ab ", "END")
    assert completion.tokens == tuple(encode("ab END", special=False))


def test_a_stop_string_in_the_last_token_beats_the_length_limit() -> None:
    """Guards against `length` where the stop string was there in time."""
    story = Story(make_request(stop=["."]))
    story.text("a.")
    story.finish(FinishReason.LENGTH)
    completion = story.answer().completions[0]
    assert (completion.finish_reason, completion.text) == (FinishReason.STOP, "a")


def test_text_held_back_for_a_stop_string_comes_out_at_the_end() -> None:
    """Guards against losing the beginning of a stop string that never came."""
    story = Story(make_request(stop=["END"]))
    story.text("so EN")
    story.finish(FinishReason.STOP, stop_reason=None)
    assert story.answer().completions[0].text == "so EN"
    assert "".join(delta.text for delta in story.deltas()) == "so EN"


def test_the_answer_carries_logprobs_their_sum_usage_and_times() -> None:
    """Guards the numbers that callers are billed and judged by."""
    story = Story(make_request(logprobs=0, prompt_logprobs=0))
    story.collector.push(StartEvent(RequestId("0"), 0, 11.0, 2))
    # Recomputed after a preemption, positions may come twice.
    for start in (1, 1):
        story.collector.push(
            PromptEvent(RequestId("0"), 0, start, (TokenLogprob(98, -1.0), TokenLogprob(99, -2.0)))
        )
    story.token(65)
    story.token(66, at=13.0)
    story.finish(stop_reason=None)
    answer = story.answer(16.0)
    completion = answer.completions[0]
    assert completion.cumulative_logprob == -1.0
    assert completion.logprobs == (TokenLogprob(65, -0.5), TokenLogprob(66, -0.5))
    assert answer.prompt_logprobs == (TokenLogprob(98, -1.0), TokenLogprob(99, -2.0))
    assert answer.usage == Usage(prompt_count=3, completion_count=9, cached_count=2)
    timing = answer.timing
    assert (timing.queue_s, timing.first_token_s, timing.total_s) == (1.0, 2.0, 6.0)
    assert completion.timing.total_s == 5.0
    assert answer.preempted_count == 1


def test_logprobs_are_absent_unless_asked_for() -> None:
    """Guards against an empty list where callers look for None."""
    story = Story(make_request())
    story.finish()
    answer = story.answer()
    assert answer.completions[0].logprobs is None
    assert answer.completions[0].cumulative_logprob is None
    assert answer.prompt_logprobs is None


def test_a_request_is_done_when_its_last_completion_is() -> None:
    """Guards against an ending that comes before every completion has one."""
    story = Story(make_request(n=2))
    story.token(65, index=1)
    story.finish(index=1)
    assert story.collector.is_finished(1)
    assert not story.collector.is_done
    story.token(66, index=0)
    story.finish(index=0)
    assert story.collector.is_done
    assert [each.text for each in story.answer().completions] == ["B", "A"]


def test_an_event_after_the_end_is_our_mistake() -> None:
    """Guards invariant 1 against a scheduler that finishes a sequence twice."""
    story = Story(make_request())
    story.finish()
    with pytest.raises(AssertionError):
        story.token(65)


def test_a_failure_weighs_more_than_a_deadline_and_keeps_its_sentence() -> None:
    """Guards against callers who are told the wrong reason."""
    story = Story(make_request(n=2))
    story.finish(FinishReason.DEADLINE, index=0, message="too late.")
    story.finish(FinishReason.FAILED, index=1, message="it broke.")
    ending = story.collector.ending(15.0)
    assert isinstance(ending.error, BackendFailed)
    assert str(ending.error) == "it broke."


def test_a_constraint_that_was_given_up_is_to_be_tried_again() -> None:
    """Guards retries: neither the caller nor the model did anything wrong."""
    story = Story(make_request())
    story.finish(FinishReason.FAILED, message="given up.", fault_kind=FaultKind.CAPACITY)
    ending = story.collector.ending(15.0)
    assert isinstance(ending.error, QueueFull)
    assert ending.error.retry_after_s > 0


def test_a_constraint_that_cannot_be_followed_is_the_callers_mistake() -> None:
    """Guards callers who would try again in vain: some constraints are found out on the way."""
    story = Story(make_request())
    story.finish(FinishReason.FAILED, message="it is refused.", fault_kind=FaultKind.REQUEST)
    ending = story.collector.ending(15.0)
    assert isinstance(ending.error, InvalidRequest)
    assert ending.error.parameter == "structured_outputs"


def test_a_deadline_is_an_error_that_keeps_what_was_made() -> None:
    """Guards against a timeout that looks like an answer."""
    story = Story(make_request())
    story.text("abc")
    story.finish(FinishReason.DEADLINE)
    assert isinstance(story.collector.ending(15.0).error, DeadlineExceeded)
    assert story.answer().completions[0].text == "abc"


def test_a_cancelled_request_is_an_answer_and_no_error() -> None:
    """Guards against exceptions for callers who only said stop."""
    story = Story(make_request())
    story.text("abc")
    story.finish(FinishReason.CANCELLED)
    assert story.collector.ending(15.0).error is None
    assert story.answer().was_cancelled


def test_what_takes_time_is_made_once_for_all_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards every stream against 60 prompts of 16 completions with long stop strings."""
    made: list[object] = []
    build = StopTable._build

    def counted(table: StopTable) -> None:
        made.append(table)
        build(table)

    monkeypatch.setattr(StopTable, "_build", counted)
    params = SamplingParams(
        n=16,
        stop=["a" * 255 + end for end in "bcdefghijklmnopq"],
        structured_outputs=StructuredOutputsParams(json={"type": "object"}),
        logit_bias={1: 1.0},
    )
    sequences = []
    for number in range(60):
        request = Request(id=RequestId(str(number)), prompt=(1,), params=params, seed=0)
        Collector(request, byte_vocabulary(), Mailbox(), 0.0)
        sequences += make_sequences(request, frozenset(), 64, 0.0)
    assert len(made) == 1
    assert {id(each.sampling.constraint) for each in sequences} == {id(params.constraint)}
    assert len({id(each.sampling.logit_bias) for each in sequences}) == 60
    assert len({each.sampling.seed for each in sequences}) == 16


def test_logprobs_of_a_bounded_stream_are_not_kept_when_they_were_sent() -> None:
    """Guards memory: they were all there until the end, read or not."""
    story = Story(make_request(logprobs=0, stop=["never"]), is_bounded=True)
    story.text("one ne")
    assert [each.token for each in story.collector._watched[0].logprobs] == [ord("n"), ord("e")]
    story.text("ar")
    assert story.collector._watched[0].logprobs == []
    story.finish()
    (delta,) = story.deltas()
    assert [each.token for each in delta.logprobs] == [ord(each) for each in "one near"]
    completion = story.answer().completions[0]
    assert (completion.logprobs, completion.text) == (None, "one near")


def test_what_nobody_reads_is_a_verdict_and_a_sentence() -> None:
    """Guards memory against a reader who stalls, and tells him why when he is back."""
    story = Story(make_request(), is_bounded=True)
    verdicts = [story.token(97, at=12.0 + number) for number in range(3000)]
    first = verdicts.index(FinishReason.CANCELLED)
    assert 400 < first < 2900
    assert set(verdicts[:first]) == {None}
    story.finish(FinishReason.CANCELLED)
    assert story.answer().was_cancelled
    assert story.answer().completions[0].message == READ_TOO_SLOWLY


def test_a_failure_keeps_its_sentence_though_nobody_reads() -> None:
    """Guards the log and the caller: what failed is said, not that somebody read slowly."""
    story = Story(make_request(n=2), is_bounded=True)
    assert FinishReason.CANCELLED in [story.token(97, at=12.0 + each) for each in range(3000)]
    story.finish(FinishReason.FAILED, index=1, message="the model is ill.")
    story.finish(FinishReason.CANCELLED)
    messages = [each.message for each in story.answer().completions]
    assert messages == [READ_TOO_SLOWLY, "the model is ill."]
