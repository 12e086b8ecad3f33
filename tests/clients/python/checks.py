"""What the scripts of all Python clients share: where the server is, what is asked of it, how
results are told, and a lock on the network.

A script has a function for each check that its client can do, and hands them to `run`.
"""

import contextlib
import ipaddress
import json
import os
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

URL = os.environ["JITNEY_URL"]
BASE_URL = f"{URL}/v1"
MODEL = os.environ["JITNEY_MODEL"]
KEY = os.environ["JITNEY_KEY"]
CHECKS = ("chat", "stream", "tools", "json_schema", "logprobs", "error", "cancel", "responses")

QUESTION = "Why is the sky blue?"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
CITY_QUESTION = "Tell me of a city."
CITY_MESSAGES: Any = [{"role": "user", "content": CITY_QUESTION}]
LONG_QUESTION = "word " * (int(os.environ["JITNEY_MODEL_LEN"]) + 100)
ENDLESS: Any = {"ignore_eos": True}
ENDLESS_TOKENS = 1500
LEAVING_S_MAX = 10.0


class City(BaseModel):
    """A city. Closed, for a small model may never have enough of further properties."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20)
    size: Literal["small", "large"]
    rivers: int = Field(ge=0, le=9)


CITY_TOOL: Any = {
    "type": "function",
    "function": {
        "name": "keep_city",
        "description": "Keep a city for later.",
        "parameters": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 20},
                "size": {"enum": ["small", "large"]},
                "rivers": {"type": "integer", "minimum": 0, "maximum": 9},
            },
            "required": ["name", "size", "rivers"],
            "additionalProperties": False,
        },
    },
}


def run(package: str, *functions: Callable[[], None]) -> None:
    """Do each check by the function of its name, and tell what became of it."""
    _tell(version=version(package))
    found = {function.__name__: function for function in functions}
    assert set(found) <= set(CHECKS), found
    for name in CHECKS:
        if name not in found:
            _tell(check=name, result="-")
            continue
        try:
            found[name]()
            assert not strays, f"tried to reach {strays}"
        except Exception:
            _tell(check=name, result="FAIL", why=traceback.format_exc(limit=-8))
        else:
            _tell(check=name, result="ok")


@contextlib.contextmanager
def left_early() -> Iterator[None]:
    """The block leaves a request that would go on for long: the server must notice, and stop."""
    before = _cancelled_count()
    yield
    limit = time.monotonic() + LEAVING_S_MAX
    while _cancelled_count() == before or _load() > 0:
        assert time.monotonic() < limit, "the server went on for nobody"
        time.sleep(0.05)


@contextlib.contextmanager
def raises(kind: type[BaseException], *words: str) -> Iterator[None]:
    """The block raises this error, and its message or code holds these words."""
    try:
        yield
    except kind as raised:
        message = f"{raised} {getattr(raised, 'code', None)}"
    else:
        raise AssertionError(f"{kind.__name__} was not raised")
    missing = [word for word in words if word not in message]
    assert not missing, f"{missing} is not in: {message}"


def _cancelled_count() -> float:
    for line in _get("/metrics").splitlines():
        if line.startswith('jitney:requests_ended_total{reason="abort"}'):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError("/metrics does not say how many requests were cancelled")


def _load() -> int:
    return int(json.loads(_get("/load"))["server_load"])


def _get(path: str) -> str:
    asked = urllib.request.Request(URL + path, headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        return str(answer.read().decode())


def _tell(**fields: str) -> None:
    # To a file, since clients write what they like to standard output.
    with open(os.environ["JITNEY_REPORT"], "a", encoding="utf-8") as report:
        report.write(json.dumps(fields) + "\n")


strays: list[str] = []
"""Other machines that the client tried to reach, though it may have kept that to itself."""


def _only_loopback(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook that refuses telemetry and downloads."""
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    elif event == "socket.getaddrinfo":
        host = arguments[0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    with contextlib.suppress(ValueError):
        if host in (None, "localhost") or ipaddress.ip_address(host).is_loopback:
            return
    strays.append(str(host))
    raise PermissionError(f"{event} to {host}: clients may only call this machine")


# When this module is imported, so that what a client does while it is imported is seen as well.
sys.addaudithook(_only_loopback)
