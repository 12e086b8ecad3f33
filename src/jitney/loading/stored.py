"""Where prefixes are stored for a model on this machine: `place_of`.

What a backend computes depends on the model, on the build of its library, on the processor and on
how the backend was set up. All of it is in two digests, and a stored prefix is used only where both
are equal: so texts stay equal. How much memory there is does not matter. Called at start-up.

Tests: tests/unit/loading/test_stored.py.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from jitney.backends.kind import Kind, Values
from jitney.backends.kinds import all_kinds
from jitney.backends.machine.processor import read_processor
from jitney.backends.shared.prefix_folder import PrefixFolder
from jitney.backends.shared.prefix_place import PrefixPlace
from jitney.backends.trials.trial import builds
from jitney.config import Settings
from jitney.errors import ConfigError
from jitney.models.conversions import RECORD_NAME
from jitney.models.files import disk_errors, sha256_of
from jitney.models.parts import parts_of
from jitney.version import version

OF_SIZE = ("model", "vocabulary", "slots", "kv_tokens", "max_num_batched_tokens", "model_len_max")
"""Values that change nothing in what a slot holds: how much there is room for, and paths."""


def place_of(kind: Kind, settings: Settings, values: Values) -> PrefixPlace | None:
    """The place for prefixes that these settings give; None where they give none.

    Raises a SetupError.
    """
    folder = settings.prefix_cache_dir
    if folder is None:
        return None
    if not kind.stores_prefixes:
        able = " or ".join(
            each.name for each in all_kinds() if each.stores_prefixes and each.takes_model
        )
        raise ConfigError(
            f"prefix_cache_dir is given, and the {kind.name} backend cannot store prefixes; leave "
            f"it out, or use the backend {able}."
        )
    # An error before the model is loaded.
    PrefixFolder(folder)
    return PrefixPlace(
        folder=str(folder.absolute()),
        limit=settings.prefix_cache_limit,
        model=_model_digest(values),
        shape=_shape_digest(kind, values),
    )


def _model_digest(values: Values) -> str:
    """The digest of all that is read of the model. It is read once for it."""
    digest = hashlib.sha256()
    for name in ("model", "vocabulary"):
        if name not in values:
            continue
        path = Path(str(values[name]))
        with disk_errors(f"{path} cannot be read"):
            for label, each in _files_of(path).items():
                digest.update(f"{name} {label} {sha256_of(each)}\n".encode())
    return digest.hexdigest()


def _files_of(path: Path) -> dict[str, Path]:
    """The files of a model, by their place in it: it may be moved, and be converted once more."""
    if not path.is_dir():
        return {str(number): each for number, each in enumerate(parts_of(path))}
    files = [each for each in sorted(path.rglob("*")) if each.is_file()]
    return {str(each.relative_to(path)): each for each in files if each.name != RECORD_NAME}


def _shape_digest(kind: Kind, values: Values) -> str:
    """The digest of all else that decides the numbers in memory."""
    shape = {name: value for name, value in values.items() if name not in OF_SIZE}
    if "slot_tokens_max" in shape:
        shape["slot_tokens_max"] = bool(shape["slot_tokens_max"])
    library, processor = builds(kind.distributions()), asdict(read_processor())
    facts = [version(), kind.name, library, processor, shape]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
