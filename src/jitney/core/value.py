"""`value`: the decorator of classes of which one object is made for each token."""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """A frozen dataclass that only the type checker keeps frozen.

    One that Python keeps frozen takes four times as long to make: it sets each field by a call.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
