"""llama.cpp's model and numbers: what its backend is told for given settings."""

import importlib
import logging
from dataclasses import asdict
from pathlib import Path

from jitney.backends import measure, probes
from jitney.backends.llamacpp import usable
from jitney.backends.processor import read_processor
from jitney.backends.room import available_bytes
from jitney.config import Settings, usable_cores
from jitney.errors import SetupError
from jitney.loading.common import Values, loaded, refuse_dtypes, source_of
from jitney.models import cache as model_cache
from jitney.models.gguf import read_header
from jitney.sizing import check_sequences, size_llamacpp

_log = logging.getLogger("jitney")

Q8_KIND = "Q8_0"
KINDS = (Q8_KIND,)
"""Conversions that are still read."""
Q8_FILE = "model.gguf"
Q8_BYTES_PER_WEIGHT = 34 / 32

ATTENTION = {"on": True, "off": False}
ATTENTION_PARAMETERS_MIN = 20_000_000
ATTENTION_SEQUENCES = 4
"""A model of fewer weights is not worth a measurement of its attention; so many take part in it."""


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
        "batch_tokens_max": settings.max_num_batched_tokens,
        "threads": settings.threads or usable_cores(),
        "gpu_layers": settings.gpu_layers,
        "flash_attention": settings.flash_attention == "on",
        # The process does without them after an illegal instruction.
        "extra_kernels": True,
    }
    if settings.flash_attention == "auto":
        # In one pool the fused kernel skips other sequences' cells; elsewhere it depends.
        is_pool = sizes.slot_tokens_max == 0
        told["flash_attention"] = is_pool or _is_attention_faster(told, settings)
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


def _is_attention_faster(told: Values, settings: Settings) -> bool:
    """Whether the fused attention kernel is the faster one here for this model; remembered."""
    header = read_header(Path(str(told["model"])))
    if settings.gpu_layers != 0 or header.parameter_count < ATTENTION_PARAMETERS_MIN:
        return False
    facts = [
        [header.architecture, header.parameter_count, header.kv_bytes_per_token],
        sorted(header.weight_types),
        probes.builds(usable.distributions()),
        asdict(read_processor()),
        told["threads"],
    ]
    memory = measure.memory_path(settings.cache_dir, ["attention", facts])
    trials = measure.recall(memory, tuple(ATTENTION))
    if trials is None:
        with measure.undisturbed(settings.cache_dir):
            # Another process may have measured while this one waited.
            trials = measure.recall(memory, tuple(ATTENTION)) or _attention_trials(told, memory)
    speeds = {name: trial.tokens_per_s or 0.0 for name, trial in trials.items()}
    return speeds["on"] > speeds["off"]


def _attention_trials(told: Values, memory: Path) -> dict[str, measure.Trial]:
    _log.warning("measuring whether flash attention is faster here, once")
    trials = {
        name: measure.measure("llamacpp", told | {"flash_attention": choice}, ATTENTION_SEQUENCES)
        for name, choice in ATTENTION.items()
    }
    if all(trial.is_lasting for trial in trials.values()):
        measure.remember(memory, trials, None, usable.distributions())
    return trials


def _quantize(source: Path, folder: Path) -> None:
    target = folder / Q8_FILE
    loaded("llamacpp", "jitney.backends.llamacpp.quantize").quantize_q8(source, target)
    # A disk that filled up in silence leaves a file that is cut short.
    read_header(target)
