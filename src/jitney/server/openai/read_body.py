"""From an HTTP request to a checked body: size, time, type, JSON, fields. Event loop.

Refusals come as early as they can: a body that is too long is not read to its end, and nothing
of it is kept. A request is counted among those that are served once its body is there.
"""

import asyncio
import difflib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request
from starlette.types import Message, Receive

from jitney.errors import Draining
from jitney.server import limits
from jitney.server.openai.bodies import Strict
from jitney.server.openai.error_object import ClientLeft, Refusal
from jitney.server.openai.parse import parse_object

CLOSE_MIN = 0.75
"""How alike a name must be to be taken for a slip: `store` is not `stream`."""

Body = TypeVar("Body", bound=Strict)
Made = TypeVar("Made")

_EXPECTED = {
    "prompt": f"a string, a list of 1 to {limits.PROMPTS_MAX} strings, a list of token ids, "
    "or a list of such lists",
    "stop": "a string of 1 to 256 characters, or a list of up to 16 of them",
    "priority": "low, normal, high or critical, or a whole number of up to 31 bits: 0 is normal, "
    "-1 high",
    "tool_choice": "none, auto, required, or an object that names a function",
    "response_format": "an object whose type is text, json_object or json_schema",
}
"""For fields of several forms, where pydantic would complain about each form in turn."""

_OBJECT_TYPES = frozenset({"dict_type", "model_type", "model_attributes_type"})
"""What pydantic calls it when something is no object."""


async def read_body(request: Request, kind: type[Body], bytes_max: int) -> Body:
    """The checked body of a request. Raises Refusal, and what a place that is not there raises."""
    _check_type(request)
    content = await _read(request, bytes_max)
    request.state.begin()
    values_max = max(limits.VALUES_MAX, bytes_max // limits.VALUE_BYTES_USUAL)
    if len(content) <= limits.INLINE_BYTES_MAX:
        return check_body(content, kind, values_max)
    intake: Intake = request.state.intake
    return await intake.parse(partial(check_body, content, kind, values_max), request.receive)


def check_body(content: bytes, kind: type[Body], values_max: int = limits.VALUES_MAX) -> Body:
    """The body in these bytes. Raises Refusal with status 400."""
    given = parse_object(content, values_max)
    for name in [each for each in given if each in kind.refused]:
        refused = kind.refused[name]
        if not refused.passes(given.pop(name)):
            raise Refusal(
                "unsupported_parameter", f"{name} is not supported: {refused.reason}.", param=name
            )
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise _explained(error, kind) from None
    except RecursionError:
        raise Refusal("invalid_json", "The body is nested too deeply.") from None


def _check_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").split(";", 1)[0].strip().lower()
    if kind != "application/json":
        raise Refusal(
            "unsupported_media_type",
            "The body must be JSON: send `Content-Type: application/json`.",
        )
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Refusal("unsupported_media_type", "The body must not be compressed.")


async def _read(request: Request, bytes_max: int) -> bytes:
    length = request.headers.get("content-length")
    if length is not None and length.isdecimal() and int(length[:20]) > bytes_max:
        raise _too_large(bytes_max)
    intake: Intake = request.state.intake
    hold: Callable[[int], None] = request.state.hold
    parts: list[bytes] = []
    count = 0
    async with intake.reading():
        while True:
            message = await _received(request.receive)
            part = message.get("body", b"")
            count += len(part)
            if count > bytes_max:
                raise _too_large(bytes_max)
            hold(len(part))
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)


@dataclass(slots=True, eq=False)
class _Arrival:
    """One body on its way in; `reason` is why it was ended before its time, if it was."""

    limit: asyncio.Timeout
    reason: Exception | None = None

    def end(self, reason: Exception) -> None:
        if not self.limit.expired():
            self.reason = reason
            self.limit.reschedule(0.0)


class Intake:
    """The bodies that are on their way in, the oldest first; then, if they are large, in a line.

    All threads of Python wait for one that parses. So large bodies are parsed one at a time, and
    in between others have their turn.
    """

    def __init__(self) -> None:
        self._arrivals: dict[_Arrival, None] = {}
        self._parser = ThreadPoolExecutor(1, thread_name_prefix="jitney-parser")

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._arrivals)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Within this, a body is read. Raises Refusal when it is late or gives way, Draining."""
        if self.count >= limits.BODIES_READ_MAX:
            self._take_oldest().end(
                _timed_out("The body arrived more slowly than those of many others, and gave way.")
            )
        arrival = _Arrival(asyncio.timeout(limits.BODY_S_MAX))
        try:
            async with arrival.limit:
                self._arrivals[arrival] = None
                try:
                    yield
                finally:
                    # Before its limit is left, which cannot be changed after that.
                    self._arrivals.pop(arrival, None)
        except TimeoutError:
            message = f"The body did not arrive within {limits.BODY_S_MAX:g} s."
            raise arrival.reason or _timed_out(message) from None

    def close(self) -> None:
        """Read no further: the server is shutting down, and all of them are told so."""
        while self._arrivals:
            self._take_oldest().end(Draining("the server is shutting down."))

    async def parse(self, make: Callable[[], Made], receive: Receive) -> Made:
        """Do this off the event loop when its turn comes, unless the client leaves before.

        Raises ClientLeft and Draining. How many wait is bounded by what may be served and held.
        """
        parsing = asyncio.get_running_loop().run_in_executor(self._parser, make)
        leaving = asyncio.create_task(wait_leaving(receive))
        try:
            either: set[asyncio.Future[Any]] = {parsing, leaving}  # Any: made, or nothing
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not parsing.done():
                # Without effect on what is being parsed already; what waits is not begun.
                parsing.cancel()
                raise ClientLeft
            if parsing.cancelled():
                raise Draining("the server was shut down.")
            return await parsing
        finally:
            leaving.cancel()

    def end(self) -> None:
        """Parse nothing more: the server has ended."""
        self._parser.shutdown(wait=False, cancel_futures=True)

    def _take_oldest(self) -> _Arrival:
        oldest = next(iter(self._arrivals))
        del self._arrivals[oldest]
        return oldest


def _timed_out(message: str) -> Refusal:
    return Refusal("request_timeout", message, headers={"connection": "close"})


async def wait_leaving(receive: Receive) -> None:
    """Until the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _received(receive: Receive) -> Message:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientLeft
    return message


def _too_large(bytes_max: int) -> Refusal:
    return Refusal(
        "request_too_large",
        f"The body is larger than {bytes_max} bytes, which is the most here; whoever runs the "
        "server can raise it with --body-limit.",
        headers={"connection": "close"},
    )


def _explained(error: ValidationError, kind: type[Strict]) -> Refusal:
    """The first thing that is wrong, in a sentence, with the field in OpenAI's spelling."""
    found = error.errors(include_url=False, include_context=True, include_input=False)[0]
    places = _without_tag(list(found["loc"]))
    is_extra = found["type"] == "extra_forbidden"
    # The last part of a field that is not known is its name, whatever it looks like.
    last = [str(places.pop())[: limits.NAME_CHARACTERS_MAX]] if is_extra else []
    names = [part for part in places if isinstance(part, int) or _is_name(part)] + last
    top = str(names[0]) if names else None
    param = _path(names)
    if is_extra:
        known = _known_names(kind) if len(names) == 1 else []
        close = difflib.get_close_matches(str(names[-1]), known, n=1, cutoff=CLOSE_MIN)
        hint = f"; did you mean {close[0]}?" if close else "."
        return _refusal(f"There is no field {param}{hint}", "unknown_parameter", param)
    if found["type"] == "missing":
        return _refusal(f"{param} is missing.", "missing_required_parameter", param)
    message = _message(found)
    if found["type"] in _OBJECT_TYPES and param is not None and len(names) > 1:
        return _refusal(f"{param} must be an object.", "invalid_type", param)
    if found["type"] == "string_type" and len(places) == 1:
        # A text and nothing else; of a field of several forms, the place names the form as well.
        return _refusal(f"{param} must be a string.", "invalid_type", param)
    is_told = top != "response_format" or len(names) == 1
    if top in _EXPECTED and is_told and found["type"] != "value_error":
        return _refusal(f"{top} must be {_EXPECTED[top]}.", "invalid_value", top)
    if param is None:
        return _refusal(f"The body is wrong: {message}.", "invalid_value", None)
    is_type = found["type"].endswith("_type")
    return _refusal(f"{param}: {message}.", "invalid_type" if is_type else "invalid_value", param)


def _refusal(message: str, code: str, param: str | None) -> Refusal:
    return Refusal(code, message, param=param)


def _message(found: ErrorDetails) -> str:
    message = str(found["msg"]).removeprefix("Value error, ").rstrip(".")
    return message[:1].lower() + message[1:]


def _without_tag(places: list[int | str]) -> list[int | str]:
    """A place without what pydantic writes behind a field whose form depends on its type."""
    return [*places[:1], *places[2:]] if places[:1] == ["response_format"] else places


def _is_name(part: str) -> bool:
    """Whether this is a field, and not the name that pydantic has for a form of it."""
    return part.isidentifier() and part not in ("str", "int", "float", "bool", "none", "list")


def _path(names: list[Any]) -> str | None:  # Any: keys and indices
    path = ""
    for name in names:
        if isinstance(name, int):
            path += f"[{name}]"
        else:
            path += f".{name}" if path else str(name)
    return path[:200] or None


def _known_names(kind: type[Strict]) -> list[str]:
    return [each.alias or name for name, each in kind.model_fields.items()]
