"""Replicas side by side: who holds which prefix, without a word of what the prefix says."""

from dataclasses import replace

from jitney.core.request import RequestId
from jitney.core.snapshot import Detail, SlotState, SlotView
from jitney.engine.served_engine import ReplicaView
from jitney.records import MoveReason, RequestMoved
from jitney.server.page.replica_panes import PREFIXES_SHOWN, move_row, prefix_rows, replica_fields
from tests.unit.server.observe.records_for_tests import VIEW

SECRET = b"s" * 16


def cached(slot: int, prefix: int | None, tokens: int) -> SlotView:
    return SlotView(slot, SlotState.CACHED, None, None, tokens, prefix)


def running(slot: int, prefix: int | None, tokens: int) -> SlotView:
    return SlotView(slot, SlotState.GENERATING, RequestId("q"), 0, tokens, prefix)


def holding(name: str, *slots: SlotView) -> ReplicaView:
    return replace(VIEW, name=name, detail=Detail(3.0, slots, (), ()))


def test_a_prefix_is_told_with_who_holds_it() -> None:
    views = [
        holding("a", cached(0, 11, 80), running(1, 11, 300), cached(2, None, 8)),
        holding("b", running(0, -22, 90), cached(3, 11, 64)),
        replace(VIEW, name="c"),
    ]
    first, second = prefix_rows(views, SECRET)
    assert first["on"] == {"a": (2, 1, 300), "b": (1, 1, 64)}
    assert second["on"] == {"b": (1, 0, 90)}
    assert first["prefix"] != second["prefix"]


def test_names_of_prefixes_say_nothing_to_who_guesses_their_tokens() -> None:
    """Guards tenants: whoever knows the scope and guesses the tokens can compute a key."""
    views = [holding("a", cached(0, 11, 80))]
    names = [str(prefix_rows(views, secret)) for secret in (SECRET, SECRET, b"another")]
    assert names[0] == names[1] != names[2]


def test_only_so_many_prefixes_are_told() -> None:
    views = [holding("a", *(cached(at, at, 64) for at in range(100)))]
    assert len(prefix_rows(views, SECRET)) == PREFIXES_SHOWN


def test_a_replica_that_was_never_seen_has_figures_and_no_age() -> None:
    fields = replica_fields(VIEW, 10.0)
    assert fields["seen_s_ago"] is None
    assert (fields["running_count"], fields["slot_count"], fields["kv_used"]) == (2, 4, 60)
    assert replica_fields(holding("a"), 10.0)["seen_s_ago"] == 7.0


def test_a_move_of_another_key_has_no_name() -> None:
    move = RequestMoved(
        at=4.0,
        request_id=RequestId("secret"),
        from_replica="a",
        to_replica="b",
        generated_tokens=7,
        reason=MoveReason.LOST,
        away_ms=250.0,
    )
    assert move_row(move, None, 10.0) == {
        "request": None,
        "from": "a",
        "to": "b",
        "tokens": 7,
        "reason": "lost",
        "ago_s": 6.0,
        "away_s": 0.25,
    }
