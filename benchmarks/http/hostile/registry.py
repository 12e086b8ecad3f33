"""Every attack there is, in the order of the table."""

from benchmarks.http.hostile import (
    bodies,
    connections,
    controls,
    grammars,
    heads,
    machine,
    polls,
    rendering,
    requests,
    stored,
)
from benchmarks.http.hostile.attack import Attack

ATTACKS: tuple[Attack, ...] = (
    *controls.ATTACKS,
    *connections.ATTACKS,
    *heads.ATTACKS,
    *polls.ATTACKS,
    *bodies.ATTACKS,
    *requests.ATTACKS,
    *stored.ATTACKS,
    *grammars.ATTACKS,
    *rendering.ATTACKS,
    *machine.ATTACKS,
)


def named(name: str) -> Attack:
    """The attack of this name. Raises LookupError with a sentence."""
    for attack in ATTACKS:
        if attack.name == name:
            return attack
    raise LookupError(f"There is no attack {name}; --list shows those that there are.")


def chosen(names: list[str] | None) -> list[Attack]:
    """The named ones, or all usual ones. Raises LookupError with a sentence."""
    if names is None:
        return [attack for attack in ATTACKS if attack.is_usual]
    return [named(name) for name in names]
