"""llama.cpp as a kind of backend: which models, and its values for given settings.

See `jitney.backends.kind`. This module does not load the library.
"""

import functools
import logging
import signal
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any  # Any: plain values for the backend's settings

from jitney.backends.kind import (
    SAME_TEXTS,
    Kind,
    Library,
    Needs,
    Values,
    threads_of,
    version_of,
)
from jitney.backends.llamacpp import asked, attention, kernels, library, prebuilt
from jitney.backends.llamacpp.memory_layout import (
    Q8,
    SLOTS_MAX,
    own_cells,
    size_llamacpp,
    token_bytes_of,
    unfit_heads,
)
from jitney.backends.machine.free_memory import available_bytes, refuse_too_large
from jitney.backends.trials.trial import try_backend
from jitney.config import Settings
from jitney.config.settings import GPU_LAYERS_ALL
from jitney.errors import ConfigError, SetupError
from jitney.models import conversions
from jitney.models.gguf import GgufHeader, read_header

_log = logging.getLogger("jitney")

ADVICE = "`jitney backends --add llamacpp` adds it, prebuilt; the extra `llama` compiles it"
NO_SPARE = (
    "This model keeps a recurrent state, and no slot is left to keep one for others: each prompt "
    "is computed whole; lower max_num_seqs"
)
Q8_KIND = "Q8_0"
Q8_FILE = "model.gguf"
Q8_BYTES_PER_WEIGHT = 34 / 32


def installed() -> Library | None:
    """The installed package with the library."""
    found = library.find()
    if found is None:
        return None
    distribution = library.PACKAGES[found.module]
    version = version_of(distribution)
    return Library((distribution,), version and f"{version} ({distribution})")


def check(settings: Settings) -> None:
    """Refuse what it cannot do with any model, before one is fetched. Raises ConfigError."""
    if settings.max_num_seqs > SLOTS_MAX:
        raise ConfigError(
            f"max_num_seqs is {settings.max_num_seqs}, and llama.cpp has at most "
            f"{SLOTS_MAX} sequences; lower it."
        )
    if settings.kv_cache_dtype == Q8 and settings.flash_attention == "off":
        raise ConfigError(
            f"kv_cache_dtype is {Q8} and flash_attention is off, and llama.cpp has only fused "
            f"attention for {Q8}; leave one of them out."
        )


def failure(settings: Settings) -> str | None:
    """Why it cannot run models here, as a clause; None when it ran one."""
    # The compiler may have made only the fastest kernels wrong; models can run without them.
    for extra_kernels in (True, False):
        tried = {"extra_kernels": extra_kernels}
        found = try_backend(KIND.name, tried, KIND.distributions(), settings.cache_dir)
        if found.status != -signal.SIGILL:
            advice = kernels.unfit(found)
            return f"{found.failure}; {advice}" if advice else found.failure
    return "it was compiled for another processor and stops with an illegal instruction"


def refusal(model: Path, model_len_max: int | None) -> str | None:
    """Why it cannot run this model. Only loading finds what is wrong inside a file."""
    return "it reads GGUF files, and the model is a folder" if model.is_dir() else None


def unknown(head: Path) -> str | None:
    """Why the library would not load the model of this head. Raises ModelError."""
    return asked.unknown(head, KIND.distributions())


def needs(source: Path, settings: Settings) -> Needs:
    """The memory that the model takes. Raises a SetupError."""
    settings = _with_layers(settings)
    header = _header(source, settings)
    if (reason := unfit_heads(header, settings.kv_cache_dtype)) is not None:
        raise ConfigError(f"{reason}.")
    is_here = settings.gpu_layers == 0
    if is_here:
        refuse_too_large(header.file_bytes)
    sizes = size_llamacpp(settings, header, available_bytes())
    return Needs(
        weights_bytes=header.file_bytes,
        token_bytes=token_bytes_of(header, settings.kv_cache_dtype),
        state_bytes=header.state_bytes,
        model_len_max=header.context_length or 0,
        kv_tokens=(sizes.slot_tokens_max or sizes.kv_tokens) if is_here else None,
    )


def ready(source: Path, settings: Settings) -> Path:
    """The file to read: the model itself, or the embedded model with other weights."""
    if settings.model is not None:
        return source

    def quantize(source: Path, folder: Path) -> None:
        target = folder / Q8_FILE
        # On all cores. A source of 4 or 5 bits loses nothing.
        KIND.module("bindings").quantize(source, target, threads=0)
        # Finds a file that is cut short because the disk was full.
        read_header(target)

    # llama.cpp has no batched kernel for the published weights on most processors.
    conversion = conversions.Conversion(
        kind=Q8_KIND, files=(Q8_FILE,), bytes_per_weight=Q8_BYTES_PER_WEIGHT, make=quantize
    )
    return conversions.converted(settings.cache_dir, source, conversion) / Q8_FILE


def values(settings: Settings, source: Path | None) -> Values:
    """The values for `LlamaCppSettings`, with the model made ready. Raises a SetupError."""
    assert source is not None, "This backend takes a model"
    settings = _with_layers(settings)
    model = ready(source, settings)
    header = _header(model, settings)
    if (reason := unfit_heads(header, settings.kv_cache_dtype)) is not None:
        raise ConfigError(f"{model} does not go with these settings: {reason}.")
    is_q8 = settings.kv_cache_dtype == Q8
    if is_q8:
        settings = replace(settings, flash_attention="on")
    sizes = size_llamacpp(settings, header, available_bytes())
    is_pool = sizes.slot_tokens_max == 0
    if is_pool:
        reason = _reason_of_pool(settings, header)
        KIND.report_differences(settings.batch_invariant, reason)
    if header.state_bytes and sizes.slots <= settings.max_num_seqs:
        _log.warning("%s", NO_SPARE)
    # In one pool the fused kernel skips other sequences' cells.
    fused = ("on", "auto") if is_pool else ("on",)
    found: Values = {
        "model": str(model),
        **asdict(sizes),
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "threads": threads_of(settings),
        "gpu_layers": settings.gpu_layers,
        "flash_attention": settings.flash_attention in fused,
        "kv_type": Q8 if is_q8 else "float16",
    }
    found["extra_kernels"] = _runs_extra_kernels(found, settings)
    if is_pool:
        return found
    found |= attention.choose(found, settings, header, KIND.distributions())
    if not found["batch_invariant"]:
        KIND.report_differences(settings.batch_invariant)
    return found


def trial_values(model: Path, folder: Path, numbers: Mapping[str, Any]) -> Values:
    """The values to run the tiny model, which needs no conversion."""
    return {"model": str(model), "threads": 2, "slot_tokens_max": 256, **numbers}


def speed_facts(source: Path, settings: Settings) -> object:
    """Whether each slot would have cells of its own: it is several times faster then. And the
    layers on a GPU, if there are any."""
    settings = _with_layers(settings)
    try:
        sizes = size_llamacpp(settings, _header(source, settings), available_bytes())
    except SetupError:
        return False  # loading reports what is wrong
    is_split = sizes.slot_tokens_max != 0
    return [is_split, settings.gpu_layers] if settings.gpu_layers else is_split


def _with_layers(settings: Settings) -> Settings:
    """The settings without layers on a GPU where as many as can be are none."""
    if settings.gpu_layers != GPU_LAYERS_ALL or (library.gpus() and _finds_gpu()):
        return settings
    return replace(settings, gpu_layers=0)


def _header(model: Path, settings: Settings) -> GgufHeader:
    return asked.full_header(model, KIND.distributions(), settings.cache_dir)


@functools.cache
def _finds_gpu() -> bool:
    return asked.finds_gpu()


def _runs_extra_kernels(values: Values, settings: Settings) -> bool:
    """Whether the model runs with the fastest kernels: a child tries it first."""
    distributions = KIND.distributions()
    if not distributions or (settings.gpu_layers and not _finds_gpu()):
        return True  # loading says what is missing
    is_usable = kernels.are_usable(values, settings.cache_dir, distributions)
    if not is_usable:
        _log.warning("%s", kernels.SLOW_NOTICE)
    return is_usable


def _reason_of_pool(settings: Settings, header: GgufHeader) -> str:
    """Why one pool does not promise equal texts, and how much memory would."""
    if header.state_bytes:
        return (
            "layers of this model keep a recurrent state, and nobody tried whether texts stay equal"
        )
    tokens = own_cells(settings, header).kv_tokens
    if settings.gpu_layers != 0:
        return "llama.cpp on a GPU does not promise equal texts; leave it out, or gpu_layers"
    return (
        f"each sequence needs its own memory for that: kv_tokens of {tokens} (or a memory_limit "
        "that holds them); fewer sequences (max_num_seqs) or a smaller max_model_len need less"
    )


KIND = Kind(
    name="llamacpp",
    title="llama.cpp",
    classes=("LlamaCppSettings", "make_backend"),
    models="GGUF files of every architecture that llama.cpp knows",
    runs_on="the CPU, and a GPU if llama.cpp was built for one (--gpu-layers)",
    memory="single tokens; cells for each slot where they fit, one pool elsewhere and where layers "
    "keep a recurrent state",
    block_tokens=1,
    texts=f"{SAME_TEXTS} (--batch-invariant), but where all sequences share one pool",
    extra="llama",
    libraries=tuple(library.PACKAGES),
    library=installed,
    advice=ADVICE,
    advice_unusable=ADVICE,
    add=prebuilt.add,
    own_settings={
        "gpu_layers": "only llama.cpp puts layers on a GPU",
        "flash_attention": "only llama.cpp has the choice",
        "kv_cache_dtype": "llama.cpp has the choice",
    },
    own_values={"kv_cache_dtype": ("auto", "float16", Q8)},
    check=check,
    failure=failure,
    refusal=refusal,
    unknown=unknown,
    needs=needs,
    ready=ready,
    conversions=(Q8_KIND,),
    stores_prefixes=True,
    values=values,
    trial_values=trial_values,
    speed_facts=speed_facts,
)
