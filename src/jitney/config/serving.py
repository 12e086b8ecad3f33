"""Settings of the server: `ServeSettings`, in the style of `Settings` and read along with it.

A file or an environment may hold them beside those of the engine; commands that do not serve let
them be. Frozen; checked when they are read.
"""

from dataclasses import dataclass
from pathlib import Path

from jitney.config.definitions import Group, Setting, defined_settings, setting
from jitney.config.forms import Listed, Location, Number, Origins, Size, Text, Whole

NAME_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """All settings of the server, resolved."""

    host: str = setting(
        Group.SERVER,
        Text(1, NAME_MAX),
        "The address to listen on; 0.0.0.0 is every one that this machine has.",
        default="127.0.0.1",
    )
    port: int = setting(
        Group.SERVER, Whole(0, 65_535), "The port to listen on; 0 takes a free one.", default=8000
    )
    served_model_name: tuple[str, ...] = setting(
        Group.SERVER,
        Listed(NAME_MAX),
        "What callers call the model; the first name is the one that replies carry.",
        default_text="the name of its file",
        default=(),
    )
    api_key: tuple[str, ...] = setting(
        Group.SERVER,
        Listed(NAME_MAX),
        "Keys that callers must send one of.",
        default_text="none: everyone may call",
        is_secret=True,
        default=(),
    )
    api_key_file: Path | None = setting(
        Group.SERVER,
        Location(),
        "A YAML file of keys with names, rates, priorities and cache scopes; "
        "docs/reference/config.md shows one.",
        default=None,
    )
    allowed_host: tuple[str, ...] = setting(
        Group.SERVER,
        Listed(NAME_MAX),
        "Names that the server may be called by in the Host header; `*` is any. Without keys, "
        "a server on a loopback address always answers to the names of this machine.",
        default_text="any; without keys on a loopback address, those of this machine",
        default=(),
    )
    cors_origin: tuple[str, ...] = setting(
        Group.SERVER,
        Origins(NAME_MAX),
        "Origins whose pages may call from a browser, such as https://app.example; `*` is any.",
        default_text="none",
        default=(),
    )
    shutdown_timeout: float = setting(
        Group.SERVER,
        Number(0.0, 86_400.0),
        "Seconds that running requests may take to finish once the server is told to stop.",
        default=30.0,
    )
    body_limit: int | None = setting(
        Group.SERVER,
        Size(1024, 2**30),
        "The largest body of a request.",
        default_text="32 bytes for each token of the model's length, and at least 2MiB",
        default=None,
    )
    stall_timeout: float = setting(
        Group.SERVER,
        Number(0.0, 86_400.0, above=True),
        "Seconds without a forward pass, while requests wait, until /health says so.",
        default=10.0,
    )
    read_timeout: float = setting(
        Group.SERVER,
        Number(0.0, 86_400.0, above=True),
        "Seconds that a client may take nothing, with full buffers, before it is cut.",
        default=30.0,
    )
    sse_ping_interval: float = setting(
        Group.SERVER,
        Number(0.0, 3600.0, above=True),
        "Seconds between comments on a stream that waits, so that proxies keep it open.",
        default=15.0,
    )
    otlp_endpoint: str | None = setting(
        Group.SERVER,
        Text(1, 2048),
        "Where to send OpenTelemetry spans; needs the extra `otel`.",
        default=None,
    )


def known_serve_settings() -> tuple[Setting, ...]:
    """All settings of the server, in the order of their definition."""
    return defined_settings(ServeSettings)
