"""Every setting: one field each of `Settings` (the engine) or `ServeSettings` (the server).

Flags, environment names, the reference page and all checks come from these fields; the annotation
of a field has the form of its values. A file or an environment may hold both; commands that do not
serve ignore the server's. Frozen; any thread reads.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from jitney.config.combinations import refuse_conflicts
from jitney.config.definitions import Group, Setting, defined_settings, setting
from jitney.config.foreign_names import SYNONYMS
from jitney.config.forms import (
    MODEL,
    byte_size,
    number,
    one_of,
    origin_list,
    text_line,
    whole_number,
    word_list,
)
from jitney.config.machine import cache_folder, environment, jobs_folder
from jitney.config.policies import POLICY
from jitney.core import limits
from jitney.core.scheduler_settings import GroupAnswers, Mix, Policy, SchedulingPolicy, Strategy

BackendName = Literal["auto", "openvino", "llamacpp", "fake"]
Dtype = Literal["auto", "float32", "bfloat16"]
KvCacheDtype = Literal["auto", "uint8", "bfloat16", "float16", "float32"]
FlashAttention = Literal["auto", "on", "off"]
BatchInvariant = Literal["auto", "on", "off"]
PerSequence = Literal["overcommit", "even"]
PriorityNumbers = Literal["vllm", "levels"]

KV_TOKENS_DEFAULT = 16_384
"""`kv_tokens` when neither it nor `memory_limit` is given, unless `max_model_len` is larger."""

GPU_LAYERS_ALL = -1
"""`gpu_layers` for as many as there can be: where there is no GPU, none."""

BYTES_MAX = 2**50
JOBS_BYTES_DEFAULT = 16 * 2**30
NAME_MAX = 256
DAY_S = 86_400.0

Count = Annotated[int, whole_number(1, 4096)]
BatchTokens = Annotated[int, whole_number(1, 1_048_576)]
TokenCount = Annotated[int, whole_number(2, limits.TOKENS_MAX)]
Seconds = Annotated[float, number(0.0, DAY_S, above=True)]
Name = Annotated[str, text_line(1, NAME_MAX)]
Names = Annotated[tuple[str, ...], word_list(NAME_MAX)]


_model = partial(setting, Group.MODEL)
_batch = partial(setting, Group.BATCH)
_memory = partial(setting, Group.MEMORY)
_scheduling = partial(setting, Group.SCHEDULING)
_queue = partial(setting, Group.QUEUE)
_other = partial(setting, Group.OTHER)
_server = partial(setting, Group.SERVER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of the engine. The help of a field says what None means."""

    model: Annotated[Path, MODEL] | None = _model(
        "The model: a GGUF file, a name on the hub such as owner/name:Q8_0, or the folder of "
        "one exported for OpenVINO.",
        default_text="the embedded model",
        short="-m",
    )
    backend: BackendName = _model(
        "What runs the model. auto is OpenVINO if it knows the model, else llama.cpp. fake has no "
        "model: its next token is a hash.",
        default="auto",
    )
    dtype: Dtype = _model(
        "The number type that OpenVINO computes with. auto is bfloat16 if the processor has it and "
        "there are two threads or more, else float32 with rounded activations.",
        default="auto",
    )
    kv_cache_dtype: KvCacheDtype = _model(
        "The number type of OpenVINO's keys and values; auto is that of dtype.", default="auto"
    )
    backend_process: bool = _model(
        "Run the backend in its own process, which is restarted when it crashes.",
        default_text="true for jitney serve, jitney plan and jitney batch run, else false",
        default=False,
    )
    threads: Annotated[int, whole_number(1, 1024)] | None = _model(
        "Threads of the forward pass.", default_text="the usable cores", short="-t"
    )
    gpu_layers: Annotated[int, whole_number(GPU_LAYERS_ALL, 10_000)] = _model(
        "Layers of the model on the GPU, if llama.cpp was built for one; -1 is as many as there "
        "can be, and none without a GPU.",
        short="-ngl",
        default=0,
    )
    flash_attention: FlashAttention = _model(
        "Fused attention kernels; auto takes the faster choice.", default="auto"
    )
    batch_invariant: BatchInvariant = _model(
        "The same request gives the same text, whatever else is in the batch; auto is on if the "
        "backend can do it here.",
        default="auto",
    )
    max_num_seqs: Count = _batch(
        "Sequences that run at the same time: the number of slots.", short="-np", default=16
    )
    max_num_batched_tokens: BatchTokens = _batch(
        "The most tokens that one forward pass computes, over all sequences.",
        short="-b",
        default=2048,
    )
    prefill_chunk: BatchTokens = _batch(
        "The most prompt tokens of one sequence that one forward pass computes.",
        default_text="512, or max_num_batched_tokens if that is smaller",
        default=512,
    )
    max_model_len: TokenCount | None = _batch(
        "The longest sequence, prompt and completion together, in tokens.",
        default_text="what the model was made for, at most 4096 and kv_tokens",
    )
    kv_tokens: TokenCount | None = _memory(
        "The memory budget: tokens whose keys and values are kept, over all sequences.",
        default_text="enough for max_num_seqs of the longest sequences, within a quarter of the "
        f"free memory; {KV_TOKENS_DEFAULT} or max_model_len if that is not known",
        short="-c",
    )
    memory_limit: Annotated[int, byte_size(2**20, BYTES_MAX)] | None = _memory(
        "The memory budget in bytes of keys and values, in place of kv_tokens."
    )
    enable_prefix_caching: bool = _memory(
        "Keep finished sequences as prefixes for later requests while there is room.", default=True
    )
    max_per_sequence: PerSequence = _memory(
        "How long a sequence may become. overcommit allows max_model_len and preempts when memory "
        "runs out. even allows kv_tokens / max_num_seqs, so that memory never runs out.",
        default="overcommit",
    )
    watermark: Annotated[float, number(0.0, 0.5)] = _memory(
        "The share of the memory that stays free for running sequences to grow.", default=0.02
    )
    saved_limit: Annotated[int, byte_size(0, BYTES_MAX)] = _memory(
        "Bytes of RAM for the memory of preempted sequences; the others are recomputed.",
        default=2**30,
    )
    strategy: Annotated[Strategy, one_of(Strategy, Strategy, SYNONYMS["strategy"])] = _scheduling(
        "When requests may join: at every tick, or in groups.", default=Strategy.CONTINUOUS
    )
    policy: Annotated[Policy | SchedulingPolicy, POLICY] = _scheduling(
        "Which request is next: the oldest, the highest class, the shortest, a fair share per "
        "tenant, or the choice of your own SchedulingPolicy.",
        default=Policy.FIFO,
    )
    mix: Mix = _scheduling(
        "How the tokens of a tick are split between running sequences and new prompts.",
        default=Mix.BOUNDED_STALL,
    )
    enable_preemption: bool = _scheduling(
        "Under the policy priority, let a request of a higher class take the place of a running "
        "one. When memory runs out, sequences are preempted in any case.",
        default=True,
    )
    max_wait_ms: Annotated[float, number(0.0, 60_000.0)] | None = _scheduling(
        "How long new requests are collected before they join, or a group waits to fill up.",
        default_text="0 under continuous, 50 under dynamic and adaptive; under static no limit: a "
        "group waits for exactly max_num_seqs requests",
    )
    min_batch_size: Count = _scheduling(
        "So many requests start before max_wait_ms has passed, under every strategy but static. 1 "
        "means as many as have a slot.",
        default=1,
    )
    group_answers: GroupAnswers = _scheduling(
        "Give the answers of a group together when its last one ends, or each when it ends.",
        default=GroupAnswers.TOGETHER,
    )
    prefill_batch_size: Count | None = _scheduling(
        "Under the mix separate, the most prompts that one tick computes.",
        default_text="as many as fit max_num_batched_tokens",
    )
    decode_batch_size: Count | None = _scheduling(
        "Under the mix separate, the most sequences that one tick generates for.",
        default_text="all",
    )
    target_stall_ms: Annotated[float, number(0.0, 60_000.0, above=True)] = _scheduling(
        "The longest time between tokens that the mixes bounded-stall and separate aim at. Where "
        "decodes alone take over half of it, bounded-stall allows twice their time. When a tick "
        "takes longer, the strategy adaptive makes its groups smaller.",
        default=100.0,
    )
    overtake_s: Annotated[float, number(0.0, DAY_S)] = _scheduling(
        "Under every policy, a request that came more than this later does not overtake.",
        default=30.0,
    )
    max_num_queued_reqs: Annotated[int, whole_number(1, 1_000_000)] = _queue(
        "Requests that may wait; a further one is refused with the time to try again.", default=1024
    )
    max_num_queued_tokens: TokenCount = _queue(
        "Prompt tokens that may wait, over all requests.", default=1_000_000
    )
    queue_timeout_s: Seconds | None = _queue(
        "How long a request may wait for its first tick.", default_text="no limit"
    )
    request_timeout_s: Seconds | None = _queue(
        "How long a request may take from arrival to its end.", default_text="no limit"
    )
    seed: Annotated[int, whole_number(0, limits.SEED_MAX)] | None = _other(
        "The source of seeds for requests without their own.",
        default_text="a new one at each start",
    )
    log_batch_composition: bool = _other(
        "Log the content of each batch, one line per tick.", default=False
    )
    cache_dir: Path = _other(
        "The folder for converted models.",
        default_text="jitney in $XDG_CACHE_HOME, or in ~/.cache",
        default_factory=lambda: cache_folder(environment()),
    )

    def __post_init__(self) -> None:
        values = {each.name: each.read(getattr(self, each.name)) for each in known_settings()}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        refuse_conflicts(values, {})


def known_settings() -> tuple[Setting, ...]:
    """All settings of the engine, in order."""
    return defined_settings(Settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """All settings of the server. `resolve` checks them."""

    host: Name = _server(
        "The address to listen on; 0.0.0.0 is every address of this machine.", default="127.0.0.1"
    )
    port: Annotated[int, whole_number(0, 65_535)] = _server(
        "The port to listen on; 0 takes a free one.", default=8000
    )
    replicas: Annotated[int, whole_number(1, 1024)] | None = _server(
        "Engines behind this one address, on Ray Serve. A request whose replica dies goes on with "
        "another.",
        default_text="none: one engine, without Ray",
    )
    max_replicas: Annotated[int, whole_number(1, 1024)] | None = _server(
        "The most replicas: from `replicas` up to this many run, as slots and waits demand.",
        default_text="as many as replicas",
    )
    ray_address: Name | None = _server(
        "The Ray cluster that replicas run on, such as auto or HOST:6379.",
        default_text="Ray is started on this machine alone",
    )
    served_model_name: Names = _server(
        "The names of the model for callers; replies have the first one.",
        default_text="the name of its file",
        default=(),
    )
    api_key: Annotated[tuple[str, ...], word_list(NAME_MAX, "KEY,...")] = _server(
        "Keys; a caller must send one of them. Others on this machine can see a flag in `ps`: use "
        "JITNEY_API_KEY or a key file.",
        default_text="none: everyone may call",
        is_secret=True,
        default=(),
    )
    api_key_file: Path | None = _server(
        "A YAML file of keys with names, rates, priorities and cache scopes; "
        "docs/reference/config.md shows one."
    )
    allowed_host: Names = _server(
        "Names that the Host header may have; `*` is any. Without keys, a server on a loopback "
        "address always accepts the names of this machine.",
        default_text="any; without keys on a loopback address, those of this machine",
        default=(),
    )
    cors_origin: Annotated[tuple[str, ...], origin_list(NAME_MAX)] = _server(
        "Origins whose pages may call from a browser, such as https://app.example; `*` is any.",
        default_text="none",
        default=(),
    )
    shutdown_timeout: Annotated[float, number(0.0, DAY_S)] = _server(
        "Seconds that running requests have to finish when the server stops.", default=30.0
    )
    body_limit: Annotated[int, byte_size(1024, 2**30)] | None = _server(
        "The largest body of a request.",
        default_text="32 bytes for each token of the model's length, and at least 2MiB",
    )
    strict: bool = _server(
        "Refuse also those unknown fields of a body that could not change an answer; otherwise "
        "they are ignored, and a header of the response names them.",
        default=False,
    )
    stall_timeout: Seconds = _server(
        "Seconds without a forward pass, while requests wait, until /health reports it.",
        default=10.0,
    )
    read_timeout: Seconds = _server(
        "Seconds that a client may read nothing, with full buffers, before it is cut off.",
        default=30.0,
    )
    priority_numbers: PriorityNumbers | None = _server(
        "Whose numbers the priorities of calls are. vllm: 0 is normal, -1 high, below that "
        "critical, above 0 low. levels: 0 is low, 1 normal, 2 high, 3 critical. Names need "
        "neither.",
        default_text="a number that the two read differently is refused where priorities count",
    )
    enable_metrics: bool = _server("Whether there is a /metrics for Prometheus.", default=True)
    otlp_endpoint: Annotated[str, text_line(1, 2048)] | None = _server(
        "Where to send OpenTelemetry spans; needs the extra `otel`."
    )
    jobs_dir: Path | None = _server(
        "The folder for files and batches, as OpenAI has them. One server uses it at a time. It is "
        "made for the first file. With none, there are no files and batches.",
        default_text="jitney/jobs in $XDG_STATE_HOME, or in ~/.local/state",
        default_factory=lambda: jobs_folder(environment()),
    )
    jobs_disk_limit: Annotated[int, byte_size(2**20, BYTES_MAX)] = _server(
        "The most bytes of the disk for files and batches; beyond it, files are refused and "
        "batches pause.",
        default=JOBS_BYTES_DEFAULT,
    )


def known_serve_settings() -> tuple[Setting, ...]:
    """All settings of the server, in order."""
    return defined_settings(ServeSettings)
