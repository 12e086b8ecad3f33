"""The composition root: settings to a model file, a backend, an engine and its door.

Called once per `LLM` or server, on the caller's thread; this is the only place that knows every
part. Limits that depend on the model are decided here, and an impossible one is refused, never
lowered in silence.
"""

import importlib
import logging
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jitney import backends
from jitney.backends.llamacpp.room import available_bytes
from jitney.config import KV_TOKENS_DEFAULT, Settings, cache_folder, environment, usable_cores
from jitney.core.backend import Backend, Traits
from jitney.core.settings import SchedulerSettings
from jitney.engine.engine import Engine
from jitney.engine.entrance import Entrance
from jitney.engine.observe import log_batch_composition
from jitney.errors import ConfigError, MissingDependency
from jitney.models import cache as model_cache
from jitney.models import embedded
from jitney.models.gguf import GgufHeader, read_header
from jitney.text.chat import ChatTemplate

_log = logging.getLogger("jitney")

FAKE_MODEL_LEN = 4096
SLOTS_SPARE_MIN = 16
"""Slots beyond those that run hold cached prefixes; at least so many, at best one per sequence."""

LLAMACPP_SLOTS_MAX = 256
"""llama.cpp tells at most so many sequences apart."""

MEMORY_SHARE = 0.5
"""Of the memory that the weights leave free, so much may hold keys and values by default."""

KV_TOKENS_UNIT = 256
"""llama.cpp takes memory in multiples of so many tokens."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """Everything that belongs to one loaded model. Closing the engine releases all of it."""

    settings: Settings
    engine: Engine
    entrance: Entrance
    template: ChatTemplate | None

    @property
    def model_name(self) -> str:
        """What to call the model."""
        if self.settings.backend == "fake":
            return "fake"
        return embedded.NAME if self.settings.model is None else self.settings.model.stem


def assemble(settings: Settings, *, names_members: bool = False) -> Assembly:
    """Load the model and start its engine. Raises a SetupError that says what to mend.

    With `names_members`, the record of each tick says who was in its batch.
    """
    backend = _load_backend(settings)
    try:
        vocabulary = backend.vocabulary
        limits = scheduler_settings(settings, backend.traits)
        template = None
        if vocabulary.chat_template is not None:
            template = ChatTemplate(vocabulary.chat_template, vocabulary)
        names_members = names_members or settings.log_batch_composition
        engine = Engine(backend, limits, names_members=names_members)
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


def embedded_model(
    cache: Path | None = None, progress: embedded.Progress = lambda done, total: None
) -> Path:
    """The embedded model as Q8_0; fetched and converted first where it is not in the cache."""
    cache = cache or cache_folder(environment())
    if not embedded.is_there(cache):
        _log.warning("the embedded model (%s) is being fetched, once", embedded.NAME)
    return model_cache.converted(cache, embedded.fetch(cache, progress), _quantize)


def _quantize(source: Path, target: Path) -> None:
    # Loaded here, because llama.cpp is optional and takes its time.
    try:
        converter = importlib.import_module("jitney.backends.llamacpp.quantize")
    except ImportError as error:
        raise MissingDependency(
            "the embedded model needs llama-cpp-python, which is not installed: "
            "install jitney with the extra `llama`."
        ) from error
    converter.quantize_q8(source, target)


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
    kv_tokens = _kv_tokens_wanted(settings)
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
    model = settings.model or embedded_model(settings.cache_dir)
    return {
        "model": str(model),
        "kv_tokens": kv_tokens_for(settings, read_header(model), available_bytes()),
        "slots": min(_slots(settings.max_num_seqs), LLAMACPP_SLOTS_MAX),
        "batch_tokens_max": settings.max_num_batched_tokens,
        "threads": settings.threads or usable_cores(),
        "gpu_layers": settings.gpu_layers,
        "flash_attention": _uses_flash_attention(settings),
    }


def _slots(sequences_max: int) -> int:
    return sequences_max + max(SLOTS_SPARE_MIN, sequences_max)


def _kv_tokens_wanted(settings: Settings) -> int:
    return settings.kv_tokens or max(KV_TOKENS_DEFAULT, settings.max_model_len or 0)


def kv_tokens_for(settings: Settings, header: GgufHeader, free_bytes: int | None) -> int:
    """The memory budget in tokens: as given, or by bytes, or what is usual where that fits.

    `free_bytes` is the memory that can be taken, None where the system does not say.
    """
    token_bytes = header.kv_bytes_per_token
    if settings.memory_limit is not None:
        return _kv_tokens_by_bytes(settings, settings.memory_limit, token_bytes)
    wanted = _kv_tokens_wanted(settings)
    is_asked_for = settings.kv_tokens is not None or settings.max_model_len is not None
    if is_asked_for or settings.gpu_layers != 0 or free_bytes is None or token_bytes == 0:
        return wanted
    fits = int(max(free_bytes - header.file_bytes, 0) * MEMORY_SHARE) // token_bytes
    # Where next to nothing fits, the backend refuses and says what is missing.
    return min(wanted, max(fits // KV_TOKENS_UNIT, 1) * KV_TOKENS_UNIT)


def _kv_tokens_by_bytes(settings: Settings, limit: int, token_bytes: int) -> int:
    if token_bytes == 0:
        raise ConfigError(
            "memory_limit cannot be used with this model, whose header does not say how much "
            "memory a token takes; give kv_tokens."
        )
    kv_tokens = limit // token_bytes // KV_TOKENS_UNIT * KV_TOKENS_UNIT
    needed = max(settings.max_model_len or 0, KV_TOKENS_UNIT)
    if kv_tokens < needed:
        raise ConfigError(
            f"memory_limit ({limit} bytes) holds {kv_tokens} tokens of this model, at "
            f"{token_bytes} bytes each, and at least {needed} are needed; raise it."
        )
    return kv_tokens


def _uses_flash_attention(settings: Settings) -> bool:
    # The fused kernel skips cells of other sequences and of cached prefixes, and its logits do not
    # depend on what else is in the batch (docs/decisions/0008-flash-attention-on.md).
    return settings.flash_attention != "off"


def _seed_source(seed: int | None) -> Callable[[], int]:
    """Where seeds come from for requests that bring none: chance, or a given beginning."""
    if seed is None:
        return lambda: secrets.randbits(63)
    source = random.Random(seed)
    return lambda: source.getrandbits(63)
