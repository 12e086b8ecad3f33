"""OpenVINO's model and numbers: what its backend is told for given settings."""

import logging
from dataclasses import asdict
from pathlib import Path

from jitney.backends.machine.free_memory import available_bytes, check_weights
from jitney.backends.machine.processor import read_processor
from jitney.backends.openvino import families, usable
from jitney.backends.trials import invariance, measure, probes, shape_trial
from jitney.config import Settings, usable_cores
from jitney.errors import ConfigError, ModelError
from jitney.loading.common import MAY_DIFFER, Values, loaded, source_of
from jitney.loading.sizing import size_paged
from jitney.models import cache as model_cache
from jitney.models.gguf import read_header

SHAPE_FACTS = ("model", "threads", "inference_precision", "kv_precision", "activation_group")
"""Numbers of the backend on which it depends what is computed alike."""

_log = logging.getLogger("jitney")

OPENVINO_KIND = "openvino-3"
KINDS = tuple(f"{OPENVINO_KIND}-{weights}" for weights in ("float16", "packed"))
"""Conversions that are still read."""
FLOAT16_BYTES_PER_WEIGHT = 4.5
PACKED_BYTES_PER_WEIGHT = 2.5
"""Weights are written twice: as a GGUF that the reader takes, and as the result."""


def check(settings: Settings) -> None:
    """Refuse what it cannot do whatever the model and the machine. Raises ConfigError."""
    if settings.gpu_layers != 0:
        raise ConfigError(
            "gpu_layers is given, and OpenVINO runs here on CPUs; "
            "leave it out, or use the llama.cpp backend."
        )
    if settings.flash_attention != "auto":
        raise ConfigError(
            "flash_attention is given, and only llama.cpp has the choice; leave it out."
        )


def failure(settings: Settings) -> str | None:
    """Why it does not work on this machine; None when it does."""
    return _here(settings).failure


def numbers_text(settings: Settings) -> str:
    """What OpenVINO would compute with, in words: the choices that `auto` amounts to."""
    dtypes = _dtypes(settings)
    threads = settings.threads or usable_cores()
    names = families.LONG_NAMES
    told = f"{names[dtypes.inference]}, keys and values in {names[dtypes.kv]}"
    if dtypes.activation_group:
        told += ", activations rounded to 8 bits"
    model = settings.model
    if model is not None and not families.is_exported(model):
        told += f", weights {dtypes.weights(read_header(model).parameter_count)}"
    return f"{told}, {threads} threads" if threads > 1 else f"{told}, one thread"


def ready(source: Path, settings: Settings) -> Path:
    """The folder of the converted model. Raises ModelError."""
    if families.is_exported(source):
        return source
    header = read_header(source)
    reason = families.refusal(header, settings.max_model_len)
    if reason is not None:
        raise ModelError(
            f"{source} cannot be run by OpenVINO: {reason}; use the llama.cpp backend."
        )
    weights = _dtypes(settings).weights(header.parameter_count)
    is_wide = weights == "float16" or header.weight_types <= {"F32", "F16", "BF16"}

    # What is converted has another name, in the hub's cache.
    name = source.name

    def convert(source: Path, folder: Path) -> None:
        _log.warning(
            "%s is being converted for OpenVINO, once; a billion weights take about a minute", name
        )
        converter = loaded("openvino", "jitney.backends.openvino.convert")
        converter.write_model(source, folder, weights=weights)

    conversion = model_cache.Conversion(
        kind=f"{OPENVINO_KIND}-{weights}",
        files=families.FILES,
        bytes_per_weight=FLOAT16_BYTES_PER_WEIGHT if is_wide else PACKED_BYTES_PER_WEIGHT,
        make=convert,
    )
    return model_cache.converted(settings.cache_dir, source, conversion)


def values(settings: Settings) -> Values:
    """What the backend is told, with the model made ready for it. Raises a SetupError."""
    check(settings)
    source = source_of(settings)
    model = ready(source, settings)
    facts = families.facts(source)
    dtypes = _dtypes(settings)
    if dtypes.inference == "f32" and settings.dtype == "auto" and read_processor().has_bfloat16:
        _log.warning(
            "on one thread OpenVINO computes with float32 and rounded activations, since its "
            "bfloat16 needs two; answers differ a little from those on more threads"
        )
    token_bytes = facts.kv_values_per_token * dtypes.kv_bytes
    sizes = size_paged(settings, facts.model_len_max, token_bytes, _free_beside(model))
    told: Values = {
        "model": str(model),
        "vocabulary": str(source),
        "kv_tokens": sizes.kv_tokens,
        "slots": sizes.slots,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "model_len_max": facts.model_len_max,
        "threads": settings.threads or usable_cores(),
        "inference_precision": dtypes.inference,
        "kv_precision": dtypes.kv,
        "activation_group": dtypes.activation_group,
    }
    return told | _shape(told, settings)


def _shape(told: Values, settings: Settings) -> Values:
    """The rows of a pass in which all is computed alike; tried once and remembered."""
    if settings.batch_invariant == "off":
        return {}
    shapes = [
        {"rows_min": rows, "head_rows_min": head, "decodes_differ": True}
        for rows, head in _rows_tried(told)
    ]
    facts = [
        sorted((name, value) for name, value in told.items() if name in SHAPE_FACTS),
        [shapes, probes.builds(usable.DISTRIBUTIONS), asdict(read_processor())],
    ]
    memory = shape_trial.memory_path(settings.cache_dir, facts)
    found = shape_trial.recall(memory, ["openvino"])
    if found is None:
        with measure.undisturbed(settings.cache_dir):
            # Another process may have tried while this one waited.
            found = shape_trial.recall(memory, ["openvino"])
            if found is None:
                found = {"openvino": _try_shapes(told, shapes)}
                shape_trial.remember(memory, found, usable.DISTRIBUTIONS)
    shape = found["openvino"].shape
    if shape is not None:
        return {**shape, "batch_invariant": True}
    _log.warning(MAY_DIFFER)
    if settings.batch_invariant == "on":
        raise ConfigError(
            "batch_invariant is on, and no way was found in which OpenVINO computes this model "
            "alike in every batch on this machine; leave it out, or give off."
        )
    return {}


def _rows_tried(told: Values) -> list[tuple[int, int]]:
    threads = max(int(told["threads"]), 2)
    return [(threads, 2), (threads, threads), (2 * threads, 2 * threads)]


def _try_shapes(told: Values, shapes: list[dict[str, int]]) -> shape_trial.Found:
    _log.warning("trying in which batches this model is computed alike here, once")
    tokens = invariance.SLOTS * invariance.SLOT_TOKENS
    batch = max(int(told["max_num_batched_tokens"]), invariance.SLOT_TOKENS)
    sizes = {"kv_tokens": tokens, "max_num_batched_tokens": batch}
    return shape_trial.try_shapes("openvino", told | sizes, shapes, 0)


def _free_beside(folder: Path) -> int | None:
    """Memory that is left when the weights are loaded. Raises ModelError when there is none."""
    size = sum((folder / name).stat().st_size for name in families.FILES)
    check_weights(folder, size)
    free = available_bytes()
    return None if free is None else max(free - size, 0)


def _here(settings: Settings) -> usable.Here:
    threads = settings.threads or usable_cores()
    wanted = usable.Wanted(settings.dtype, settings.kv_cache_dtype, threads)
    return usable.here(wanted, settings.cache_dir)


def _dtypes(settings: Settings) -> families.Dtypes:
    return _here(settings).dtypes
