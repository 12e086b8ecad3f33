"""Who is to blame for a backend that fails: suspects, by hand (invariant 10)."""

from jitney.core.batch import Open
from jitney.core.events import FinishEvent, FinishReason
from jitney.core.limits import FAILURES_MAX
from jitney.core.request import RequestId
from tests.unit.core.schedulers import applied, live, planned, scheduler, submit


def test_an_innocent_suspect_is_not_blamed_for_its_neighbour() -> None:
    """Guards invariant 10: whoever brings the backend down ends alone.

    The first poisoned request makes a suspect of the innocent one, the second stands beside it.
    """
    one = scheduler()
    submit(one, live("innocent", (7,), max_tokens=8), live("first", (66, 6), max_tokens=8))
    reasons: dict[str, FinishReason] = {}
    for turn in range(60):
        if turn == 2:
            one.submit(live("second", (66, 6, 6), max_tokens=8), 0.0)
        batch = one.plan(float(turn))
        if batch is None:
            break
        if any(66 in entry.tokens for entry in batch.batch.entries):
            events = one.fail("the backend died.", float(turn), batch.sequences)
        else:
            events = applied(one, batch, float(turn))
        one.check()
        ends = [event for event in events if isinstance(event, FinishEvent)]
        reasons.update({event.request_id: event.reason for event in ends})
    assert reasons == {
        "innocent": FinishReason.LENGTH,
        "first": FinishReason.FAILED,
        "second": FinishReason.FAILED,
    }
    assert one.counters["struck_out"] == 2
    assert one.counters["backend_failures"] <= 2 * FAILURES_MAX


def test_who_brings_the_backend_down_when_it_is_opened_is_to_blame() -> None:
    """Guards invariant 10: a batch has everybody's operations, and a suspect was blamed for those
    of one that had no entry in it."""
    one = scheduler()
    submit(one, live("innocent", 8, max_tokens=90))
    for _ in range(2):
        one.fail("it died.", 0.0, planned(one).sequences)
    reasons: dict[str, FinishReason] = {}
    for at in range(200):
        if at % 8 == 1:
            one.submit(live(f"{at}", 2, max_tokens=3), 0.0)
        if at == 2:
            one.submit(live("bad", 7), 0.0)
        if (batch := one.plan(0.0)) is None:
            break
        opened = [each for each in batch.batch.operations if isinstance(each, Open)]
        if any(each.sampling.prompt_count == 7 for each in opened):
            events = one.fail("it died.", 0.0, batch.implicated)
        else:
            events = applied(one, batch)
        ends = [event for event in events if isinstance(event, FinishEvent)]
        reasons.update({event.request_id: event.reason for event in ends})
    assert reasons.pop(RequestId("bad")) is FinishReason.FAILED
    assert set(reasons.values()) == {FinishReason.LENGTH}
    assert one.counters["backend_failures"] == 2 + FAILURES_MAX


def test_the_batch_of_a_suspect_opens_nobody_else() -> None:
    """Guards the innocent: the guilt of a suspect is certain only if nothing else is done."""
    one = scheduler()
    submit(one, live("suspect"), live("other"))
    one.fail("it died.", 0.0, planned(one).implicated)
    one.cancel(RequestId("other"), 0.0)
    one.fail("it died.", 0.0, planned(one).implicated)
    for number in range(6):
        submit(one, live(f"late {number}"))
        batch = planned(one)
        applied(one, batch)
        owners = [str(each.request.id) for each in batch.implicated]
        assert owners == ["suspect"] or "suspect" not in owners
        if number == 0:
            (suspect,) = [each for each in batch.implicated if each.request.id == "suspect"]
            suspect.history.failed_known = 90  # it stays one
            suspect.history.failed_count = 2
