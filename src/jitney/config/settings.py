"""Every setting of jitney: `Settings`, one field each, with its help, bounds and other names.

Flags, environment names, the reference page and every check are derived from these fields, so
there is nothing to keep in step. Frozen; checked at construction; read by any thread.
"""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, get_args

from jitney.config.combinations import find_refusal
from jitney.config.forms import Choice, Location, ModelPlace, Number, Size, Switch, Whole
from jitney.config.known import Known, known_fields, read_again
from jitney.config.machine import cache_folder, environment
from jitney.config.options import Group, about
from jitney.config.policies import PolicyForm
from jitney.config.words import SYNONYMS
from jitney.core import limits
from jitney.core.policy import SchedulingPolicy
from jitney.core.settings import GroupAnswers, Mix, Policy, Strategy
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
DAY_S = 86_400.0


def _tokens(lowest: int = 1) -> Whole:
    return Whole(lowest, limits.TOKENS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, resolved. None means what the field's help says it means."""

    model: Path | None = field(
        default=None,
        metadata=about(
            Group.MODEL,
            ModelPlace(),
            "The model: a GGUF file, a name on the hub such as owner/name:Q8_0, or the folder of "
            "one exported for OpenVINO.",
            default_text="the embedded model",
        ),
    )
    backend: BackendName = field(
        default="auto",
        metadata=about(
            Group.MODEL,
            Choice(get_args(BackendName)),
            "What runs the model; auto is OpenVINO where it knows the model and llama.cpp "
            "elsewhere, and fake has no model: its next token is a hash.",
        ),
    )
    dtype: Dtype = field(
        default="auto",
        metadata=about(
            Group.MODEL,
            Choice(get_args(Dtype)),
            "Numbers that OpenVINO computes with; auto is bfloat16 where the processor has it and "
            "there are two threads or more, and float32 with rounded activations elsewhere.",
        ),
    )
    kv_cache_dtype: KvCacheDtype = field(
        default="auto",
        metadata=about(
            Group.MODEL,
            Choice(get_args(KvCacheDtype)),
            "Numbers that OpenVINO keeps keys and values as; auto is that of dtype.",
        ),
    )
    backend_process: bool = field(
        default=False,
        metadata=about(
            Group.MODEL,
            Switch(),
            "Run the backend in a process of its own, which is restarted when it crashes.",
            default_text="true for jitney serve, else false",
        ),
    )
    threads: int | None = field(
        default=None,
        metadata=about(
            Group.MODEL,
            Whole(1, 1024),
            "Threads of the forward pass.",
            default_text="the usable cores",
        ),
    )
    gpu_layers: int = field(
        default=0,
        metadata=about(
            Group.MODEL,
            Whole(-1, 10_000),
            "Layers of the model to put on a GPU, if llama.cpp was built for one; -1 is all.",
        ),
    )
    flash_attention: FlashAttention = field(
        default="auto",
        metadata=about(
            Group.MODEL,
            Choice(get_args(FlashAttention)),
            "Fused attention kernels; auto takes the faster ones.",
        ),
    )
    batch_invariant: BatchInvariant = field(
        default="auto",
        metadata=about(
            Group.MODEL,
            Choice(get_args(BatchInvariant)),
            "The same request gives the same text, whatever else is in the batch; auto is on where "
            "the backend can do it here.",
        ),
    )
    max_num_seqs: int = field(
        default=16,
        metadata=about(
            Group.BATCH,
            Whole(1, 4096),
            "Sequences that run at the same time: the number of slots.",
        ),
    )
    max_num_batched_tokens: int = field(
        default=2048,
        metadata=about(
            Group.BATCH,
            Whole(1, 1_048_576),
            "Tokens that one forward pass computes at most, over all sequences.",
        ),
    )
    prefill_chunk: int = field(
        default=512,
        metadata=about(
            Group.BATCH,
            Whole(1, 1_048_576),
            "Prompt tokens of one sequence that one forward pass computes at most.",
            default_text="512, or max_num_batched_tokens where that is smaller",
        ),
    )
    max_model_len: int | None = field(
        default=None,
        metadata=about(
            Group.BATCH,
            _tokens(2),
            "The longest sequence, prompt and completion together, in tokens.",
            default_text="what the model was made for, at most 4096 and kv_tokens",
        ),
    )
    kv_tokens: int | None = field(
        default=None,
        metadata=about(
            Group.MEMORY,
            _tokens(2),
            "The memory budget: tokens whose keys and values are kept, over all sequences.",
            default_text="as many of the longest sequences as may run, within a quarter of the "
            f"free memory; {KV_TOKENS_DEFAULT} or max_model_len where that is not known",
        ),
    )
    memory_limit: int | None = field(
        default=None,
        metadata=about(
            Group.MEMORY,
            Size(2**20, BYTES_MAX),
            "The memory budget in bytes of keys and values, in place of kv_tokens.",
        ),
    )
    enable_prefix_caching: bool = field(
        default=True,
        metadata=about(
            Group.MEMORY,
            Switch(),
            "Keep finished sequences as prefixes for later requests while there is room.",
        ),
    )
    cache_tokens: int | None = field(
        default=None,
        metadata=about(
            Group.MEMORY,
            _tokens(),
            "Tokens that idle cached prefixes may hold at most.",
            default_text="whatever is free",
        ),
    )
    max_per_sequence: PerSequence = field(
        default="overcommit",
        metadata=about(
            Group.MEMORY,
            Choice(get_args(PerSequence)),
            "How long a sequence may become: overcommit lets any reach max_model_len and preempts "
            "when memory runs out; even allows kv_tokens / max_num_seqs, so that it never does.",
        ),
    )
    watermark: float = field(
        default=0.02,
        metadata=about(
            Group.MEMORY,
            Number(0.0, 0.5),
            "Share of the memory that admission leaves free, so that running sequences can grow.",
        ),
    )
    saved_limit: int = field(
        default=2**30,
        metadata=about(
            Group.MEMORY,
            Size(0, BYTES_MAX),
            "Bytes of RAM for the memory of preempted sequences; beyond it they are recomputed.",
        ),
    )
    strategy: Strategy = field(
        default=Strategy.CONTINUOUS,
        metadata=about(
            Group.SCHEDULING,
            Choice(tuple(Strategy), Strategy, SYNONYMS["strategy"]),
            "When requests may join: at every tick, or in groups.",
        ),
    )
    policy: Policy | SchedulingPolicy = field(
        default=Policy.FIFO,
        metadata=about(
            Group.SCHEDULING,
            PolicyForm(),
            "Who is next: first come, class, shortest work, a fair share per tenant, or whoever a "
            "SchedulingPolicy of one's own says.",
        ),
    )
    mix: Mix = field(
        default=Mix.BOUNDED_STALL,
        metadata=about(
            Group.SCHEDULING,
            Choice(tuple(Mix), Mix),
            "How the tokens of a tick are split between running sequences and new prompts.",
        ),
    )
    enable_preemption: bool = field(
        default=True,
        metadata=about(
            Group.SCHEDULING,
            Switch(),
            "Let a request of a higher class take the place of a running one under the policy "
            "priority; when memory runs out, sequences are preempted all the same.",
        ),
    )
    max_wait_ms: float | None = field(
        default=None,
        metadata=about(
            Group.SCHEDULING,
            Number(0.0, 60_000.0),
            "How long newcomers are gathered before they join, or a group waits to fill up.",
            default_text="0 under continuous, 50 under dynamic and adaptive, 1000 under static",
        ),
    )
    window_size: int | None = field(
        default=None,
        metadata=about(
            Group.SCHEDULING,
            Whole(1, 4096),
            "Requests that end the window of max_wait_ms early under continuous.",
            default_text="as many as there are free places",
        ),
    )
    min_batch_size: int = field(
        default=1,
        metadata=about(
            Group.SCHEDULING,
            Whole(1, 4096),
            "The fewest requests that depart together before max_wait_ms has passed, where a group "
            "of adaptive or window_size is smaller.",
        ),
    )
    wait_until_full: bool = field(
        default=False,
        metadata=about(
            Group.SCHEDULING,
            Switch(),
            "Let a static group wait for exactly max_num_seqs requests, for ever if need be; those "
            "whom a key's share holds back count.",
        ),
    )
    group_answers: GroupAnswers = field(
        default=GroupAnswers.TOGETHER,
        metadata=about(
            Group.SCHEDULING,
            Choice(tuple(GroupAnswers), GroupAnswers),
            "Hand out the answers of a group together when its last one ends, or each when it "
            "ends.",
        ),
    )
    prefill_batch_size: int | None = field(
        default=None,
        metadata=about(
            Group.SCHEDULING,
            Whole(1, 4096),
            "Prompts that one tick computes at most under the mix separate.",
            default_text="what max_num_batched_tokens holds",
        ),
    )
    decode_batch_size: int | None = field(
        default=None,
        metadata=about(
            Group.SCHEDULING,
            Whole(1, 4096),
            "Sequences that one tick generates for at most under the mix separate.",
            default_text="all",
        ),
    )
    target_stall_ms: float = field(
        default=100.0,
        metadata=about(
            Group.SCHEDULING,
            Number(0.0, 60_000.0, above=True),
            "The time between tokens that the mixes bounded-stall and separate keep to.",
        ),
    )
    target_tick_ms: float = field(
        default=100.0,
        metadata=about(
            Group.SCHEDULING,
            Number(0.0, 60_000.0, above=True),
            "The time of a tick above which the strategy adaptive makes its groups smaller.",
        ),
    )
    overtake_s: float = field(
        default=30.0,
        metadata=about(
            Group.SCHEDULING,
            Number(0.0, DAY_S),
            "No request is overtaken by one that came more than this later, whatever the policy.",
        ),
    )
    max_num_queued_reqs: int = field(
        default=1024,
        metadata=about(
            Group.QUEUE,
            Whole(1, 1_000_000),
            "Requests that may wait; one more is refused and told when to try again.",
        ),
    )
    max_num_queued_tokens: int = field(
        default=1_000_000,
        metadata=about(
            Group.QUEUE,
            _tokens(2),
            "Prompt tokens that may wait, over all requests.",
        ),
    )
    queue_timeout_s: float | None = field(
        default=None,
        metadata=about(
            Group.QUEUE,
            Number(0.0, DAY_S, above=True),
            "How long a request may wait for its first tick.",
            default_text="no limit",
        ),
    )
    request_timeout_s: float | None = field(
        default=None,
        metadata=about(
            Group.QUEUE,
            Number(0.0, DAY_S, above=True),
            "How long a request may take from arrival to its end.",
            default_text="no limit",
        ),
    )
    seed: int | None = field(
        default=None,
        metadata=about(
            Group.OTHER,
            Whole(0, limits.SEED_MAX),
            "Where the seeds of requests that bring none are drawn from.",
            default_text="a new one at each start",
        ),
    )
    log_batch_composition: bool = field(
        default=False,
        metadata=about(Group.OTHER, Switch(), "Log what is in each batch, one line per tick."),
    )
    cache_dir: Path = field(
        default_factory=lambda: cache_folder(environment()),
        metadata=about(
            Group.OTHER,
            Location(),
            "Where models made ready for use are kept.",
            default_text="jitney in $XDG_CACHE_HOME, or in ~/.cache",
        ),
    )

    def __post_init__(self) -> None:
        read_again(self)
        refusal = find_refusal({each.name: getattr(self, each.name) for each in fields(self)})
        if refusal is not None:
            raise ConfigError(refusal.message)


def known_settings() -> tuple[Known, ...]:
    """All settings of the engine, in the order of their definition."""
    return known_fields(Settings)
