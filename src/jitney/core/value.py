"""`value`: the decorator of classes of which objects are made for each token, or in each tick."""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """A frozen dataclass that only the type checker keeps frozen.

    One that Python keeps frozen takes four times as long to make: it sets each field by a call.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def named_value(cls: type[T]) -> type[T]:
    """The same, with fields that are given by name."""
    return dataclass(slots=True, unsafe_hash=True, kw_only=True)(cls)
