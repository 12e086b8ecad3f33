"""llama.cpp's model and numbers: what its backend is told for given settings."""

import importlib
import logging
from dataclasses import asdict
from pathlib import Path

from jitney.backends.llamacpp import attention, usable
from jitney.backends.machine.free_memory import available_bytes
from jitney.backends.machine.processor import read_processor
from jitney.backends.trials import probes
from jitney.config import Settings, usable_cores
from jitney.errors import ConfigError, SetupError
from jitney.loading.common import MAY_DIFFER, Values, loaded, refuse_dtypes, source_of
from jitney.loading.sizing import check_sequences, own_cells_tokens, size_llamacpp
from jitney.models import cache as model_cache
from jitney.models.gguf import read_header

_log = logging.getLogger("jitney")

Q8_KIND = "Q8_0"
KINDS = (Q8_KIND,)
"""Conversions that are still read."""
Q8_FILE = "model.gguf"
Q8_BYTES_PER_WEIGHT = 34 / 32

KERNELS = {"auto": ("off", "on"), "on": ("on",), "off": ("off",)}
ATTENTION_PARAMETERS_MIN = 20_000_000
"""A model of fewer weights is not worth a trial of its attention."""


def check(settings: Settings) -> None:
    """Refuse what it cannot do whatever the model and the machine. Raises ConfigError."""
    refuse_dtypes("llamacpp", settings)
    check_sequences(settings)


def failure(settings: Settings) -> str | None:
    """Why it does not work on this machine; None when it does."""
    return usable.failure(settings.cache_dir)


def ready(source: Path, settings: Settings) -> Path:
    """The model as it reads it: the file itself, or the embedded one with other weights."""
    if settings.model is not None:
        return source
    # Its own weights have no batched kernel in llama.cpp on most processors.
    conversion = model_cache.Conversion(
        kind=Q8_KIND,
        files=(Q8_FILE,),
        bytes_per_weight=Q8_BYTES_PER_WEIGHT,
        make=_quantize,
    )
    return model_cache.converted(settings.cache_dir, source, conversion) / Q8_FILE


def values(settings: Settings) -> Values:
    """What the backend is told, with the model made ready for it. Raises a SetupError."""
    check(settings)
    model = ready(source_of(settings), settings)
    sizes = size_llamacpp(settings, read_header(model), available_bytes())
    told: Values = {
        "model": str(model),
        "kv_tokens": sizes.kv_tokens,
        "slots": sizes.slots,
        "slot_tokens_max": sizes.slot_tokens_max,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "threads": settings.threads or usable_cores(),
        "gpu_layers": settings.gpu_layers,
        "flash_attention": settings.flash_attention == "on",
        # The process does without them after an illegal instruction.
        "extra_kernels": True,
    }
    if sizes.slot_tokens_max == 0:
        # In one pool the fused kernel skips other sequences' cells.
        told["flash_attention"] = settings.flash_attention != "off"
        _tell_of_pool(settings, own_cells_tokens(settings, read_header(model)))
        return told
    choice = _choose_attention(told, settings)
    told["flash_attention"] = choice.is_fused
    if choice.shape is not None:
        return told | asdict(choice.shape) | {"batch_invariant": True}
    if settings.batch_invariant == "auto":
        _log.warning(MAY_DIFFER)
    if settings.batch_invariant == "on":
        raise ConfigError(
            "batch_invariant is on, and no way was found in which llama.cpp computes this model "
            "alike in every batch on this machine; leave it out, or give off."
        )
    return told


def can_use_extra_kernels(model: Path, settings: Settings, *, warns: bool = True) -> bool:
    """Try the model in a child first: in this process an illegal instruction would be the end."""
    try:
        probe = importlib.import_module("jitney.backends.llamacpp.probe")
    except ImportError:
        return True  # loading will say what is missing
    result = probe.probe_result(model, settings.cache_dir)
    if warns and result.warning is not None:
        _log.warning("%s", result.warning)
    return bool(result.extra_kernels)


def has_own_cells(source: Path, settings: Settings) -> bool:
    """Whether llama.cpp would have cells for each slot: it is several times faster then."""
    try:
        sizes = size_llamacpp(settings, read_header(source), available_bytes())
    except SetupError:
        return False  # loading will say what is wrong
    return sizes.slot_tokens_max != 0


def _tell_of_pool(settings: Settings, tokens: int) -> None:
    """Say that texts are not promised to be equal in one pool, and with how much memory they are.

    Raises ConfigError where that was asked for.
    """
    if settings.batch_invariant == "off":
        return
    if settings.gpu_layers != 0:
        reason = "that is not known of llama.cpp on a GPU; leave it out, or gpu_layers"
    else:
        reason = (
            f"each sequence needs memory of its own for that: kv_tokens of {tokens} (or a "
            "memory_limit that holds them); fewer sequences (max_num_seqs) or a smaller "
            "max_model_len need less"
        )
    if settings.batch_invariant == "on":
        raise ConfigError(f"batch_invariant is on, and {reason}.")
    _log.warning("%s: %s", MAY_DIFFER, reason)


def _choose_attention(told: Values, settings: Settings) -> attention.Choice:
    """Which kernel, and the shape of its passes; tried once for this model and remembered."""
    wants_alike = settings.batch_invariant != "off"
    header = read_header(Path(str(told["model"])))
    if header.parameter_count < ATTENTION_PARAMETERS_MIN:
        is_fused = settings.flash_attention == "on"
        return attention.Choice(
            is_fused, attention.SHAPE_UNTRIED if wants_alike and not is_fused else None
        )
    kernels = KERNELS[settings.flash_attention]
    if len(kernels) == 1 and not wants_alike:
        return attention.Choice(kernels[0] == "on", None)
    facts = [
        [header.architecture, header.parameter_count, header.kv_bytes_per_token],
        sorted(header.weight_types),
        probes.builds(usable.distributions()),
        asdict(read_processor()),
        told["threads"],
    ]
    asked = attention.Asked(
        kernels=kernels,
        wants_alike=wants_alike,
        cache=settings.cache_dir,
        facts=facts,
        distributions=usable.distributions(),
    )
    return attention.choose(told, asked)


def _quantize(source: Path, folder: Path) -> None:
    target = folder / Q8_FILE
    loaded("llamacpp", "jitney.backends.llamacpp.quantize").quantize_q8(source, target)
    # A disk that filled up in silence leaves a file that is cut short.
    read_header(target)
