"""From settings to a loaded backend: which one, the model made ready for it, and its numbers.

Called by `compose` once per `LLM` or server, and by the command line, on the caller's thread. The
only place that knows what each backend is to be told. Heavy libraries are imported when a backend
that needs them was chosen.
"""

import importlib
import importlib.util
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from jitney import backends
from jitney.backends import measure
from jitney.backends.openvino import families
from jitney.backends.processor import read_processor
from jitney.backends.room import available_bytes, check_weights
from jitney.config import Settings, usable_cores
from jitney.core.backend import Backend
from jitney.errors import ConfigError, ModelError, SetupError
from jitney.models import cache as model_cache
from jitney.models import embedded
from jitney.models.gguf import read_header
from jitney.selection import Facts, Selection, fastest, select, trial_sequences
from jitney.sizing import (
    check_sequences,
    kv_tokens_wanted,
    pool_slots,
    size_llamacpp,
    size_paged,
)

_log = logging.getLogger("jitney")

FAKE_MODEL_LEN = 4096

Q8_FILE = "model.gguf"
Q8_BYTES_PER_WEIGHT = 34 / 32
OPENVINO_KIND = "openvino-3"
FLOAT16_BYTES_PER_WEIGHT = 4.5
PACKED_BYTES_PER_WEIGHT = 2.5
"""Weights are written twice: as a GGUF that the reader takes, and as the result."""

LIBRARIES = {
    "openvino": ("openvino", "openvino_genai", "gguf", "tokenizers"),
    "llamacpp": ("llama_cpp",),
}
DISTRIBUTIONS = {
    "openvino": ("openvino", "openvino-genai", "gguf", "tokenizers"),
    "llamacpp": ("llama-cpp-python",),
}
"""What brings them, in the same order."""

MEASURED = ("openvino", "llamacpp")
"""Those between which speed may decide."""

Values = dict[str, int | bool | str]


def load_backend(settings: Settings) -> Backend:
    """The backend of these settings, with its model loaded. Raises a SetupError."""
    name = select_backend(settings).name
    values = _values(name, settings)
    if settings.backend_process:
        return backends.load_process(name, values)
    if name == "llamacpp":
        values["extra_kernels"] = _can_use_extra_kernels(Path(str(values["model"])), settings)
    return backends.load(name, values)


def select_backend(
    settings: Settings, progress: embedded.Progress = lambda done, total: None
) -> Selection:
    """The backend for these settings, and why.

    Where speed is to decide and was not measured yet, the model is fetched, made ready for both
    backends and measured.
    """
    return _selected(settings) or _measured(settings, progress)


def foreseen_backend(settings: Settings) -> Selection | None:
    """As `select_backend`, without measuring: None where that would have to be done first.

    Reads headers and what is remembered; fetches, converts and writes nothing.
    """
    selection = _selected(settings)
    if selection is not None:
        return selection
    source = settings.model or embedded.path_in(settings.cache_dir)
    if settings.model is None and not embedded.is_there(settings.cache_dir):
        return None
    sequences = trial_sequences(settings.max_num_seqs)
    trials = measure.recall(_trial_memory(source, settings), MEASURED)
    return None if trials is None else fastest(trials, sequences)


def installed_backends() -> frozenset[str]:
    """The backends whose libraries are there; whether they can be loaded is not tried."""
    return frozenset(
        name
        for name, libraries in LIBRARIES.items()
        if all(importlib.util.find_spec(library) is not None for library in libraries)
    )


def openvino_numbers(settings: Settings) -> str:
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


def library_version(backend: str) -> str | None:
    """The version of the backend's first library; None where it is not known."""
    try:
        return metadata.version(DISTRIBUTIONS[backend][0])
    except metadata.PackageNotFoundError:
        return None


def ready_model(settings: Settings, progress: embedded.Progress = lambda done, total: None) -> Path:
    """Where the model is as its backend reads it; fetched and converted first if need be."""
    name = select_backend(settings, progress).name
    return _ready(name, _source(settings, progress), settings)


def _selected(settings: Settings) -> Selection | None:
    if settings.backend != "auto":
        return Selection(settings.backend, "it was asked for")
    model = settings.model
    is_folder = model is not None and families.is_exported(model)
    refusal = None
    if model is not None and not is_folder:
        refusal = families.refusal(read_header(model), settings.max_model_len)
    return select(settings, Facts(installed_backends(), refusal, is_folder))


def _source(settings: Settings, progress: embedded.Progress = lambda done, total: None) -> Path:
    """The model as it was published: what was named, or the embedded one, fetched if need be."""
    if settings.model is not None:
        return settings.model
    if not embedded.is_there(settings.cache_dir):
        _log.warning("the embedded model (%s) is being fetched, once", embedded.NAME)
    return embedded.fetch(settings.cache_dir, progress)


def _ready(name: str, source: Path, settings: Settings) -> Path:
    if name == "openvino":
        return _ready_for_openvino(source, settings)
    if name == "llamacpp" and settings.model is None:
        # Its own weights have no batched kernel in llama.cpp on most processors.
        conversion = model_cache.Conversion(
            kind="Q8_0",
            files=(Q8_FILE,),
            bytes_per_weight=Q8_BYTES_PER_WEIGHT,
            make=_quantize,
        )
        return model_cache.converted(settings.cache_dir, source, conversion) / Q8_FILE
    return source


def _ready_for_openvino(source: Path, settings: Settings) -> Path:
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

    def convert(source: Path, folder: Path) -> None:
        _log.warning(
            "%s is being converted for OpenVINO, once; a billion weights take about a minute",
            source.name,
        )
        converter = _loaded("openvino", "jitney.backends.openvino.convert")
        converter.write_model(source, folder, weights=weights)

    conversion = model_cache.Conversion(
        kind=f"{OPENVINO_KIND}-{weights}",
        files=families.FILES,
        bytes_per_weight=FLOAT16_BYTES_PER_WEIGHT if is_wide else PACKED_BYTES_PER_WEIGHT,
        make=convert,
    )
    return model_cache.converted(settings.cache_dir, source, conversion)


def _dtypes(settings: Settings) -> families.Dtypes:
    threads = settings.threads or usable_cores()
    return families.dtypes(settings.dtype, settings.kv_cache_dtype, threads)


def _quantize(source: Path, folder: Path) -> None:
    target = folder / Q8_FILE
    _loaded("llamacpp", "jitney.backends.llamacpp.quantize").quantize_q8(source, target)
    # A disk that filled up in silence leaves a file that is cut short.
    read_header(target)


def _loaded(backend: str, module: str) -> Any:  # Any: a module
    """A module of a backend whose libraries are optional and take their time to load."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise backends.missing(backend, error) from error


def _values(name: str, settings: Settings) -> Values:
    """What the backend of this name is told."""
    kinds: Mapping[str, Callable[[Settings], Values]] = {
        "fake": _fake_values,
        "llamacpp": _llamacpp_values,
        "openvino": _openvino_values,
    }
    return kinds[name](settings)


def _fake_values(settings: Settings) -> Values:
    _refuse_dtypes("fake", settings)
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


def _llamacpp_values(settings: Settings) -> Values:
    _refuse_dtypes("llamacpp", settings)
    check_sequences(settings)
    model = _ready("llamacpp", _source(settings), settings)
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


def _openvino_values(settings: Settings) -> Values:
    if settings.gpu_layers != 0:
        raise ConfigError(
            "gpu_layers is given, and OpenVINO runs here on CPUs; "
            "leave it out, or use the llama.cpp backend."
        )
    if settings.flash_attention != "auto":
        raise ConfigError(
            "flash_attention is given, and only llama.cpp has the choice; leave it out."
        )
    source = _source(settings)
    model = _ready("openvino", source, settings)
    facts = families.facts(source)
    dtypes = _dtypes(settings)
    if dtypes.inference == "f32" and settings.dtype == "auto" and read_processor().has_bfloat16:
        _log.warning(
            "on one thread OpenVINO computes with float32 and rounded activations, since its "
            "bfloat16 needs two; answers differ a little from those on more threads"
        )
    token_bytes = facts.kv_values_per_token * dtypes.kv_bytes
    sizes = size_paged(settings, facts.model_len_max, token_bytes, _free_beside(model))
    return {
        "model": str(model),
        "vocabulary": str(source),
        "kv_tokens": sizes.kv_tokens,
        "slots": sizes.slots,
        "batch_tokens_max": settings.max_num_batched_tokens,
        "model_len_max": facts.model_len_max,
        "threads": settings.threads or usable_cores(),
        "inference_precision": dtypes.inference,
        "kv_precision": dtypes.kv,
        "activation_group": dtypes.activation_group,
    }


def _free_beside(folder: Path) -> int | None:
    """Memory that is left when the weights are loaded. Raises ModelError when there is none."""
    size = sum((folder / name).stat().st_size for name in families.FILES)
    check_weights(folder, size)
    free = available_bytes()
    return None if free is None else max(free - size, 0)


def _refuse_dtypes(name: str, settings: Settings) -> None:
    """Refuse what only OpenVINO knows, rather than pass over it."""
    for setting in ("dtype", "kv_cache_dtype"):
        if getattr(settings, setting) != "auto":
            raise ConfigError(
                f"{setting} is given, and the {name} backend has no choice of it; leave it out, "
                "or use the openvino backend."
            )


def _can_use_extra_kernels(model: Path, settings: Settings, *, warns: bool = True) -> bool:
    """Try the model in a child first: in this process an illegal instruction would be the end."""
    try:
        probe = importlib.import_module("jitney.backends.llamacpp.probe")
    except ImportError:
        return True  # loading will say what is missing
    result = probe.probe_result(model, settings.cache_dir)
    if warns and result.warning is not None:
        _log.warning("%s", result.warning)
    return bool(result.extra_kernels)


def _measured(settings: Settings, progress: embedded.Progress) -> Selection:
    """The faster of both on this machine, for so few sequences; remembered."""
    source = _source(settings, progress)
    memory = _trial_memory(source, settings)
    sequences = trial_sequences(settings.max_num_seqs)
    trials = measure.recall(memory, MEASURED)
    if trials is None:
        with measure.undisturbed(settings.cache_dir):
            # Another process may have measured while this one waited.
            trials = measure.recall(memory, MEASURED) or _trials(settings, memory, sequences)
    return fastest(trials, sequences)


def _trials(settings: Settings, memory: Path, sequences: int) -> dict[str, measure.Trial]:
    """Measure both, and remember what was found if it would be found again."""
    ready: dict[str, Values] = {}
    trials: dict[str, measure.Trial] = {}
    for name in MEASURED:
        try:
            ready[name] = _trial_values(name, settings)
        except SetupError as error:
            trials[name] = measure.Trial(None, str(error).rstrip("."), is_lasting=False)
    if ready:
        _log.warning("measuring which backend is faster here, once")
    for name, values in ready.items():
        trials[name] = measure.measure(name, values, sequences)
    has_figure = any(trial.tokens_per_s is not None for trial in trials.values())
    if not has_figure:
        return trials  # loading one will say what is wrong
    for name, trial in trials.items():
        if trial.failure is not None:
            _log.warning("the %s backend could not be measured: %s", name, trial.failure)
    if all(trial.is_lasting for trial in trials.values()):
        measure.remember(memory, trials)
    return trials


def _trial_values(name: str, settings: Settings) -> Values:
    """What the backend would be told, its kernels as they would be in the end."""
    values = _values(name, settings)
    if name == "llamacpp":
        model = Path(str(values["model"]))
        values["extra_kernels"] = _can_use_extra_kernels(model, settings, warns=False)
    return values


def _trial_memory(source: Path, settings: Settings) -> Path:
    """Where the trials of this model, these libraries and this machine are remembered."""
    status = source.stat()
    facts = [
        str(source.resolve()),
        [status.st_size, status.st_mtime_ns],
        [measure.builds(DISTRIBUTIONS[name]) for name in MEASURED],
        asdict(read_processor()),
        settings.threads or usable_cores(),
        trial_sequences(settings.max_num_seqs),
        _has_own_cells(source, settings),
    ]
    return measure.memory_path(settings.cache_dir, facts)


def _has_own_cells(source: Path, settings: Settings) -> bool:
    """Whether llama.cpp would have cells for each slot: it is several times faster then."""
    try:
        sizes = size_llamacpp(settings, read_header(source), available_bytes())
    except SetupError:
        return False  # loading will say what is wrong
    return sizes.slot_tokens_max != 0
