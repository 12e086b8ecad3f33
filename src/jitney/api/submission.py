"""Reads the options of a single request from Python. Pure; any thread."""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict, TypeVar

from jitney.api.callbacks import Callbacks, OnDelta, OnDone
from jitney.core import limits
from jitney.core.params import SamplingParams
from jitney.core.request import Priority, RequestId, read_priority
from jitney.engine.request_factory import RequestOptions
from jitney.errors import InvalidRequest

PriorityInput = str | int
"""low, normal, high or critical in any case, a `Priority`, or its number from 0 (low) to 3
(critical). In vLLM, and here over HTTP, numbers count down instead."""

ParamsInput = SamplingParams | Sequence[SamplingParams] | None
Value = TypeVar("Value")

ID_PREFIX = "jitney-"
"""Ids that are made here begin with this. A caller's own id must not."""


class SubmitOptions(TypedDict, total=False):
    """The options of a single request."""

    request_id: str | None
    """The caller's own id: 1 to 256 printable characters. No live request may have the same."""
    priority: PriorityInput | None
    """A name, a `Priority` or its number, which counts up. The policy `priority` uses it."""
    tenant: str
    """Whose request it is. The policy `fair` uses it."""
    cache_salt: str
    """Requests share cached prefixes only if their salts are equal."""
    queue_timeout_s: float
    request_timeout_s: float
    on_delta: OnDelta | None
    """Called with each new delta and `user_data`."""
    on_done: OnDone | None
    """Called once, with the output, the error and `user_data`. One of the first two may be None."""
    user_data: object
    """Both callbacks get it as it is."""


def read_options(default_id: str, options: SubmitOptions) -> RequestOptions:
    """The options for the engine; `default_id` is used where the caller gives no id."""
    own_id = options.get("request_id")
    return RequestOptions(
        id=RequestId(default_id if own_id is None else _read_id(own_id)),
        priority=read_priority(options.get("priority")),
        tenant=options.get("tenant", ""),
        scope=options.get("cache_salt", ""),
        queue_timeout_s=options.get("queue_timeout_s"),
        request_timeout_s=options.get("request_timeout_s"),
    )


def _read_id(value: object) -> str:
    length_max = limits.CALLER_ID_CHARACTERS_MAX
    fits = isinstance(value, str) and 1 <= len(value) <= length_max and value.isprintable()
    if not isinstance(value, str) or not fits:
        raise InvalidRequest(
            f"request_id takes a text of 1 to {length_max} printable characters, "
            f"and got {value!r:.80}.",
            "request_id",
        )
    if value.startswith(ID_PREFIX):
        raise InvalidRequest(
            f"request_id {value!r:.80} begins with {ID_PREFIX!r}, which is for requests without "
            "an id of their own; choose another.",
            "request_id",
        )
    return value


def read_callbacks(options: SubmitOptions) -> Callbacks:
    """The callbacks. Raises TypeError for an option that does not exist."""
    unknown = [name for name in options if name not in SubmitOptions.__annotations__]
    if unknown:
        raise TypeError(f"submit() has no option {unknown[0]!r}")
    return Callbacks(
        on_delta=options.get("on_delta"),
        on_done=options.get("on_done"),
        user_data=options.get("user_data"),
    )


def read_params(count: int, value: ParamsInput) -> list[SamplingParams]:
    """Sampling parameters for each prompt."""
    return _read_each(
        "sampling_params", count, SamplingParams() if value is None else value, _params
    )


def read_priorities(
    count: int, value: PriorityInput | Sequence[PriorityInput] | None
) -> list[Priority]:
    """A priority for each prompt."""
    return _read_each("priority", count, value, read_priority)


def _params(value: object) -> SamplingParams:
    if isinstance(value, SamplingParams):
        return value
    raise InvalidRequest(
        "sampling_params takes a SamplingParams, or a list of them, and got "
        f"{type(value).__name__}.",
        "sampling_params",
    )


# Any: of the option's type
def _read_each(name: str, count: int, value: Any, read: Callable[[Any], Value]) -> list[Value]:
    """One value for each prompt: the same for all, or those of a list."""
    if not isinstance(value, list | tuple):
        return [read(value)] * count
    values = [read(each) for each in value]
    if len(values) != count:
        raise InvalidRequest(
            f"{name} has {len(values)} entries for {count} prompts; "
            "give one for all, or one for each.",
            name,
        )
    return values
