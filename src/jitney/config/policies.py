"""The form of `policy`: the name of one of ours, or an own policy by import path or as an object.

An import path runs the module that it names, as any import does. The current folder is searched
only if PYTHONPATH names it. Called at start-up, from one thread.
"""

import importlib
from typing import Any

from jitney.config.foreign_names import SYNONYMS
from jitney.config.forms import Form, ValueRefusal, one_of
from jitney.core.scheduler_settings import Policy, SchedulingPolicy

REASON_CHARACTERS_MAX = 200


def policy_text(policy: Policy | SchedulingPolicy) -> str:
    """A policy for people: its word, or the import path of its class."""
    if isinstance(policy, Policy):
        return str(policy)
    return f"{type(policy).__module__}:{type(policy).__qualname__}"


def _read_policy(value: object) -> Policy | SchedulingPolicy:
    if isinstance(value, str) and ":" in value:
        return _make_policy(_import_object(value.strip()))
    if isinstance(value, str):
        return Policy(_WORD.read(value))
    if not isinstance(value, SchedulingPolicy):
        raise ValueError(value)
    return _make_policy(value)


def _import_object(path: str) -> object:
    """The object that an import path names. Raises ValueRefusal, or ValueError for a wrong path."""
    place, _, name = path.partition(":")
    if not all(part.isidentifier() for part in (*place.split("."), *name.split("."))):
        raise ValueError(path)
    try:
        found: object = importlib.import_module(place)
    except ImportError as error:
        raise ValueRefusal(
            f"which cannot be imported ({_reason(error)}); install its package, or add its folder "
            "to PYTHONPATH"
        ) from None
    except (Exception, SystemExit) as error:  # a foreign module may raise anything
        raise ValueRefusal(
            f"which fails while it is imported ({_reason(error)}); import {place} by itself to see "
            "where"
        ) from None
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueRefusal(f"and {place} has no {name}; name a class or an object in it")
        found = getattr(found, part)
    return found


def _make_policy(found: object) -> SchedulingPolicy:
    """The policy; if it is a class, an instance of it."""
    if not callable(getattr(found, "rank", None)):
        raise ValueRefusal(
            "which has no rank; give it a method rank(candidate) that returns a number; the "
            "smallest is next"
        )
    if isinstance(found, type):
        try:
            found = found()
        except Exception as error:  # as above
            raise ValueRefusal(
                f"which cannot be made without arguments ({_reason(error)}); give an object in "
                "its place"
            ) from None
    assert isinstance(found, SchedulingPolicy), "A policy has a rank"
    return found


def _reason(error: BaseException) -> str:
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return text[:REASON_CHARACTERS_MAX]


_WORD = one_of(Policy, Policy, synonyms=SYNONYMS["policy"])
POLICY = Form(
    Any,
    _read_policy,
    f"{_WORD.expected}, or one of your own: package.module:Name, or in Python an object with "
    "rank(candidate)",
    f"{_WORD.placeholder}|MODULE:NAME",
    policy_text,
)
"""A word, `package.module:Name`, or in Python an object with `rank`, or its class, which is called
without arguments."""
