"""Replicas side by side, in JSON: their figures, who holds which prefix, and the last moves.

Pure functions of what was seen; any thread. Prefixes are known by keys. A key could be computed by
whoever guesses the tokens, so the page gets a name made with a secret of this process: it says
which prefixes are the same, and nothing else.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b

from jitney.core.snapshot import SlotView
from jitney.engine.served_engine import ReplicaView
from jitney.records import RequestMoved
from jitney.server.observe.story import move_fields

Fields = dict[str, object]
"""An object of JSON."""

REPLICAS_SHOWN = 32
"""So many show their slots; of all others only the figures are shown."""

FIGURES = (
    *("running_count", "slot_count", "waiting_count", "paused_count"),
    *("cached_count", "kv_tokens", "kv_used", "kv_cached"),
)
"""What is shown of a snapshot, by its names there."""

PREFIXES_SHOWN = 12
MOVES_SHOWN = 20
NAME_BYTES = 3

Holders = Mapping[str, list[SlotView]]
"""The slots that hold a prefix, by replica."""


def replica_fields(view: ReplicaView, now: float) -> Fields:
    """The figures of one replica."""
    return {
        "name": view.name,
        "seen_s_ago": None if view.detail is None else now - view.detail.at,
        "tokens_s": view.tokens_per_s,
        "prefill_tokens_s": view.prefill_tokens_per_s,
        **{name: getattr(view.snapshot, name) for name in FIGURES},
    }


def prefix_rows(views: Sequence[ReplicaView], secret: bytes) -> list[Fields]:
    """Who holds which prefix: those on most replicas first, then those in most slots.

    Each row has a name, and for each replica that holds it the slots, the cached ones of these, and
    the tokens of the longest.
    """
    found: dict[int, dict[str, list[SlotView]]] = {}
    for view in views:
        for slot in () if view.detail is None else view.detail.slots:
            if slot.prefix is not None:
                found.setdefault(slot.prefix, {}).setdefault(view.name, []).append(slot)
    ranked = sorted(found.items(), key=lambda item: _rank(item[1]), reverse=True)
    return [
        {
            "prefix": _name(key, secret),
            "on": {name: _counts(slots) for name, slots in holders.items()},
        }
        for key, holders in ranked[:PREFIXES_SHOWN]
    ]


def move_row(move: RequestMoved, request: str | None, now: float) -> Fields:
    """One move; `request` is None if the viewer may not read its name."""
    times = {"ago_s": now - move.at, "away_s": move.away_ms / 1e3}
    return {"request": request, **move_fields(move), **times}


def _counts(slots: list[SlotView]) -> tuple[int, int, int]:
    cached_count = sum(each.request_id is None for each in slots)
    return len(slots), cached_count, max(each.token_count for each in slots)


def _rank(holders: Holders) -> tuple[int, int, int]:
    slot_count, _, tokens_max = _counts([each for slots in holders.values() for each in slots])
    return len(holders), slot_count, tokens_max


def _name(key: int, secret: bytes) -> str:
    digits = key.to_bytes(8, signed=True)
    return blake2b(digits, key=secret, digest_size=NAME_BYTES).hexdigest()
