"""Every setting: `Settings` of the engine and `ServeSettings` of the server, one field each.

Flags, environment names, the reference page and every check are derived from these fields, so
there is nothing to keep in step. A file or an environment may hold both; commands that do not
serve ignore those of the server. Frozen; read by any thread.
"""

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from jitney.config.combinations import find_conflict
from jitney.config.definitions import Group, Setting, defined_settings, read_again, setting
from jitney.config.forms import (
    Location,
    ModelPlace,
    Number,
    OneOf,
    Origins,
    Size,
    Switch,
    Text,
    Whole,
    Words,
)
from jitney.config.machine import cache_folder, environment
from jitney.config.policies import PolicyForm
from jitney.config.words import SYNONYMS
from jitney.core import limits
from jitney.core.policy import SchedulingPolicy
from jitney.core.scheduler_settings import GroupAnswers, Mix, Policy, Strategy
from jitney.errors import ConfigError

BackendName = Literal["auto", "openvino", "llamacpp", "fake"]
Dtype = Literal["auto", "float32", "bfloat16"]
KvCacheDtype = Literal["auto", "uint8", "bfloat16", "float16", "float32"]
FlashAttention = Literal["auto", "on", "off"]
BatchInvariant = Literal["auto", "on", "off"]
PerSequence = Literal["overcommit", "even"]

KV_TOKENS_DEFAULT = 16_384
"""`kv_tokens` when neither it nor `memory_limit` is given, unless `max_model_len` is larger."""

BYTES_MAX = 2**50
NAME_MAX = 256
DAY_S = 86_400.0


_model = partial(setting, Group.MODEL)
_batch = partial(setting, Group.BATCH)
_memory = partial(setting, Group.MEMORY)
_scheduling = partial(setting, Group.SCHEDULING)
_queue = partial(setting, Group.QUEUE)
_other = partial(setting, Group.OTHER)
_server = partial(setting, Group.SERVER)


def _tokens(lowest: int = 1) -> Whole:
    return Whole(lowest, limits.TOKENS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, resolved. None means what the field's help says it means."""

    model: Path | None = _model(
        ModelPlace(),
        "The model: a GGUF file, a name on the hub such as owner/name:Q8_0, or the folder of "
        "one exported for OpenVINO.",
        default_text="the embedded model",
    )
    backend: BackendName = _model(
        OneOf(get_args(BackendName)),
        "What runs the model; auto is OpenVINO where it knows the model and llama.cpp "
        "elsewhere, and fake has no model: its next token is a hash.",
        default="auto",
    )
    dtype: Dtype = _model(
        OneOf(get_args(Dtype)),
        "Numbers that OpenVINO computes with; auto is bfloat16 where the processor has it and "
        "there are two threads or more, and float32 with rounded activations elsewhere.",
        default="auto",
    )
    kv_cache_dtype: KvCacheDtype = _model(
        OneOf(get_args(KvCacheDtype)),
        "Numbers that OpenVINO keeps keys and values as; auto is that of dtype.",
        default="auto",
    )
    backend_process: bool = _model(
        Switch(),
        "Run the backend in a process of its own, which is restarted when it crashes.",
        default_text="true for jitney serve, else false",
        default=False,
    )
    threads: int | None = _model(
        Whole(1, 1024), "Threads of the forward pass.", default_text="the usable cores"
    )
    gpu_layers: int = _model(
        Whole(-1, 10_000),
        "Layers of the model to put on a GPU, if llama.cpp was built for one; -1 is all.",
        default=0,
    )
    flash_attention: FlashAttention = _model(
        OneOf(get_args(FlashAttention)),
        "Fused attention kernels; auto takes the faster ones.",
        default="auto",
    )
    batch_invariant: BatchInvariant = _model(
        OneOf(get_args(BatchInvariant)),
        "The same request gives the same text, whatever else is in the batch; auto is on where "
        "the backend can do it here.",
        default="auto",
    )
    max_num_seqs: int = _batch(
        Whole(1, 4096), "Sequences that run at the same time: the number of slots.", default=16
    )
    max_num_batched_tokens: int = _batch(
        Whole(1, 1_048_576),
        "Tokens that one forward pass computes at most, over all sequences.",
        default=2048,
    )
    prefill_chunk: int = _batch(
        Whole(1, 1_048_576),
        "Prompt tokens of one sequence that one forward pass computes at most.",
        default_text="512, or max_num_batched_tokens where that is smaller",
        default=512,
    )
    max_model_len: int | None = _batch(
        _tokens(2),
        "The longest sequence, prompt and completion together, in tokens.",
        default_text="what the model was made for, at most 4096 and kv_tokens",
    )
    kv_tokens: int | None = _memory(
        _tokens(2),
        "The memory budget: tokens whose keys and values are kept, over all sequences.",
        default_text="as many of the longest sequences as may run, within a quarter of the "
        f"free memory; {KV_TOKENS_DEFAULT} or max_model_len where that is not known",
    )
    memory_limit: int | None = _memory(
        Size(2**20, BYTES_MAX),
        "The memory budget in bytes of keys and values, in place of kv_tokens.",
    )
    enable_prefix_caching: bool = _memory(
        Switch(),
        "Keep finished sequences as prefixes for later requests while there is room.",
        default=True,
    )
    cache_tokens: int | None = _memory(
        _tokens(),
        "Tokens that idle cached prefixes may hold at most.",
        default_text="whatever is free",
    )
    max_per_sequence: PerSequence = _memory(
        OneOf(get_args(PerSequence)),
        "How long a sequence may become: overcommit lets any reach max_model_len and preempts "
        "when memory runs out; even allows kv_tokens / max_num_seqs, so that it never does.",
        default="overcommit",
    )
    watermark: float = _memory(
        Number(0.0, 0.5),
        "Share of the memory that admission leaves free, so that running sequences can grow.",
        default=0.02,
    )
    saved_limit: int = _memory(
        Size(0, BYTES_MAX),
        "Bytes of RAM for the memory of preempted sequences; beyond it they are recomputed.",
        default=2**30,
    )
    strategy: Strategy = _scheduling(
        OneOf(tuple(Strategy), Strategy, SYNONYMS["strategy"]),
        "When requests may join: at every tick, or in groups.",
        default=Strategy.CONTINUOUS,
    )
    policy: Policy | SchedulingPolicy = _scheduling(
        PolicyForm(),
        "Who is next: first come, class, shortest work, a fair share per tenant, or whoever a "
        "SchedulingPolicy of one's own says.",
        default=Policy.FIFO,
    )
    mix: Mix = _scheduling(
        OneOf(tuple(Mix), Mix),
        "How the tokens of a tick are split between running sequences and new prompts.",
        default=Mix.BOUNDED_STALL,
    )
    enable_preemption: bool = _scheduling(
        Switch(),
        "Let a request of a higher class take the place of a running one under the policy "
        "priority; when memory runs out, sequences are preempted all the same.",
        default=True,
    )
    max_wait_ms: float | None = _scheduling(
        Number(0.0, 60_000.0),
        "How long newcomers are gathered before they join, or a group waits to fill up.",
        default_text="0 under continuous, 50 under dynamic and adaptive, 1000 under static",
    )
    window_size: int | None = _scheduling(
        Whole(1, 4096),
        "Requests that end the window of max_wait_ms early under continuous.",
        default_text="as many as there are free places",
    )
    min_batch_size: int = _scheduling(
        Whole(1, 4096),
        "The fewest requests that depart together before max_wait_ms has passed, where a group "
        "of adaptive or window_size is smaller.",
        default=1,
    )
    wait_until_full: bool = _scheduling(
        Switch(),
        "Let a static group wait for exactly max_num_seqs requests, for ever if need be; those "
        "whom a key's share holds back count.",
        default=False,
    )
    group_answers: GroupAnswers = _scheduling(
        OneOf(tuple(GroupAnswers), GroupAnswers),
        "Hand out the answers of a group together when its last one ends, or each when it ends.",
        default=GroupAnswers.TOGETHER,
    )
    prefill_batch_size: int | None = _scheduling(
        Whole(1, 4096),
        "Prompts that one tick computes at most under the mix separate.",
        default_text="what max_num_batched_tokens holds",
    )
    decode_batch_size: int | None = _scheduling(
        Whole(1, 4096),
        "Sequences that one tick generates for at most under the mix separate.",
        default_text="all",
    )
    target_stall_ms: float = _scheduling(
        Number(0.0, 60_000.0, above=True),
        "The time between tokens that the mixes bounded-stall and separate keep to.",
        default=100.0,
    )
    target_tick_ms: float = _scheduling(
        Number(0.0, 60_000.0, above=True),
        "The time of a tick above which the strategy adaptive makes its groups smaller.",
        default=100.0,
    )
    overtake_s: float = _scheduling(
        Number(0.0, DAY_S),
        "No request is overtaken by one that came more than this later, whatever the policy.",
        default=30.0,
    )
    max_num_queued_reqs: int = _queue(
        Whole(1, 1_000_000),
        "Requests that may wait; one more is refused and told when to try again.",
        default=1024,
    )
    max_num_queued_tokens: int = _queue(
        _tokens(2), "Prompt tokens that may wait, over all requests.", default=1_000_000
    )
    queue_timeout_s: float | None = _queue(
        Number(0.0, DAY_S, above=True),
        "How long a request may wait for its first tick.",
        default_text="no limit",
    )
    request_timeout_s: float | None = _queue(
        Number(0.0, DAY_S, above=True),
        "How long a request may take from arrival to its end.",
        default_text="no limit",
    )
    seed: int | None = _other(
        Whole(0, limits.SEED_MAX),
        "Where the seeds of requests that bring none are drawn from.",
        default_text="a new one at each start",
    )
    log_batch_composition: bool = _other(
        Switch(), "Log what is in each batch, one line per tick.", default=False
    )
    cache_dir: Path = _other(
        Location(),
        "Where models made ready for use are kept.",
        default_text="jitney in $XDG_CACHE_HOME, or in ~/.cache",
        default_factory=lambda: cache_folder(environment()),
    )

    def __post_init__(self) -> None:
        read_again(self)
        conflict = find_conflict({each.name: getattr(self, each.name) for each in fields(self)})
        if conflict is not None:
            raise ConfigError(conflict.message)


def known_settings() -> tuple[Setting, ...]:
    """All settings of the engine, in the order of their definition."""
    return defined_settings(Settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """All settings of the server, resolved. Checked when they are read."""

    host: str = _server(
        Text(1, NAME_MAX),
        "The address to listen on; 0.0.0.0 is every one that this machine has.",
        default="127.0.0.1",
    )
    port: int = _server(
        Whole(0, 65_535), "The port to listen on; 0 takes a free one.", default=8000
    )
    served_model_name: tuple[str, ...] = _server(
        Words(NAME_MAX),
        "What callers call the model; the first name is the one that replies carry.",
        default_text="the name of its file",
        default=(),
    )
    api_key: tuple[str, ...] = _server(
        Words(NAME_MAX),
        "Keys that callers must send one of.",
        default_text="none: everyone may call",
        is_secret=True,
        default=(),
    )
    api_key_file: Path | None = _server(
        Location(),
        "A YAML file of keys with names, rates, priorities and cache scopes; "
        "docs/reference/config.md shows one.",
    )
    allowed_host: tuple[str, ...] = _server(
        Words(NAME_MAX),
        "Names that the server may be called by in the Host header; `*` is any. Without keys, "
        "a server on a loopback address always answers to the names of this machine.",
        default_text="any; without keys on a loopback address, those of this machine",
        default=(),
    )
    cors_origin: tuple[str, ...] = _server(
        Origins(NAME_MAX),
        "Origins whose pages may call from a browser, such as https://app.example; `*` is any.",
        default_text="none",
        default=(),
    )
    shutdown_timeout: float = _server(
        Number(0.0, 86_400.0),
        "Seconds that running requests may take to finish once the server is told to stop.",
        default=30.0,
    )
    body_limit: int | None = _server(
        Size(1024, 2**30),
        "The largest body of a request.",
        default_text="32 bytes for each token of the model's length, and at least 2MiB",
    )
    stall_timeout: float = _server(
        Number(0.0, 86_400.0, above=True),
        "Seconds without a forward pass, while requests wait, until /health says so.",
        default=10.0,
    )
    read_timeout: float = _server(
        Number(0.0, 86_400.0, above=True),
        "Seconds that a client may take nothing, with full buffers, before it is cut.",
        default=30.0,
    )
    sse_ping_interval: float = _server(
        Number(0.0, 3600.0, above=True),
        "Seconds between comments on a stream that waits, so that proxies keep it open.",
        default=15.0,
    )
    otlp_endpoint: str | None = _server(
        Text(1, 2048), "Where to send OpenTelemetry spans; needs the extra `otel`."
    )


def known_serve_settings() -> tuple[Setting, ...]:
    """All settings of the server, in the order of their definition."""
    return defined_settings(ServeSettings)
