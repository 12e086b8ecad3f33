"""A request over several engines: what each gets, where it goes on, and when it may not."""

import math
from dataclasses import replace
from typing import Any

import pytest

from jitney.core.batch import TokenLogprob
from jitney.core.events import FinishReason
from jitney.core.request import Request
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.answer import Delta, Timing, Usage
from jitney.engine.mailbox import Mailbox
from jitney.errors import DeadlineExceeded
from jitney_cluster.cluster_request import (
    LOSSES_MAX,
    MOVES_MAX,
    SUSPECT_LOSSES,
    ClusterRequest,
    Verdict,
)
from jitney_cluster.replica_messages import OrderEnded
from jitney_cluster.routing import head_of
from tests.completions_for_tests import COMPLETION
from tests.unit.cluster.conftest import make_request

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


def live_of(request: Request, sent_at: float = 0.0, **values: Any) -> ClusterRequest:
    """A request that arrived at 0."""
    limits = {name: values.pop(name) for name in list(values) if name.endswith("timeout_s")}
    settings = SchedulerSettings(model_len_max=512, **limits)
    return ClusterRequest(request, Mailbox(), settings, 0.0, sent_at, **values)


def ended(index: int, finish: FinishReason, count: int) -> OrderEnded:
    """The last message of an engine, about a completion that ended there."""
    usage = replace(COMPLETION.usage, completion_count=count)
    completion = replace(COMPLETION, index=index, finish_reason=finish, usage=usage)
    return OrderEnded("q", 1, (replace(completion, preempted_count=2, message="said so"),))


def resumed(live: ClusterRequest, now: float = 2.0) -> Request:
    """What its next engine gets."""
    return live.next_request(1, 1, now)


def ran(live: ClusterRequest) -> Verdict:
    """The verdict after a loss while it ran."""
    live.start(1.0)
    return live.lose(1.0)


def test_a_request_that_made_nothing_is_sent_as_it_was() -> None:
    request = replace(make_request(n=2), request_timeout_s=9.0)
    live = live_of(request)
    assert resumed(live, 5.5) == replace(request, request_timeout_s=3.5)
    assert not live.has_begun
    assert resumed(live_of(make_request()), 1000.0).request_timeout_s is None


def test_it_goes_on_from_what_its_caller_has() -> None:
    """Guards invariant 5: nothing twice, and nothing left out."""
    request = replace(make_request(), queue_timeout_s=1.0, request_timeout_s=5.5)
    live = live_of(request)
    live.start(0.5)
    for tokens in ((1, 2), (), (3,)):
        live.take(delta(0, *tokens), 1.0)
    live.lose(1.0)
    again = replace(request, queue_timeout_s=None, request_timeout_s=3.5, resumed=((1, 2, 3),))
    assert resumed(live) == again, "it has waited for its first slot already"
    assert live.head == head_of((*request.prompt, 1, 2, 3), request.scope)
    live.take(delta(0, 4, finish=LENGTH), 2.0)
    assert live.token_count == 4
    (completion,) = live.answer(2.0).completions
    assert (completion.tokens, completion.text) == ((1, 2, 3, 4), "bcde")


@pytest.mark.parametrize("is_accepted", [False, True])
@pytest.mark.parametrize("is_own", [False, True])
def test_the_limit_for_waiting_does_not_begin_anew_at_a_replica(
    is_own: bool, is_accepted: bool
) -> None:
    """Guards `queue_timeout_s`: a request that waited at its ingress, or on a replica that was
    lost, had the whole limit again."""
    request = replace(make_request(), queue_timeout_s=5.0) if is_own else make_request()
    live = live_of(request, 1.0, queue_timeout_s=60.0 if is_own else 5.0)
    live.is_accepted = is_accepted
    for now in (1.0, 3.0, 5.5):
        sent = resumed(live, now)
        assert sent.queue_timeout_s is not None
        # As the scheduler of a replica counts.
        assert now - (sent.waited_s or 0.0) + sent.queue_timeout_s == pytest.approx(6.0)
    with pytest.raises(DeadlineExceeded, match="did not run within 5 s"):
        resumed(live, 6.0)


def test_one_that_had_a_slot_does_not_wait_for_its_first() -> None:
    """Guards those that lost their replica before their first token: their wait was over."""
    live = live_of(make_request(), queue_timeout_s=5.0)
    live.is_accepted = True
    live.start(1.0)
    assert resumed(live, 100.0).queue_timeout_s == math.inf
    live.take(delta(0, 5), 1.0)
    assert resumed(live, 101.0).queue_timeout_s is None


def test_a_deadline_that_has_passed_ends_it() -> None:
    for live in (
        live_of(replace(make_request(), request_timeout_s=2.0)),
        live_of(make_request(), request_timeout_s=2.0),
    ):
        assert resumed(live, 1.5).request_timeout_s == pytest.approx(0.5)
        with pytest.raises(DeadlineExceeded):
            resumed(live, 2.0)


def test_completions_that_ended_are_not_made_again() -> None:
    live = live_of(make_request(n=3))
    live.take(delta(1, 1, finish=LENGTH), 1.0)
    live.take(delta(2, 2, 3), 1.0)
    live.lose(1.0)
    assert resumed(live).resumed == ((), None, (2, 3))
    assert resumed(live).resumed_tokens == {0: (), 2: (2, 3)}


def test_an_end_without_a_token_is_a_beginning() -> None:
    """Guards completions that stop at once: the next engine does not make them again."""
    live = live_of(make_request(n=2))
    live.take(delta(0, finish=STOP), 1.0)
    live.lose(1.0)
    assert live.has_begun
    assert resumed(live).resumed == (None, ())


def test_nothing_comes_after_the_end_of_a_completion() -> None:
    live = live_of(make_request())
    live.take(delta(0, 1, finish=LENGTH), 1.0)
    with pytest.raises(AssertionError, match="after the end"):
        live.take(delta(0, 2), 1.0)


def test_losses_while_it_waits_do_not_count() -> None:
    """Guards the innocent: a request in a queue did not end that engine."""
    live = live_of(make_request())
    verdicts = {live.lose(1.0) for _ in range(3 * LOSSES_MAX)}
    assert verdicts == {Verdict.GO_ON}
    assert ran(live) is Verdict.GO_ON
    assert live.lose(1.0) is Verdict.GO_ON, "it did not run there"


def test_losses_while_it_runs_make_it_a_suspect_and_end_it() -> None:
    """Guards everyone else: what kills each of its engines is not given another one."""
    live = live_of(make_request())
    verdicts = [ran(live) for _ in range(LOSSES_MAX)]
    innocent = [Verdict.GO_ON] * (SUSPECT_LOSSES - 1)
    suspect = [Verdict.ALONE] * (LOSSES_MAX - SUSPECT_LOSSES)
    assert verdicts == [*innocent, *suspect, Verdict.FAIL]


def test_a_suspect_stays_one_while_it_waits() -> None:
    live = live_of(make_request())
    for _ in range(SUSPECT_LOSSES):
        ran(live)
    assert live.lose(1.0) is Verdict.ALONE


def test_a_token_shows_that_it_is_harmless() -> None:
    """Guards long requests: they outlive many engines, if each makes something of them."""
    live = live_of(make_request())
    for token in range(LOSSES_MAX * 2):
        assert ran(live) is Verdict.GO_ON
        live.start(1.0)
        live.take(delta(0, token), 1.0)
        assert live.lose(1.0) is Verdict.GO_ON
        live.take(delta(0, token), 1.0)


def test_a_delta_without_tokens_shows_nothing() -> None:
    live = live_of(make_request())
    for _ in range(LOSSES_MAX):
        live.take(delta(0), 1.0)
        verdict = live.lose(1.0)
    assert verdict is Verdict.FAIL


def test_no_request_is_moved_without_end() -> None:
    """Guards invariant 8: a fleet whose engines all die ends its requests."""
    live = live_of(make_request())
    assert {live.lose(1.0) for _ in range(MOVES_MAX)} == {Verdict.GO_ON}
    assert live.lose(1.0) is Verdict.FAIL


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
    finish: FinishReason, stop_reason: str | int | None, count: int
) -> None:
    """Guards bills: the end token was computed, though it is not among the tokens."""
    live = live_of(make_request("12345678", n=2))
    live.take(delta(0, 1, 2, finish=finish, stop_reason=stop_reason), 1.0)
    live.lose(1.0)
    live.take(delta(1, 1, finish=LENGTH), 2.0)
    live.take_results(ended(1, LENGTH, 1))
    first, second = live.answer(2.0).completions
    assert first.usage == Usage(prompt_count=8, completion_count=count, cached_count=0)
    assert (first.finish_reason, first.stop_reason) == (finish, stop_reason)
    assert second.usage.completion_count == 1


def test_what_an_engine_tells_of_an_end_is_kept() -> None:
    live = live_of(make_request(n=2))
    live.take(delta(0, 1, finish=LENGTH), 1.0)
    live.take_results(ended(0, LENGTH, 9))
    first, second = live.answer(2.0).completions
    assert (first.usage.completion_count, first.usage.cached_count) == (9, 5)
    assert (first.preempted_count, first.message) == (2, "said so")
    assert (second.preempted_count, second.message) == (0, None)


def test_a_completion_that_did_not_end_was_cancelled() -> None:
    live = live_of(make_request("12345678"))
    live.take(delta(0, 1, 2), 1.0)
    (completion,) = live.answer(2.0).completions
    assert completion.finish_reason is FinishReason.CANCELLED
    assert completion.usage == Usage(prompt_count=8, completion_count=2, cached_count=0)


def test_logprobs_are_kept_for_a_whole_answer_only() -> None:
    """Guards memory: those of a stream have gone out already."""
    for stores, count in ((True, 1), (True, None), (False, 1)):
        live = live_of(make_request(logprobs=count), stores_logprobs=stores)
        live.take(delta(0, 1), 1.0)
        live.lose(1.0)
        live.take(delta(0, 2, finish=LENGTH), 2.0)
        (completion,) = live.answer(2.0).completions
        if stores and count is not None:
            assert completion.logprobs == (TokenLogprob(1, -1.0), TokenLogprob(2, -1.0))
            assert completion.cumulative_logprob == -2.0
        else:
            assert (completion.logprobs, completion.cumulative_logprob) == (None, None)


def test_times_are_those_of_the_caller() -> None:
    """Guards figures over a loss: the first slot and the first token count, not the last ones."""
    live = live_of(make_request(n=2), 0.5)
    live.start(2.0)
    live.take(delta(0), 2.5)
    live.take(delta(0, 1), 3.0)
    live.lose(1.0)
    live.start(10.0)
    live.take(delta(0, 2), 11.0)
    live.take(delta(0, 3, finish=LENGTH), 12.0)
    first, second = live.answer(20.0).completions
    assert first.timing == Timing(queue_s=1.5, first_token_s=3.0, total_s=12.0, sent_s=0.5)
    assert second.timing == Timing(queue_s=1.5, first_token_s=None, total_s=20.0, sent_s=0.5)
    assert live.answer(20.0).total_s == 20.0


def test_a_request_that_never_ran_has_no_time_in_the_queue() -> None:
    timing = live_of(make_request(), 0.5).answer(4.0).timing
    assert timing == Timing(queue_s=None, first_token_s=None, total_s=4.0, sent_s=0.5)


def test_a_loss_while_it_catches_up_is_not_its_fault() -> None:
    """Guards long answers: where each token is computed again, replicas may be lost meanwhile."""
    live = live_of(make_request())
    live.take(delta(0, 1, 2), 1.0)
    for _ in range(3 * LOSSES_MAX):
        live.start(2.0)
        live.is_catching_up = True
        assert live.lose(1.0) is Verdict.GO_ON
    live.start(3.0)
    live.is_catching_up = True
    live.is_catching_up = False  # the next pass makes a token, or ends the engine
    verdicts = [live.lose(1.0)]
    verdicts += [ran(live) for _ in range(LOSSES_MAX - 1)]
    assert verdicts == [Verdict.GO_ON, Verdict.ALONE, Verdict.FAIL]


def test_times_between_tokens_go_on_over_a_move() -> None:
    """Guards the latencies of a cluster: each token but the first has its time, once, the end token
    too, and the wait for another engine is one of them."""
    live = live_of(make_request(n=2))
    live.take(delta(0, 1), 1.0)
    live.take(delta(1, 1), 1.5)
    assert live.gaps_s == []
    live.take(delta(0, 2), 1.25)
    live.take(delta(0), 1.75)
    live.take(delta(1, 2, 3), 2.5)
    assert live.gaps_s == [0.25, 0.5, 0.5], "of two that came together, half for each"
    live.gaps_s.clear()
    live.lose(1.0)
    live.take(delta(0, 3), 5.25)
    live.take(delta(0, finish=STOP), 5.5)
    live.take(delta(1, finish=STOP, stop_reason="c"), 6.0)
    assert live.gaps_s == [4.0, 0.25], "a stop string is no token"
