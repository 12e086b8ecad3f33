"""Every setting: one field each of `Settings` (the engine) or `ServeSettings` (the server).

Flags, environment names, the reference page and all checks come from these fields: the text below a
field is its help, and its annotation has the form of its values. A file or an environment may hold
both; commands that do not serve ignore the server's. Frozen; any thread reads.
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

BackendName = Literal["auto", "torch", "openvino", "llamacpp", "fake"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KvCacheDtype = Literal["auto", "fp8", "uint8", "q8_0", "bfloat16", "float16", "float32"]
Quantization = Literal["fp8", "int8"]
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

    model: Annotated[Path, MODEL] | None = _model(default_text="the embedded model", short="-m")
    """The model: a GGUF file, a name on the hub such as owner/name:Q8_0, or a folder: one with
    safetensors for PyTorch, or one exported for OpenVINO."""
    backend: BackendName = _model(default="auto")
    """What runs the model. auto is PyTorch on an NVIDIA GPU, else OpenVINO if it knows the model,
    else llama.cpp. fake has no model: its next token is a hash."""
    script: Path | None = _model(default_text="none: the tokens of fake are hashes")
    """For the backend fake: the file of its answers, one line of JSON for each; docs/agents.md."""
    dtype: Dtype = _model(default="auto")
    """The number type that OpenVINO or PyTorch computes with. auto is bfloat16 on a GPU, or if the
    processor has it, else float32. OpenVINO rounds activations then, and wants two threads for
    bfloat16. float16 is for PyTorch."""
    kv_cache_dtype: KvCacheDtype = _model(default="auto")
    """The number type of keys and values; auto is that of dtype, and float16 in llama.cpp. fp8 is
    for PyTorch, uint8 for OpenVINO and q8_0 for llama.cpp: they take about half the memory of
    16 bits. On a CPU, prompts are slower with q8_0."""
    quantization: Quantization | None = _model(default_text="none: the type is that of dtype")
    """The number type of the weights of layers in PyTorch. fp8 and int8 take half the memory of
    bfloat16 and change texts slightly. A GPU needs compute capability 8.9 for fp8; a CPU is slower
    with them."""
    backend_process: bool = _model(
        default_text="true for jitney serve, jitney plan and jitney batch run, else false",
        default=False,
    )
    """Run the backend in its own process, which is restarted when it crashes."""
    threads: Annotated[int, whole_number(1, 1024)] | None = _model(
        default_text="the usable cores", short="-t"
    )
    """Threads of the forward pass."""
    gpu_layers: Annotated[int, whole_number(GPU_LAYERS_ALL, 10_000)] = _model(
        short="-ngl", default=0
    )
    """Layers of the model on the GPU, if llama.cpp was built for one; -1 is as many as there can
    be, and none without a GPU."""
    flash_attention: FlashAttention = _model(default="auto")
    """Fused attention kernels; auto takes the faster choice."""
    batch_invariant: BatchInvariant = _model(default="auto")
    """The same request gives the same text, whatever else is in the batch; auto is on if the
    backend can do it here, but off for PyTorch on a GPU, where it takes time."""
    max_num_seqs: Count = _batch(short="-np", default=16)
    """Sequences that run at the same time: the number of slots."""
    max_num_batched_tokens: BatchTokens = _batch(short="-b", default=2048)
    """The most tokens that one forward pass computes, over all sequences."""
    prefill_chunk: BatchTokens = _batch(
        default_text="512, or max_num_batched_tokens if that is smaller", default=512
    )
    """The most prompt tokens of one sequence that one forward pass computes."""
    max_model_len: TokenCount | None = _batch(
        default_text="what the model was made for, at most what kv_tokens hold"
    )
    """The longest sequence, prompt and completion together, in tokens."""
    kv_tokens: TokenCount | None = _memory(
        default_text="enough for max_num_seqs sequences of max_model_len, or without that of 4096 "
        "tokens and for one as long as the model can, within a quarter of the free memory; "
        f"{KV_TOKENS_DEFAULT} or max_model_len if that is not known",
        short="-c",
    )
    """The memory budget: tokens whose keys and values are kept, over all sequences."""
    memory_limit: Annotated[int, byte_size(2**20, BYTES_MAX)] | None = _memory()
    """The memory budget in bytes of keys and values, in place of kv_tokens."""
    enable_prefix_caching: bool = _memory(default=True)
    """Keep finished sequences as prefixes for later requests while there is room."""
    max_per_sequence: PerSequence = _memory(default="overcommit")
    """How long a sequence may become. overcommit allows max_model_len and preempts when memory runs
    out. even allows kv_tokens / max_num_seqs, so that memory never runs out."""
    watermark: Annotated[float, number(0.0, 0.5)] = _memory(default=0.02)
    """The share of the memory that stays free for running sequences to grow."""
    gpu_memory_utilization: Annotated[float, number(0.05, 1.0)] = _memory(default=0.9)
    """The share of a GPU's memory that PyTorch uses there, weights included. What is left beside
    them and the largest pass holds keys and values, unless kv_tokens or memory_limit is given."""
    saved_limit: Annotated[int, byte_size(0, BYTES_MAX)] = _memory(default=2**30)
    """Bytes of RAM for the memory of preempted sequences; the others are recomputed. On a GPU
    PyTorch may take twice as much: it rounds pinned memory up to powers of two."""
    prefix_cache_dir: Path | None = _memory(default_text="none: prefixes are in memory only")
    """A folder for the keys and values of long prompts, so that they are warm after a restart, on
    other machines like this one too. The files hold prompts as tokens, for their user only."""
    prefix_cache_limit: Annotated[int, byte_size(2**20, BYTES_MAX)] = _memory(default=10 * 2**30)
    """The most bytes of files in prefix_cache_dir. Beyond it the least recently used go."""
    strategy: Annotated[Strategy, one_of(Strategy, Strategy, SYNONYMS["strategy"])] = _scheduling(
        default=Strategy.CONTINUOUS
    )
    """When requests may join: at every tick, or in groups."""
    policy: Annotated[Policy | SchedulingPolicy, POLICY] = _scheduling(default=Policy.FIFO)
    """Which request is next: the oldest, the highest class, the shortest, a fair share per tenant,
    or the choice of your own SchedulingPolicy."""
    mix: Mix = _scheduling(default=Mix.BOUNDED_STALL)
    """How the tokens of a tick are split between running sequences and new prompts."""
    enable_preemption: bool = _scheduling(default=True)
    """Under the policy priority, let a request of a higher class take the place of a running one.
    When memory runs out, sequences are preempted in any case."""
    max_wait_ms: Annotated[float, number(0.0, 60_000.0)] | None = _scheduling(
        default_text="0 under continuous, 50 under dynamic and adaptive; under static no limit: a "
        "group waits for exactly max_num_seqs requests"
    )
    """How long new requests are collected before they join, or a group waits to fill up."""
    min_batch_size: Count = _scheduling(default=1)
    """So many requests start before max_wait_ms has passed, under every strategy but static. 1
    means as many as have a slot."""
    group_answers: GroupAnswers = _scheduling(default=GroupAnswers.TOGETHER)
    """Give the answers of a group together when its last one ends, or each when it ends."""
    prefill_batch_size: Count | None = _scheduling(
        default_text="as many as fit max_num_batched_tokens"
    )
    """Under the mix separate, the most prompts that one tick computes."""
    decode_batch_size: Count | None = _scheduling(default_text="all")
    """Under the mix separate, the most sequences that one tick generates for."""
    target_stall_ms: Annotated[float, number(0.0, 60_000.0, above=True)] = _scheduling(
        default=100.0
    )
    """The longest time between tokens that the mixes bounded-stall and separate aim at. Where
    decodes alone take over half of it, bounded-stall allows twice their time. When a tick takes
    longer, the strategy adaptive makes its groups smaller."""
    overtake_s: Annotated[float, number(0.0, DAY_S)] = _scheduling(default=30.0)
    """Under every policy, a request that came more than this later does not overtake."""
    max_num_queued_reqs: Annotated[int, whole_number(1, 1_000_000)] = _queue(default=1024)
    """Requests that may wait; a further one is refused with the time to try again."""
    max_num_queued_tokens: TokenCount = _queue(default=1_000_000)
    """Prompt tokens that may wait, over all requests."""
    queue_timeout_s: Seconds | None = _queue(default_text="no limit")
    """How long a request may wait for its first tick."""
    request_timeout_s: Seconds | None = _queue(default_text="no limit")
    """How long a request may take from arrival to its end."""
    seed: Annotated[int, whole_number(0, limits.SEED_MAX)] | None = _other(
        default_text="a new one at each start"
    )
    """The source of seeds for requests without their own."""
    log_batch_composition: bool = _other(default=False)
    """Log the content of each batch, one line per tick."""
    cache_dir: Path = _other(
        default_text="jitney in $XDG_CACHE_HOME, or in ~/.cache",
        default_factory=lambda: cache_folder(environment()),
    )
    """The folder for converted models."""

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

    host: Name = _server(default="127.0.0.1")
    """The address to listen on; 0.0.0.0 is every address of this machine."""
    port: Annotated[int, whole_number(0, 65_535)] = _server(default=8000)
    """The port to listen on; 0 takes a free one."""
    replicas: Annotated[int, whole_number(1, 1024)] | None = _server(
        default_text="none: one engine, without Ray"
    )
    """Engines behind this one address, on Ray Serve. A request whose replica dies goes on with
    another."""
    max_replicas: Annotated[int, whole_number(1, 1024)] | None = _server(
        default_text="as many as replicas"
    )
    """The most replicas: from `replicas` up to this many run, as slots and waits demand."""
    ray_address: Name | None = _server(default_text="Ray is started on this machine alone")
    """The Ray cluster that replicas run on, such as auto or HOST:6379."""
    served_model_name: Names = _server(default_text="the name of its file", default=())
    """The names of the model for callers; replies have the first one."""
    api_key: Annotated[tuple[str, ...], word_list(NAME_MAX, "KEY,...")] = _server(
        default_text="none: everyone may call", is_secret=True, default=()
    )
    """Keys; a caller must send one of them. Others on this machine can see a flag in `ps`: use
    JITNEY_API_KEY or a key file."""
    api_key_file: Path | None = _server()
    """A YAML file of keys with names, rates, priorities and cache scopes; docs/reference/config.md
    shows one."""
    allowed_host: Names = _server(
        default_text="any; without keys on a loopback address, those of this machine", default=()
    )
    """Names that the Host header may have; `*` is any. Without keys, a server on a loopback address
    always accepts the names of this machine."""
    cors_origin: Annotated[tuple[str, ...], origin_list(NAME_MAX)] = _server(
        default_text="none", default=()
    )
    """Origins whose pages may call from a browser, such as https://app.example; `*` is any."""
    shutdown_timeout: Annotated[float, number(0.0, DAY_S)] = _server(default=30.0)
    """Seconds that running requests have to finish when the server stops."""
    body_limit: Annotated[int, byte_size(1024, 2**30)] | None = _server(
        default_text="32 bytes for each token of the model's length, and at least 2MiB"
    )
    """The largest body of a request."""
    strict: bool = _server(default=False)
    """Refuse also those unknown fields of a body that could not change an answer; otherwise they
    are ignored, and a header of the response names them."""
    priority_numbers: PriorityNumbers | None = _server(
        default_text="a number that the two read differently is refused where priorities count"
    )
    """Whose numbers the priorities of calls are. vllm: 0 is normal, -1 high, below that critical,
    above 0 low. levels: 0 is low, 1 normal, 2 high, 3 critical. Names need neither."""
    enable_metrics: bool = _server(default=True)
    """Whether there is a /metrics for Prometheus."""
    otlp_endpoint: Annotated[str, text_line(1, 2048)] | None = _server()
    """Where to send OpenTelemetry spans; needs the extra `otel`."""
    jobs_dir: Path | None = _server(
        default_text="jitney/jobs in $XDG_STATE_HOME, or in ~/.local/state",
        default_factory=lambda: jobs_folder(environment()),
    )
    """The folder for files and batches, as OpenAI has them. One server uses it at a time. It is
    made for the first file. With none, there are no files and batches."""
    jobs_disk_limit: Annotated[int, byte_size(2**20, BYTES_MAX)] = _server(
        default=JOBS_BYTES_DEFAULT
    )
    """The most bytes of the disk for files and batches; beyond it, files are refused and batches
    pause."""


def known_serve_settings() -> tuple[Setting, ...]:
    """All settings of the server, in order."""
    return defined_settings(ServeSettings)
