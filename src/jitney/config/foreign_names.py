"""The words of other systems, each with the setting that it means: one table for all sources.

So a file of LlamaCppEx, ThemisDB, ZigLlama, the Mini-GPT course, llama.cpp or vLLM works here. Most
words are another name of a setting. Some have other values, and so a form. A value without a
meaning here is refused with advice, or taken with a note; nothing is ignored. `resolve`, the
command line and the reference page read the table. Pure; any thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from jitney.config.forms import SWITCH, Form, number, one_of, whole_number


@dataclass(frozen=True, slots=True)
class ForeignName:
    """A word of another system. Without a form it takes the values of its setting."""

    name: str
    setting: str | None
    origin: str
    form: Form | None = None
    """How its own values are written."""
    values: tuple[tuple[object, Mapping[str, str]], ...] = ()
    """Pairs of such a value and the settings that it means; without any, it is what jitney always
    does. What it says of another setting than its own stands above that setting's own names."""
    advice: str = ""
    """Why every other value is refused; without it, the setting takes them."""
    note: str = ""
    """Why it has no effect, and is taken all the same."""


LLAMACPPEX = "LlamaCppEx"
THEMISDB = "ThemisDB"
COURSE = "the Mini-GPT course"
STATIC_LOOP = f"the static loop of {COURSE}"
CONTINUOUS_LOOP = f"the continuous loop of {COURSE}"
ZIGLLAMA = "ZigLlama"
LLAMACPP = "llama.cpp"
VLLM = "vLLM"
OLDER = "older documents"

CACHE_TYPES = one_of(
    ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"),
)
CACHE_TYPES_HERE = (("f16", {"kv_cache_dtype": "float16"}), ("q8_0", {"kv_cache_dtype": "q8_0"}))
CACHE_TYPES_ADVICE = "llama.cpp takes f16 or q8_0 here; give one of them, or leave it out"

FOREIGN_NAMES: tuple[ForeignName, ...] = (
    ForeignName("model_path", "model", LLAMACPPEX),
    ForeignName("n_gpu_layers", "gpu_layers", f"{LLAMACPPEX}, {LLAMACPP}"),
    ForeignName("flash_attn", "flash_attention", LLAMACPP),
    ForeignName(
        "use_flash_attn",
        "flash_attention",
        THEMISDB,
        # `on` would exclude OpenVINO, which has no such choice.
        SWITCH,
        ((True, {"flash_attention": "auto"}), (False, {"flash_attention": "off"})),
    ),
    # Keys and values have one type, so two that differ are refused.
    *(
        ForeignName(
            name, "kv_cache_dtype", LLAMACPP, CACHE_TYPES, CACHE_TYPES_HERE, CACHE_TYPES_ADVICE
        )
        for name in ("cache_type_k", "cache_type_v")
    ),
    ForeignName("max_batch_size", "max_num_seqs", f"{THEMISDB}, {ZIGLLAMA}"),
    ForeignName("n_parallel", "max_num_seqs", LLAMACPPEX),
    ForeignName("parallel", "max_num_seqs", LLAMACPP),
    ForeignName("max_batch", "max_num_seqs", STATIC_LOOP),
    ForeignName("max_inflight", "max_num_seqs", CONTINUOUS_LOOP),
    ForeignName("n_batch", "max_num_batched_tokens", f"{LLAMACPPEX}, {LLAMACPP}"),
    ForeignName("batch_size", "max_num_batched_tokens", f"{LLAMACPPEX}, {LLAMACPP}"),
    ForeignName("chunk_size", "prefill_chunk", LLAMACPPEX),
    ForeignName("max_sequence_length", "max_model_len", THEMISDB),
    ForeignName("max_total_tokens", "kv_tokens", THEMISDB),
    ForeignName("n_ctx", "kv_tokens", f"{LLAMACPPEX}, {LLAMACPP}"),
    ForeignName("ctx_size", "kv_tokens", LLAMACPP),
    ForeignName("memory_limit_bytes", "memory_limit", ZIGLLAMA),
    ForeignName("use_kv_cache_reuse", "enable_prefix_caching", THEMISDB),
    ForeignName(
        "enabled",
        "strategy",
        THEMISDB,
        SWITCH,
        ((True, {"strategy": "continuous"}), (False, {"max_num_seqs": "1"})),
    ),
    ForeignName("batching_strategy", "strategy", OLDER),
    ForeignName("scheduler_policy", "policy", THEMISDB),
    ForeignName("scheduling_policy", "policy", VLLM),
    ForeignName(
        "enable_priority",
        "policy",
        ZIGLLAMA,
        SWITCH,
        ((True, {"policy": "priority"}), (False, {"policy": "fifo"})),
    ),
    ForeignName("max_wait_time_ms", "max_wait_ms", ZIGLLAMA),
    ForeignName("batch_timeout", "max_wait_ms", LLAMACPPEX),
    ForeignName(
        "idle_ms",
        None,
        CONTINUOUS_LOOP,
        number(0.0, 86_400_000.0),
        note="an idle engine sleeps until a request comes, and nothing polls the queue",
    ),
    ForeignName("window_size", "min_batch_size", OLDER),
    ForeignName(
        "wait_until_full",
        None,
        OLDER,
        SWITCH,
        advice="a static group waits until it is full unless max_wait_ms is given; leave it out",
    ),
    ForeignName("prefill_batch", "prefill_batch_size", OLDER),
    ForeignName("decode_batch", "decode_batch_size", OLDER),
    ForeignName("max_queue", "max_num_queued_reqs", LLAMACPPEX),
    ForeignName("max_queue_size", "max_num_queued_reqs", ZIGLLAMA),
    # One worker needs no replicas, and so no Ray.
    ForeignName("num_workers", "replicas", ZIGLLAMA, whole_number(1, 1024), ((1, {}),)),
    ForeignName("target_tick_ms", "target_stall_ms", OLDER),
    ForeignName(
        "cache_tokens",
        None,
        OLDER,
        whole_number(0, 2**31 - 1),
        advice="unused prefixes hold all memory that nobody else needs; leave it out, or set "
        "enable_prefix_caching to false for none",
    ),
    ForeignName(
        "sse_ping_interval",
        None,
        OLDER,
        number(0.0, 3600.0),
        advice="a stream that waits always has a comment every 15 seconds; leave it out",
    ),
    ForeignName(
        "stall_timeout",
        None,
        OLDER,
        number(0.0, 86_400.0),
        advice="/health reports 60 seconds without the end of a forward pass; leave it out, and "
        "set max_num_batched_tokens lower where passes take so long",
    ),
    ForeignName(
        "read_timeout",
        None,
        OLDER,
        number(0.0, 86_400.0),
        advice="a client that reads nothing for 30 seconds is cut off; leave it out",
    ),
    ForeignName(
        "enable_jobs",
        "jobs_dir",
        OLDER,
        SWITCH,
        ((True, {}),),
        "jobs_dir says it now; leave it out, and set jobs_dir to none for no files and batches",
    ),
    ForeignName("cache", "cache_dir", OLDER),
    ForeignName("alias", "served_model_name", LLAMACPP),
    ForeignName("max_body_size", "body_limit", OLDER),
)

TABLES = ("llm_plugins", "llamacpp", "optimizations", "continuous_batching")
"""ThemisDB's tables that settings may be in within a file. Each may be inside those before it, or
alone."""

PLUGINS = ("llamacpp",)
"""Tables that choose the backend of their name."""

SYNONYMS: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "strategy": (("FixedSize", "static"), ("DynamicTimeout", "dynamic")),
        "policy": (("FCFS", "fifo"), ("Shortest-Job-First", "sjf")),
    }
)
"""Values of a setting in other spellings, each with ours."""
