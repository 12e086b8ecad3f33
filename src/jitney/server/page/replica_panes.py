"""Replicas side by side, in JSON: their figures, who holds which prefix, and the last moves.

Pure functions of what was seen; any thread. Prefixes are known by keys. A key could be computed by
whoever guesses the tokens, so the page gets a name made with a secret of this process: it says
which prefixes are the same, and nothing else.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from jitney.engine.replica_view import ReplicaView
from jitney.records import RequestMoved

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]
Fields = dict[str, JsonValue]

REPLICAS_SHOWN = 32
"""So many show their slots; of all others only the figures are shown."""

PREFIXES_SHOWN = 12
MOVES_SHOWN = 20
NAME_BYTES = 3


@dataclass(slots=True)
class _Held:
    """A prefix in the slots of one replica."""

    slot_count: int = 0
    cached_count: int = 0
    tokens_max: int = 0


def replica_fields(view: ReplicaView, now: float) -> Fields:
    """The figures of one replica."""
    snapshot, detail = view.snapshot, view.detail
    return {
        "name": view.name,
        "seen_s_ago": None if detail is None else now - detail.at,
        "running": snapshot.running_count,
        "slots_max": snapshot.slot_count,
        "waiting": snapshot.waiting_count,
        "paused": snapshot.paused_count,
        "kv_tokens": snapshot.kv_tokens,
        "kv_used": snapshot.kv_used,
        "kv_cached": snapshot.kv_cached,
        "cached_slots": snapshot.cached_count,
        "tokens_s": view.tokens_per_s,
        "prefill_tokens_s": view.prefill_tokens_per_s,
        "completion_tokens": view.completion_tokens,
    }


def prefix_rows(views: Sequence[ReplicaView], secret: bytes) -> list[JsonValue]:
    """Who holds which prefix: those on most replicas first, then those in most slots.

    Each row has a name, and for each replica that holds it the slots, the cached ones of these, and
    the tokens of the longest.
    """
    held: defaultdict[int, dict[str, _Held]] = defaultdict(dict)
    for view in views:
        for slot in () if view.detail is None else view.detail.slots:
            if slot.prefix is not None:
                of_replica = held[slot.prefix].setdefault(view.name, _Held())
                of_replica.slot_count += 1
                of_replica.cached_count += slot.request_id is None
                of_replica.tokens_max = max(of_replica.tokens_max, slot.token_count)
    ranked = sorted(held.items(), key=lambda item: _rank(item[1]), reverse=True)
    return [
        {
            "prefix": _name(key, secret),
            "on": {
                name: [each.slot_count, each.cached_count, each.tokens_max]
                for name, each in holders.items()
            },
        }
        for key, holders in ranked[:PREFIXES_SHOWN]
    ]


def move_fields(move: RequestMoved, request: str | None, now: float) -> Fields:
    """One move; `request` is None if the viewer may not read its name."""
    return {
        "request": request,
        "from": move.from_replica,
        "to": move.to_replica,
        "tokens": move.generated_tokens,
        "reason": move.reason.value,
        "ago_s": now - move.at,
        "away_s": move.away_ms / 1e3,
    }


def _rank(holders: Mapping[str, _Held]) -> tuple[int, int, int]:
    slot_count = sum(each.slot_count for each in holders.values())
    return len(holders), slot_count, max(each.tokens_max for each in holders.values())


def _name(key: int, secret: bytes) -> str:
    digits = key.to_bytes(8, signed=True)
    return blake2b(digits, key=secret, digest_size=NAME_BYTES).hexdigest()
