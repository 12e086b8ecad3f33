"""What a field of `Settings` carries beside its name, type and default. Pure; any thread."""

from dataclasses import dataclass
from enum import StrEnum

from jitney.config.forms import Form


class Group(StrEnum):
    """The sections of the reference page, in its order."""

    MODEL = "Model and backend"
    BATCH = "Batch"
    MEMORY = "Memory"
    SCHEDULING = "Scheduling"
    QUEUE = "Queue and time limits"
    OTHER = "Other"
    SERVER = "Server"


@dataclass(frozen=True, slots=True)
class Option:
    """What is known about one setting beyond its name, type and default."""

    group: Group
    form: Form
    help: str
    default_text: str | None = None
    """The default in words, where it is worked out later."""
    is_secret: bool = False
    """Whether its value is never shown."""


def about(
    group: Group,
    form: Form,
    help: str,
    default_text: str | None = None,
    *,
    is_secret: bool = False,
) -> dict[str, Option]:
    """The metadata of a field of `Settings` or `ServeSettings`."""
    return {"option": Option(group, form, help, default_text, is_secret)}
