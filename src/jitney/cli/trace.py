"""`jitney trace`: saves the recorded ticks and requests of a running server. Main thread.

Tests: tests/e2e/page/test_routes.py.
"""

import json
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from jitney.cli.failures import say
from jitney.cli.verbs import TraceOptions
from jitney.config import Resolved
from jitney.config.machine import environment, is_local
from jitney.errors import ConfigError, SetupError

TIMEOUT_S = 60.0
PIPE = Path("-")
VARIABLE = "JITNEY_API_KEY"


def call(options: TraceOptions, resolved: Resolved) -> int:
    """Run the command; the exit code."""
    content = fetch_trace(options.url, server_key(options.api_key, options.url))
    count = count_events(content, options.url)
    if options.output == PIPE:
        sys.stdout.buffer.write(content)
        return 0
    options.output.write_bytes(content)
    say(
        f"{count:,} events are in {options.output}; open it at https://ui.perfetto.dev "
        "or chrome://tracing."
    )
    return 0


def count_events(content: bytes, url: str) -> int:
    """How many events this trace has. Raises SetupError if it is not a trace."""
    try:
        return len(json.loads(content)["traceEvents"])
    except (ValueError, LookupError, TypeError, RecursionError):
        raise SetupError(
            f"The reply of {url} is not a trace, and nothing was written; is it jitney serve?"
        ) from None


def server_key(given: str | None, url: str) -> str | None:
    """The given key, or else that of JITNEY_API_KEY, if the server is on this machine.

    `jitney serve` has the same variable, so nobody has to put a key where `ps` shows it. Raises
    ConfigError for a key that cannot be sent, and does not show it.
    """
    key = _key_of_environment(url) if given is None else given
    if key is not None and not (key.isascii() and key.isprintable() and key):
        raise ConfigError(
            f"{VARIABLE if given is None else '--api-key'} is empty or has a line break or another "
            "sign that cannot be sent in a header; give the key as one line of plain letters, "
            "digits and signs."
        )
    return key


def _key_of_environment(url: str) -> str | None:
    key = environment().get(VARIABLE, "").partition(",")[0].strip()
    if not key or _is_here(url):
        return key or None
    say(
        f"{VARIABLE} is for a server on this machine, so it is not sent to {url}; --api-key "
        "sends a key."
    )
    return None


def _is_here(url: str) -> bool:
    """Whether the server is on this machine. Raises ConfigError for what is no address."""
    return is_local(_parts(url).hostname or "")


def _parts(url: str) -> SplitResult:
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme in ("http", "https"):
            return parts
    raise ConfigError(f"--url is {url}; expected an address such as http://127.0.0.1:8000.")


def fetch_trace(url: str, api_key: str | None) -> bytes:
    """The trace of the server at this address. Raises an error that says what to change."""
    _parts(url)
    request = urllib.request.Request(f"{url.rstrip('/')}/debug/trace?whole=true")
    if api_key is not None:
        # It goes to this address alone, wherever a redirect leads.
        request.add_unredirected_header("authorization", f"Bearer {api_key}")
    # Without a proxy: a proxy of the environment cannot reach this machine's ports.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as response:
            content: bytes = response.read()
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 401:
            asks = "asks for a key" if api_key is None else "does not know this key"
            advice = f"set {VARIABLE}, or give --api-key" if _is_here(url) else "give --api-key"
            raise ConfigError(f"The server at {url} {asks}; {advice}.") from None
        raise SetupError(
            f"The server at {url} answered with status {error.code}; is it jitney serve?"
        ) from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise SetupError(
            f"There is no reply from {url} ({reason}); start jitney serve, or give its address "
            "with --url."
        ) from None
    return content
