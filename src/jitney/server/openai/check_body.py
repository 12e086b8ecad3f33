"""From the bytes of a request to a checked body: JSON, fields, what is wrong with them. Pure."""

import difflib
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from jitney.server import limits
from jitney.server.error_object import Refusal
from jitney.server.openai.bodies import Strict
from jitney.server.openai.parse import parse_object

CLOSE_MIN = 0.75
"""How similar a name must be for a hint: `store` is not `stream`."""

Body = TypeVar("Body", bound=Strict)

_EXPECTED = {
    "prompt": f"a string, a list of 1 to {limits.PROMPTS_MAX} strings, a list of token ids, "
    "or a list of such lists",
    "stop": "a string of 1 to 256 characters, or a list of up to 16 of them",
    "priority": "low, normal, high or critical, or a whole number of up to 31 bits: 0 is normal, "
    "-1 high",
    "tool_choice": "none, auto, required, or an object that names a function",
    "response_format": "an object whose type is text, json_object or json_schema",
}
"""For fields of several forms: pydantic would report every form."""

_OBJECT_TYPES = frozenset({"dict_type", "model_type", "model_attributes_type"})
"""Pydantic's errors for a value that is not an object."""


def check_body(content: bytes, kind: type[Body], values_max: int = limits.VALUES_MAX) -> Body:
    """The body in these bytes. Raises Refusal with status 400."""
    return check_fields(parse_object(content, values_max), kind)


def check_fields(fields: dict[str, Any], kind: type[Body]) -> Body:  # Any: a JSON value
    """The body in this object, which is used up. Raises Refusal with status 400."""
    for name in [each for each in fields if each in kind.refused]:
        refused = kind.refused[name]
        if not refused.passes(fields.pop(name)):
            raise Refusal(
                "unsupported_parameter", f"{name} is not supported: {refused.reason}.", param=name
            )
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _explained(error, kind) from None
    except RecursionError:
        raise Refusal("invalid_json", "The body is nested too deeply.") from None


def _explained(error: ValidationError, kind: type[Strict]) -> Refusal:
    """The first thing that is wrong, in a sentence, with the field in OpenAI's spelling."""
    found = error.errors(include_url=False, include_context=True, include_input=False)[0]
    places = _without_tag(list(found["loc"]))
    is_extra = found["type"] == "extra_forbidden"
    # The last part of an unknown field is its name, whatever it looks like.
    last = [str(places.pop())[: limits.NAME_CHARACTERS_MAX]] if is_extra else []
    names = [part for part in places if isinstance(part, int) or _is_name(part)] + last
    top = str(names[0]) if names else None
    param = _path(names)
    if is_extra:
        fields = kind.model_fields if len(names) == 1 else {}
        known = [each.alias or name for name, each in fields.items()]
        close = difflib.get_close_matches(str(names[-1]), known, n=1, cutoff=CLOSE_MIN)
        hint = f"; did you mean {close[0]}?" if close else "."
        return Refusal("unknown_parameter", f"There is no field {param}{hint}", param=param)
    if found["type"] == "missing":
        return Refusal("missing_required_parameter", f"{param} is missing.", param=param)
    message = _message(found)
    if found["type"] in _OBJECT_TYPES and param is not None and len(names) > 1:
        return Refusal("invalid_type", f"{param} must be an object.", param=param)
    if found["type"] == "string_type" and len(places) == 1:
        # A field of one form; with several forms, the place contains the form too.
        return Refusal("invalid_type", f"{param} must be a string.", param=param)
    is_whole = top != "response_format" or len(names) == 1
    if top in _EXPECTED and is_whole and found["type"] != "value_error":
        return Refusal("invalid_value", f"{top} must be {_EXPECTED[top]}.", param=top)
    if param is None:
        return Refusal("invalid_value", f"The body is wrong: {message}.")
    code = "invalid_type" if found["type"].endswith("_type") else "invalid_value"
    return Refusal(code, f"{param}: {message}.", param=param)


def _message(found: ErrorDetails) -> str:
    message = str(found["msg"]).removeprefix("Value error, ").rstrip(".")
    return message[:1].lower() + message[1:]


def _without_tag(places: list[int | str]) -> list[int | str]:
    """The place without the tag that pydantic adds to a field with several forms."""
    return [*places[:1], *places[2:]] if places[:1] == ["response_format"] else places


def _is_name(part: str) -> bool:
    """Whether this is a field, and not pydantic's name for one of its forms."""
    return part.isidentifier() and part not in ("str", "int", "float", "bool", "none", "list")


def _path(names: list[Any]) -> str | None:  # Any: keys and indices
    path = ""
    for name in names:
        if isinstance(name, int):
            path += f"[{name}]"
        else:
            path += f".{name}" if path else str(name)
    return path[:200] or None
