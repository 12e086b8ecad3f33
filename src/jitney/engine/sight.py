"""`Sight`: how the engine stands at one moment, in detail, for people to look at.

Made by the engine thread when somebody looks, read by anyone. The only thing here beside mailboxes
and answers that holds text: the ends of what is being made.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from jitney.core.gauges import Gauges
from jitney.core.picture import Picture
from jitney.core.request import RequestId


@dataclass(frozen=True, slots=True)
class Sight:
    """Levels, memory, queue, and the last characters of every completion that is under way."""

    at: float
    gauges: Gauges
    picture: Picture
    tails: Mapping[RequestId, tuple[str, ...]]
