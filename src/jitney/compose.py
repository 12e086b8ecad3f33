"""The composition root: settings to a model file, a backend, an engine and its door.

Called once per `LLM` or server, on the caller's thread; this is the only place that knows every
part. Limits that depend on the model are decided here, and an impossible one is refused, never
lowered in silence.
"""

import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from jitney import backends
from jitney.config import KV_TOKENS_DEFAULT, Settings, usable_cores
from jitney.core.backend import Backend, Traits
from jitney.core.settings import SchedulerSettings
from jitney.engine.engine import Engine
from jitney.engine.entrance import Entrance
from jitney.engine.observe import log_batch_composition
from jitney.errors import ConfigError
from jitney.text.chat import ChatTemplate

FAKE_MODEL_LEN = 4096
SLOTS_SPARE_MIN = 16
"""Slots beyond those that run hold cached prefixes; at least so many, at best one per sequence."""

LLAMACPP_SLOTS_MAX = 256
"""llama.cpp tells at most so many sequences apart."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """Everything that belongs to one loaded model. Closing the engine releases all of it."""

    settings: Settings
    engine: Engine
    entrance: Entrance
    template: ChatTemplate | None


def assemble(settings: Settings) -> Assembly:
    """Load the model and start its engine. Raises a SetupError that says what to mend."""
    backend = _load_backend(settings)
    try:
        vocabulary = backend.vocabulary
        limits = scheduler_settings(settings, backend.traits)
        template = None
        if vocabulary.chat_template is not None:
            template = ChatTemplate(vocabulary.chat_template, vocabulary)
        engine = Engine(backend, limits, names_members=settings.log_batch_composition)
    except BaseException:
        backend.close()
        raise
    if settings.log_batch_composition:
        engine.observe(log_batch_composition)
    engine.start()
    entrance = Entrance(backend, limits.model_len_max, _seed_source(settings.seed))
    return Assembly(settings, engine, entrance, template)


def scheduler_settings(settings: Settings, traits: Traits) -> SchedulerSettings:
    """The scheduler's numbers, from what people set and what the backend can do."""
    return SchedulerSettings(
        model_len_max=_model_len(settings, traits),
        sequences_max=settings.max_num_seqs,
        batch_tokens_max=settings.max_num_batched_tokens,
        prefill_chunk=settings.prefill_chunk,
        reuse_prefixes=settings.enable_prefix_caching,
        cache_tokens_max=settings.cache_tokens,
        watermark=settings.watermark,
        saved_bytes_max=settings.saved_limit,
        strategy=settings.strategy,
        policy=settings.policy,
        mix=settings.mix,
        group_wait_s_max=settings.max_wait_ms / 1e3,
        stall_s_target=settings.target_stall_ms / 1e3,
        overtake_s=settings.overtake_s,
        queue_requests_max=settings.max_num_queued_reqs,
        queue_tokens_max=settings.max_num_queued_tokens,
        wait_s_max=settings.queue_timeout_s,
        total_s_max=settings.request_timeout_s,
    )


def _model_len(settings: Settings, traits: Traits) -> int:
    kv_tokens = traits.kv_tokens - traits.kv_tokens % traits.block_tokens
    wanted = settings.max_model_len
    if wanted is None:
        return min(traits.model_len_max, kv_tokens)
    if wanted > traits.model_len_max:
        raise ConfigError(
            f"max_model_len ({wanted}) is above the {traits.model_len_max} tokens that the "
            "model was made for; lower it."
        )
    if wanted > kv_tokens:
        raise ConfigError(
            f"max_model_len ({wanted}) does not fit the memory of {kv_tokens} tokens; "
            "lower it or raise kv_tokens."
        )
    return wanted


def _load_backend(settings: Settings) -> Backend:
    values = _fake_values(settings) if settings.backend == "fake" else _llamacpp_values(settings)
    if settings.backend_process:
        return backends.load_process(settings.backend, values)
    return backends.load(settings.backend, values)


def _fake_values(settings: Settings) -> dict[str, int | bool | str]:
    if settings.memory_limit is not None:
        raise ConfigError(
            "The fake backend has no bytes to count; give kv_tokens, not memory_limit."
        )
    kv_tokens = _kv_tokens_given(settings)
    return {
        "slots": _slots(settings.max_num_seqs),
        "kv_tokens": kv_tokens,
        "model_len_max": settings.max_model_len or min(FAKE_MODEL_LEN, kv_tokens),
        "batch_tokens_max": settings.max_num_batched_tokens,
    }


def _llamacpp_values(settings: Settings) -> dict[str, int | bool | str]:
    if settings.max_num_seqs > LLAMACPP_SLOTS_MAX:
        raise ConfigError(
            f"max_num_seqs is {settings.max_num_seqs}, and llama.cpp tells at most "
            f"{LLAMACPP_SLOTS_MAX} sequences apart; lower it."
        )
    model = settings.model
    assert model is not None
    return {
        "model": str(model),
        "kv_tokens": _kv_tokens_given(settings),
        "slots": min(_slots(settings.max_num_seqs), LLAMACPP_SLOTS_MAX),
        "batch_tokens_max": settings.max_num_batched_tokens,
        "threads": settings.threads or usable_cores(),
        "gpu_layers": settings.gpu_layers,
        "flash_attention": _uses_flash_attention(settings),
    }


def _slots(sequences_max: int) -> int:
    return sequences_max + max(SLOTS_SPARE_MIN, sequences_max)


def _kv_tokens_given(settings: Settings) -> int:
    return settings.kv_tokens or max(KV_TOKENS_DEFAULT, settings.max_model_len or 0)


def _uses_flash_attention(settings: Settings) -> bool:
    # On CPUs the fused kernels are slower than the plain ones.
    if settings.flash_attention == "auto":
        return settings.gpu_layers != 0
    return settings.flash_attention == "on"


def _seed_source(seed: int | None) -> Callable[[], int]:
    """Where seeds come from for requests that bring none: chance, or a given beginning."""
    if seed is None:
        return lambda: secrets.randbits(63)
    source = random.Random(seed)
    return lambda: source.getrandbits(63)
