"""OpenVINO as a kind of backend: which models, and its values for given settings.

See `jitney.backends.kind`. This module does not load the library. Its paged attention exists for
some processors only. A trial finds whether this one has it: elsewhere the library raises an error,
or the process crashes.
"""

import importlib.util
import logging
from collections.abc import Mapping
from dataclasses import dataclass
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
from jitney.backends.machine.free_memory import available_bytes, free_beside, refuse_too_large
from jitney.backends.machine.processor import read_processor
from jitney.backends.openvino import families
from jitney.backends.openvino.families import BLOCK_TOKENS, Dtypes, dtypes
from jitney.backends.shared.sizing import TokenMemory, size_paged
from jitney.backends.trials.trial import alike_values, try_backend
from jitney.config import Settings
from jitney.models import conversions
from jitney.models.folder import is_hub_folder
from jitney.models.gguf import read_header

_log = logging.getLogger("jitney")

LIBRARIES = ("openvino", "openvino_genai", "gguf", "tokenizers")
DISTRIBUTIONS = ("openvino", "openvino-genai", "gguf", "tokenizers")
SHAPE_FACTS = ("model", "threads", "inference_precision", "kv_precision", "activation_group")
"""The values that decide in which shapes all tokens are computed alike."""

CONVERSION = "openvino-3"
FLOAT16_BYTES_PER_WEIGHT = 4.5
PACKED_BYTES_PER_WEIGHT = 2.5
"""Weights are written twice: as a GGUF for the reader, and as the result."""

_ATTENTION = "PagedAttention"
"""Its errors have no code, and it has no list of operations per processor. So this name in the text
of its error decides which sentence is shown, and nothing else."""


@dataclass(frozen=True, slots=True)
class DtypeChoice:
    """The types of numbers on this machine, and why they do not work; None when they do."""

    dtypes: Dtypes
    failure: str | None


def installed() -> Library | None:
    """All of its packages, or nothing."""
    if any(importlib.util.find_spec(name) is None for name in LIBRARIES):
        return None
    return Library(DISTRIBUTIONS, version_of(DISTRIBUTIONS[0]))


def chosen_dtypes(settings: Settings) -> DtypeChoice:
    """The types of numbers to compute with, after a trial. `auto` is the best that works."""
    threads, kv_cache_dtype = threads_of(settings), settings.kv_cache_dtype
    first = dtypes(settings.dtype, kv_cache_dtype, threads)
    if KIND.library() is None:
        return DtypeChoice(first, "it is not installed")
    failure = _failure(first, threads, settings.cache_dir)
    if failure is not None and settings.dtype == "auto" and first.inference != "f32":
        plain = dtypes("auto", kv_cache_dtype, threads, is_half=False)
        if _failure(plain, threads, settings.cache_dir) is None:
            return DtypeChoice(plain, None)
    return DtypeChoice(first, failure)


def _failure(chosen: Dtypes, threads: int, cache: Path) -> str | None:
    tried = {
        "inference_precision": chosen.inference,
        "kv_precision": chosen.kv,
        "activation_group": chosen.activation_group,
        # The compiled model depends only on whether there is more than one.
        "threads": min(threads, 2),
    }
    found = try_backend(KIND.name, tried, DISTRIBUTIONS, cache)
    if found.failure is not None and _ATTENTION in found.failure:
        return "its paged attention does not exist for this processor"
    return found.failure


def refusal(model: Path, model_len_max: int | None) -> str | None:
    """Why it cannot run this model, with sequences of this length. Raises ModelError."""
    if families.is_exported(model):
        return None
    if is_hub_folder(model):
        return "it is a folder with safetensors, which was not exported for OpenVINO"
    return families.refusal(read_header(model), model_len_max)


def needs(source: Path, settings: Settings) -> Needs:
    """The memory that the model takes, before it is converted. Raises a SetupError."""
    facts, chosen = families.facts(source), chosen_dtypes(settings).dtypes
    if families.is_exported(source):
        weights_bytes = _exported_bytes(source)
    else:
        header = read_header(source)
        is_packed = chosen.weights(header.parameter_count) == "packed"
        weights_bytes = header.file_bytes if is_packed else 2 * header.parameter_count
    refuse_too_large(weights_bytes)
    available = available_bytes()
    memory = TokenMemory(
        token_bytes=facts.kv_values_per_token * chosen.kv_bytes,
        unit=BLOCK_TOKENS,
        free_bytes=None if available is None else available - weights_bytes,
    )
    return Needs(
        weights_bytes=weights_bytes,
        token_bytes=memory.token_bytes,
        model_len_max=facts.model_len_max,
        kv_tokens=size_paged(settings, facts.model_len_max, memory).kv_tokens,
    )


def _exported_bytes(folder: Path) -> int:
    return sum((folder / name).stat().st_size for name in families.FILES)


def numbers(settings: Settings) -> str:
    """The types of numbers that it would compute with, in words: what `auto` means here."""
    chosen = chosen_dtypes(settings).dtypes
    threads = threads_of(settings)
    names = families.LONG_NAMES
    text = f"{names[chosen.inference]}, keys and values in {names[chosen.kv]}"
    if chosen.activation_group:
        text += ", activations rounded to 8 bits"
    model = settings.model
    if model is not None and not families.is_exported(model):
        text += f", weights {chosen.weights(read_header(model).parameter_count)}"
    return f"{text}, {threads} threads" if threads > 1 else f"{text}, one thread"


def ready(source: Path, settings: Settings) -> Path:
    """The folder of the converted model. Raises ModelError."""
    if families.is_exported(source):
        return source
    header = read_header(source)
    weights = chosen_dtypes(settings).dtypes.weights(header.parameter_count)
    is_wide = weights == "float16" or header.weight_types <= {"F32", "F16", "BF16"}

    # In the hub's cache the file to convert has another name.
    name = source.name

    def convert(source: Path, folder: Path) -> None:
        _log.warning(
            "%s is being converted for OpenVINO, once; a billion weights take about a minute", name
        )
        KIND.module("convert").write_model(source, folder, weights=weights)

    conversion = conversions.Conversion(
        kind=f"{CONVERSION}-{weights}",
        files=families.FILES,
        bytes_per_weight=FLOAT16_BYTES_PER_WEIGHT if is_wide else PACKED_BYTES_PER_WEIGHT,
        make=convert,
    )
    return conversions.converted(settings.cache_dir, source, conversion)


def values(settings: Settings, source: Path | None) -> Values:
    """The values for `OpenVinoSettings`, with the model made ready. Raises a SetupError."""
    assert source is not None, "This backend takes a model"
    model = ready(source, settings)
    facts = families.facts(source)
    chosen = chosen_dtypes(settings).dtypes
    if chosen.inference == "f32" and settings.dtype == "auto" and read_processor().has_bfloat16:
        _log.warning(
            "OpenVINO computes with float32 and rounded activations on one thread, because its "
            "bfloat16 needs two; answers differ a little from those on more threads"
        )
    memory = TokenMemory(
        token_bytes=facts.kv_values_per_token * chosen.kv_bytes,
        unit=BLOCK_TOKENS,
        free_bytes=free_beside(model, _exported_bytes(model)),
    )
    sizes = size_paged(settings, facts.model_len_max, memory)
    found: Values = {
        "model": str(model),
        "vocabulary": str(source),
        "kv_tokens": sizes.kv_tokens,
        "slots": sizes.slots,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "model_len_max": facts.model_len_max,
        "threads": threads_of(settings),
        "inference_precision": chosen.inference,
        "kv_precision": chosen.kv,
        "activation_group": chosen.activation_group,
    }
    return found | alike_values(KIND, settings, found, _shapes(found), SHAPE_FACTS)


def trial_values(model: Path, folder: Path, numbers: Mapping[str, Any]) -> Values:
    """The values to run the tiny model, which is converted first."""
    target = folder / "converted"
    target.mkdir()
    weights = "float16" if numbers.get("inference_precision") == "bf16" else "packed"
    KIND.module("convert").write_model(model, target, weights=weights)
    found: Values = {"model": str(target), "vocabulary": str(model), "model_len_max": 512}
    return found | {"threads": 2} | dict(numbers)


def _shapes(found: Values) -> list[Values]:
    """Rows of a pass in which all tokens may be computed alike."""
    threads = max(int(found["threads"]), 2)
    return [
        {"rows_min": rows, "head_rows_min": head, "decodes_differ": True}
        for rows, head in ((threads, 2), (threads, threads), (2 * threads, 2 * threads))
    ]


KIND = Kind(
    name="openvino",
    title="OpenVINO",
    classes=("OpenVinoSettings", "make_backend"),
    models=f"GGUF files of the architectures {', '.join(families.ARCHITECTURES)}, with "
    f"weights of {', '.join(sorted(families.WEIGHT_TYPES))}; folders exported for OpenVINO",
    runs_on="the CPU",
    memory=f"blocks of {BLOCK_TOKENS} tokens; equal beginnings share theirs",
    block_tokens=BLOCK_TOKENS,
    texts=f"{SAME_TEXTS} (--batch-invariant)",
    extra="openvino",
    libraries=LIBRARIES,
    library=installed,
    advice="the extra `openvino` of jitney installs it",
    advice_unusable="take a GGUF file of the model",
    own_settings={
        "dtype": "OpenVINO has the choice",
        "kv_cache_dtype": "OpenVINO has the choice",
    },
    own_values={
        "dtype": ("auto", "float32", "bfloat16"),
        "kv_cache_dtype": ("auto", "uint8", "bfloat16", "float16", "float32"),
    },
    failure=lambda settings: chosen_dtypes(settings).failure,
    refusal=refusal,
    needs=needs,
    ready=ready,
    conversions=tuple(f"{CONVERSION}-{weights}" for weights in ("float16", "packed")),
    stores_prefixes=True,
    values=values,
    trial_values=trial_values,
    numbers=numbers,
)
