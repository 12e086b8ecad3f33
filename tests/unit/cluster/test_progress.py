"""What a request has made over several engines: where it goes on, and when it may not."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from jitney.core.batch import TokenLogprob
from jitney.core.events import FinishReason
from jitney.core.request import Request
from jitney.engine.answer import Answer, Completion, Delta, Timing, Usage
from jitney_cluster.progress import LOSSES_MAX, MOVES_MAX, SUSPECT_LOSSES, Progress, Verdict

MakeRequest = Callable[..., Request]
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def delta(
    index: int,
    *tokens: int,
    finish: FinishReason | None = None,
    stop_reason: str | int | None = None,
) -> Delta:
    """A delta with a letter for each token."""
    return Delta(
        index=index,
        text="".join(chr(ord("a") + token) for token in tokens),
        tokens=tokens,
        logprobs=tuple(TokenLogprob(token, -1.0) for token in tokens),
        finish_reason=finish,
        stop_reason=stop_reason,
    )


def told(request: Request, index: int, finish: FinishReason, count: int) -> Answer:
    """What an engine tells of a completion that ended there."""
    completion = Completion(
        index=index,
        text="",
        tokens=(),
        logprobs=None,
        cumulative_logprob=None,
        finish_reason=finish,
        stop_reason=None,
        usage=Usage(prompt_count=8, completion_count=count, cached_count=5),
        timing=Timing(queue_s=None, first_token_s=None, total_s=0.0),
        preempted_count=2,
        message="said so",
    )
    return Answer(request=request, completions=(completion,), total_s=0.0)


def ran(progress: Progress) -> Verdict:
    """The verdict after a loss while it ran."""
    progress.start(1.0)
    return progress.lose()


def test_a_request_that_made_nothing_is_sent_as_it_was(make_request: MakeRequest) -> None:
    """Guards the first wait: its time in a queue is still bounded."""
    request = replace(make_request(n=2), queue_timeout_s=1.0, request_timeout_s=9.0)
    progress = Progress(request, 0.0, keeps_logprobs=False)
    ran(progress)
    assert progress.resumed(3.5) == replace(request, request_timeout_s=3.5)
    assert not progress.has_begun


def test_it_goes_on_from_what_its_caller_has(make_request: MakeRequest) -> None:
    """Guards invariant 5: nothing twice, and nothing left out."""
    request = replace(make_request(), queue_timeout_s=1.0)
    progress = Progress(request, 0.0, keeps_logprobs=False)
    for tokens in ((1, 2), (), (3,)):
        progress.take(delta(0, *tokens), 1.0)
    progress.lose()
    again = replace(request, queue_timeout_s=None, request_timeout_s=3.5, resumed=((1, 2, 3),))
    assert progress.resumed(3.5) == again, "it has waited for its first slot already"
    progress.take(delta(0, 4, finish=LENGTH), 2.0)
    assert progress.token_count == 4
    (completion,) = progress.answer(2.0).completions
    assert (completion.tokens, completion.text) == ((1, 2, 3, 4), "bcde")


def test_completions_that_ended_are_not_made_again(make_request: MakeRequest) -> None:
    progress = Progress(make_request(n=3), 0.0, keeps_logprobs=False)
    progress.take(delta(1, 1, finish=LENGTH), 1.0)
    progress.take(delta(2, 2, 3), 1.0)
    progress.lose()
    assert progress.resumed(None).resumed == ((), None, (2, 3))
    assert progress.resumed(None).resumed_tokens == {0: (), 2: (2, 3)}


def test_an_end_without_a_token_is_a_beginning(make_request: MakeRequest) -> None:
    """Guards completions that stop at once: the next engine does not make them again."""
    progress = Progress(make_request(n=2), 0.0, keeps_logprobs=False)
    progress.take(delta(0, finish=STOP), 1.0)
    progress.lose()
    assert progress.has_begun
    assert progress.resumed(None).resumed == (None, ())


def test_nothing_comes_after_the_end_of_a_completion(make_request: MakeRequest) -> None:
    progress = Progress(make_request(), 0.0, keeps_logprobs=False)
    progress.take(delta(0, 1, finish=LENGTH), 1.0)
    with pytest.raises(AssertionError, match="after the end"):
        progress.take(delta(0, 2), 1.0)


def test_losses_while_it_waits_do_not_count(make_request: MakeRequest) -> None:
    """Guards the innocent: a request in a queue did not end that engine."""
    progress = Progress(make_request(), 0.0, keeps_logprobs=False)
    verdicts = {progress.lose() for _ in range(3 * LOSSES_MAX)}
    assert verdicts == {Verdict.GO_ON}
    assert ran(progress) is Verdict.GO_ON
    assert progress.lose() is Verdict.GO_ON, "it did not run there"


def test_losses_while_it_runs_make_it_a_suspect_and_end_it(make_request: MakeRequest) -> None:
    """Guards everyone else: what kills each of its engines is not given another one."""
    progress = Progress(make_request(), 0.0, keeps_logprobs=False)
    verdicts = [ran(progress) for _ in range(LOSSES_MAX)]
    innocent = [Verdict.GO_ON] * (SUSPECT_LOSSES - 1)
    suspect = [Verdict.ALONE] * (LOSSES_MAX - SUSPECT_LOSSES)
    assert verdicts == [*innocent, *suspect, Verdict.FAIL]


def test_a_suspect_stays_one_while_it_waits(make_request: MakeRequest) -> None:
    progress = Progress(make_request(), 0.0, keeps_logprobs=False)
    for _ in range(SUSPECT_LOSSES):
        ran(progress)
    assert progress.lose() is Verdict.ALONE


def test_a_token_shows_that_it_is_harmless(make_request: MakeRequest) -> None:
    """Guards long requests: they outlive many engines, if each makes something of them."""
    progress = Progress(make_request(), 0.0, keeps_logprobs=False)
    for token in range(LOSSES_MAX * 2):
        assert ran(progress) is Verdict.GO_ON
        progress.start(1.0)
        progress.take(delta(0, token), 1.0)
        assert progress.lose() is Verdict.GO_ON
        progress.take(delta(0, token), 1.0)


def test_a_delta_without_tokens_shows_nothing(make_request: MakeRequest) -> None:
    progress = Progress(make_request(), 0.0, keeps_logprobs=False)
    for _ in range(LOSSES_MAX):
        progress.take(delta(0), 1.0)
        verdict = progress.lose()
    assert verdict is Verdict.FAIL


def test_no_request_is_moved_without_end(make_request: MakeRequest) -> None:
    """Guards invariant 8: a fleet whose engines all die ends its requests."""
    progress = Progress(make_request(), 0.0, keeps_logprobs=False)
    assert {progress.lose() for _ in range(MOVES_MAX)} == {Verdict.GO_ON}
    assert progress.lose() is Verdict.FAIL


@pytest.mark.parametrize(
    ("finish", "stop_reason", "count"),
    [
        pytest.param(STOP, None, 3, id="the end token of the model"),
        pytest.param(STOP, 7, 3, id="a stop token"),
        pytest.param(STOP, "ab", 2, id="a stop string"),
        pytest.param(LENGTH, None, 2, id="the length"),
    ],
)
def test_usage_is_right_where_nobody_told_it(
    make_request: MakeRequest, finish: FinishReason, stop_reason: str | int | None, count: int
) -> None:
    """Guards bills: the end token was computed, though it is not among the tokens."""
    progress = Progress(make_request("12345678", n=2), 0.0, keeps_logprobs=False)
    progress.take(delta(0, 1, 2, finish=finish, stop_reason=stop_reason), 1.0)
    progress.lose()
    progress.take(delta(1, 1, finish=LENGTH), 2.0)
    progress.end(told(progress.request, 1, LENGTH, 1))
    first, second = progress.answer(2.0).completions
    assert first.usage == Usage(prompt_count=8, completion_count=count, cached_count=0)
    assert (first.finish_reason, first.stop_reason) == (finish, stop_reason)
    assert second.usage.completion_count == 1


def test_what_an_engine_tells_of_an_end_is_kept(make_request: MakeRequest) -> None:
    progress = Progress(make_request(n=2), 0.0, keeps_logprobs=False)
    progress.take(delta(0, 1, finish=LENGTH), 1.0)
    progress.end(told(progress.request, 0, LENGTH, 9))
    first, second = progress.answer(2.0).completions
    assert (first.usage.completion_count, first.usage.cached_count) == (9, 5)
    assert (first.preempted_count, first.message) == (2, "said so")
    assert (second.preempted_count, second.message) == (0, None)


def test_a_completion_that_did_not_end_was_cancelled(make_request: MakeRequest) -> None:
    progress = Progress(make_request("12345678"), 0.0, keeps_logprobs=False)
    progress.take(delta(0, 1, 2), 1.0)
    (completion,) = progress.answer(2.0).completions
    assert completion.finish_reason is FinishReason.CANCELLED
    assert completion.usage == Usage(prompt_count=8, completion_count=2, cached_count=0)


def test_logprobs_are_kept_for_a_whole_answer_only(make_request: MakeRequest) -> None:
    """Guards memory: those of a stream have gone out already."""
    for keeps, wanted in ((True, 1), (True, None), (False, 1)):
        progress = Progress(make_request(logprobs=wanted), 0.0, keeps_logprobs=keeps)
        progress.take(delta(0, 1), 1.0)
        progress.lose()
        progress.take(delta(0, 2, finish=LENGTH), 2.0)
        (completion,) = progress.answer(2.0).completions
        if keeps and wanted is not None:
            assert completion.logprobs == (TokenLogprob(1, -1.0), TokenLogprob(2, -1.0))
            assert completion.cumulative_logprob == -2.0
        else:
            assert (completion.logprobs, completion.cumulative_logprob) == (None, None)


def test_times_are_those_of_the_caller(make_request: MakeRequest) -> None:
    """Guards figures over a loss: the first slot and the first token count, not the last ones."""
    progress = Progress(make_request(n=2), 0.5, keeps_logprobs=False)
    progress.start(2.0)
    progress.take(delta(0), 2.5)
    progress.take(delta(0, 1), 3.0)
    progress.lose()
    progress.start(10.0)
    progress.take(delta(0, 2), 11.0)
    progress.take(delta(0, 3, finish=LENGTH), 12.0)
    first, second = progress.answer(20.0).completions
    assert first.timing == Timing(queue_s=1.5, first_token_s=3.0, total_s=12.0, sent_s=0.5)
    assert second.timing == Timing(queue_s=1.5, first_token_s=None, total_s=20.0, sent_s=0.5)
    assert progress.answer(20.0).total_s == 20.0


def test_a_request_that_never_ran_has_no_time_in_the_queue(make_request: MakeRequest) -> None:
    timing = Progress(make_request(), 0.5, keeps_logprobs=False).answer(4.0).timing
    assert timing == Timing(queue_s=None, first_token_s=None, total_s=4.0, sent_s=0.5)


def test_a_loss_while_it_catches_up_is_not_its_fault(make_request: MakeRequest) -> None:
    """Guards long answers: where each token is computed again, replicas may be lost meanwhile."""
    progress = Progress(make_request(), 0.0, keeps_logprobs=False)
    progress.take(delta(0, 1, 2), 1.0)
    for _ in range(3 * LOSSES_MAX):
        progress.start(2.0)
        progress.is_catching_up = True
        assert progress.lose() is Verdict.GO_ON
    progress.start(3.0)
    progress.is_catching_up = True
    progress.is_catching_up = False  # the next pass makes a token, or ends the engine
    verdicts = [progress.lose()]
    verdicts += [ran(progress) for _ in range(LOSSES_MAX - 1)]
    assert verdicts == [Verdict.GO_ON, Verdict.ALONE, Verdict.FAIL]


def test_times_between_tokens_go_on_over_a_move(make_request: MakeRequest) -> None:
    """Guards the latencies of a cluster: each token but the first has its time, once, the end token
    too, and the wait for another engine is one of them."""
    progress = Progress(make_request(n=2), 0.0, keeps_logprobs=False)
    progress.take(delta(0, 1), 1.0)
    progress.take(delta(1, 1), 1.5)
    assert not progress.has_gaps
    progress.take(delta(0, 2), 1.25)
    progress.take(delta(0), 1.75)
    progress.take(delta(1, 2, 3), 2.5)
    assert progress.has_gaps
    assert progress.take_gaps() == (0.25, 0.5, 0.5), "of two that came together, half for each"
    assert (progress.has_gaps, progress.take_gaps()) == (False, ())
    progress.lose()
    progress.take(delta(0, 3), 5.25)
    progress.take(delta(0, finish=STOP), 5.5)
    progress.take(delta(1, finish=STOP, stop_reason="c"), 6.0)
    assert progress.take_gaps() == (4.0, 0.25), "a stop string is no token"
