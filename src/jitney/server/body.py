"""From an HTTP request to a checked body: size, time, type, JSON, fields. Event loop.

Refusals come as early as they can: a body that is too long is not read to its end, and nothing
of it is kept.
"""

import asyncio
import difflib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request
from starlette.types import Message, Receive

from jitney.server import fields, limits
from jitney.server.errors import INVALID, Refusal
from jitney.server.parse import parse_object
from jitney.server.wire import Strict

Body = TypeVar("Body", bound=Strict)

_EXPECTED = {
    "prompt": f"a string, a list of 1 to {limits.PROMPTS_MAX} strings, a list of token ids, "
    "or a list of such lists",
    "stop": "a string of 1 to 256 characters, or a list of up to 16 of them",
    "priority": "low, normal, high or critical, or a whole number",
    "tool_choice": "none, auto, required, or an object that names a function",
    "response_format": "an object whose type is text, json_object or json_schema",
}
"""For fields of several forms, where pydantic would complain about each form in turn."""


async def read_body(
    request: Request, kind: type[Body], table: Mapping[str, fields.Field], bytes_max: int
) -> Body:
    """The checked body of a request. Raises Refusal."""
    _check_type(request)
    content = await _read(request, bytes_max, request.state.hold)
    if len(content) > limits.INLINE_BYTES_MAX:
        return await asyncio.to_thread(check_body, content, kind, table)
    return check_body(content, kind, table)


def check_body(content: bytes, kind: type[Body], table: Mapping[str, fields.Field]) -> Body:
    """The body in these bytes. Raises Refusal with status 400."""
    given = parse_object(content)
    name = fields.refusal_among(given, table)
    if name is not None:
        refused = table[name]
        assert isinstance(refused, fields.Refused), name
        raise Refusal(
            400,
            f"{name} is not supported: {refused.reason}.",
            code="unsupported_parameter",
            param=name,
        )
    try:
        return kind.model_validate(fields.without_refused(given, table))
    except ValidationError as error:
        raise _explained(error, kind) from None
    except RecursionError:
        raise Refusal(400, "The body is nested too deeply.", code="invalid_json") from None


def _check_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").split(";", 1)[0].strip().lower()
    if kind != "application/json":
        raise Refusal(
            415,
            "The body must be JSON: send `Content-Type: application/json`.",
            code="unsupported_media_type",
        )
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Refusal(415, "The body must not be compressed.", code="unsupported_media_type")


async def _read(request: Request, bytes_max: int, hold: Callable[[int], None]) -> bytes:
    length = request.headers.get("content-length")
    if length is not None and length.isdecimal() and int(length[:20]) > bytes_max:
        raise _too_large(bytes_max)
    parts: list[bytes] = []
    count = 0
    try:
        async with asyncio.timeout(limits.BODY_S_MAX):
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
    except TimeoutError:
        raise Refusal(
            408,
            f"The body did not arrive within {limits.BODY_S_MAX:g} s.",
            code="request_timeout",
            headers={"connection": "close"},
        ) from None


async def _received(receive: Receive) -> Message:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientLeft
    return message


class ClientLeft(Exception):
    """The client closed the connection: there is nobody to answer."""


def _too_large(bytes_max: int) -> Refusal:
    return Refusal(
        413,
        f"The body is larger than {bytes_max} bytes.",
        code="request_too_large",
        headers={"connection": "close"},
    )


def _explained(error: ValidationError, kind: type[Strict]) -> Refusal:
    """The first thing that is wrong, in a sentence, with the field in OpenAI's spelling."""
    found = error.errors(include_url=False, include_context=True, include_input=False)[0]
    places = list(found["loc"])
    is_extra = found["type"] == "extra_forbidden"
    # The last part of a field that is not known is its name, whatever it looks like.
    last = [str(places.pop())[: limits.NAME_CHARACTERS_MAX]] if is_extra else []
    names = [part for part in places if isinstance(part, int) or _is_name(part)] + last
    top = str(names[0]) if names else None
    param = _path(names)
    if is_extra:
        known = _known_names(kind) if len(names) == 1 else []
        close = difflib.get_close_matches(str(names[-1]), known, n=1)
        hint = f"; did you mean {close[0]}?" if close else "."
        return _refusal(f"There is no field {param}{hint}", "unknown_parameter", param)
    if found["type"] == "missing":
        return _refusal(f"{param} is missing.", "missing_required_parameter", param)
    message = _message(found)
    if top in _EXPECTED and found["type"] != "value_error":
        return _refusal(f"{top} must be {_EXPECTED[top]}.", "invalid_value", top)
    if param is None:
        return _refusal(f"The body is wrong: {message}.", "invalid_value", None)
    is_type = found["type"].endswith("_type")
    return _refusal(f"{param}: {message}.", "invalid_type" if is_type else "invalid_value", param)


def _refusal(message: str, code: str, param: str | None) -> Refusal:
    return Refusal(400, message, code=code, param=param, type=INVALID)


def _message(found: ErrorDetails) -> str:
    message = str(found["msg"]).removeprefix("Value error, ").rstrip(".")
    return message[:1].lower() + message[1:]


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
