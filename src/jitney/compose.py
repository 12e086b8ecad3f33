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
from jitney.config import Settings, cache_folder, environment, usable_cores
from jitney.core.backend import Backend, Traits
from jitney.core.settings import SchedulerSettings
from jitney.engine.engine import Engine
from jitney.engine.entrance import Entrance
from jitney.engine.observe import log_batch_composition
from jitney.errors import ConfigError, MissingDependency
from jitney.models import cache as model_cache
from jitney.models import embedded
from jitney.models.gguf import read_header
from jitney.sizing import (
    MODEL_LEN_DEFAULT,
    check_sequences,
    kv_tokens_wanted,
    pool_slots,
    size_llamacpp,
)
from jitney.text.chat import ChatTemplate

_log = logging.getLogger("jitney")

FAKE_MODEL_LEN = 4096


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
        return min(traits.model_len_max, kv_tokens, MODEL_LEN_DEFAULT)
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
    if settings.backend == "llamacpp":
        values["extra_kernels"] = _can_use_extra_kernels(Path(str(values["model"])), settings)
    return backends.load(settings.backend, values)


def _can_use_extra_kernels(model: Path, settings: Settings) -> bool:
    """Try the model in a child first: in this process an illegal instruction would be the end."""
    try:
        probe = importlib.import_module("jitney.backends.llamacpp.probe")
    except ImportError:
        return True  # loading will say what is missing
    result = probe.probe_result(model, settings.cache_dir)
    if result.warning is not None:
        _log.warning("%s", result.warning)
    return bool(result.extra_kernels)


def _fake_values(settings: Settings) -> dict[str, int | bool | str]:
    if settings.memory_limit is not None:
        raise ConfigError(
            "The fake backend has no bytes to count; give kv_tokens, not memory_limit."
        )
    kv_tokens = kv_tokens_wanted(settings)
    return {
        "slots": pool_slots(settings.max_num_seqs),
        "kv_tokens": kv_tokens,
        "model_len_max": settings.max_model_len or min(FAKE_MODEL_LEN, kv_tokens),
        "batch_tokens_max": settings.max_num_batched_tokens,
    }


def _llamacpp_values(settings: Settings) -> dict[str, int | bool | str]:
    check_sequences(settings)
    model = settings.model or embedded_model(settings.cache_dir)
    sizes = size_llamacpp(settings, read_header(model), available_bytes())
    flash_attention = settings.flash_attention == "on"
    if settings.flash_attention == "auto":
        # In one pool the fused kernel skips other sequences' cells; elsewhere it is slower.
        flash_attention = sizes.slot_tokens_max == 0
    return {
        "model": str(model),
        "kv_tokens": sizes.kv_tokens,
        "slots": sizes.slots,
        "slot_tokens_max": sizes.slot_tokens_max,
        "batch_tokens_max": settings.max_num_batched_tokens,
        "threads": settings.threads or usable_cores(),
        "gpu_layers": settings.gpu_layers,
        "flash_attention": flash_attention,
        # The process does without them after an illegal instruction.
        "extra_kernels": True,
    }


def _seed_source(seed: int | None) -> Callable[[], int]:
    """Where seeds come from for requests that bring none: chance, or a given beginning."""
    if seed is None:
        return lambda: secrets.randbits(63)
    source = random.Random(seed)
    return lambda: source.getrandbits(63)
