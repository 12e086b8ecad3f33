"""Models by name: `owner/name`, `owner/name:quant` and `owner/name/file.gguf`.

Says what a name means, and which files of a repository it selects. Pure, except for one check
whether a path exists. Any thread. Imports nothing large.
"""

import importlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from jitney.errors import MissingDependency, ModelError
from jitney.models.parts import part_name

PREFERRED = ("Q4_K_M", "Q8_0")
"""The quants to take when none is given: first a small and good one, then a large and better."""

NAMES_MAX = 40
_REPOSITORY = r"([A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96})"
_BY_QUANT = re.compile(_REPOSITORY + r"(?::([\w.-]{1,64}))?", re.ASCII)
_BY_FILE = re.compile(_REPOSITORY + r"/([^\0\\]+\.gguf)", re.ASCII | re.IGNORECASE)
_QUANT = re.compile(
    r"(?<![A-Z0-9])(?:UD-)?(?:I?Q[1-8](?:_[A-Z0-9]+)*|TQ[12]_0|BF16|FP?16|FP?32|MXFP4(?:_[A-Z]+)*)"
    r"(?![A-Z0-9])",
    re.IGNORECASE,
)
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
_BESIDE = (
    *("chat_template.jinja", "generation_config.json", "model.safetensors.index.json"),
    "tokenizer_config.json",
)
_WEIGHTS = re.compile(r"model(?:-([0-9]{5})-of-([0-9]{5}))?\.safetensors")
"""What a model of safetensors consists of. Nothing else is fetched, and no code of a repository."""
FOLDER_LABEL = "safetensors"
_NOT_MODELS = ("mmproj", "imatrix")
"""Parts of the names of GGUF files that are not models themselves."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A model on the hub: its repository, and optionally a quant or a file."""

    repository: str
    quant: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        if self.file is not None:
            return f"{self.repository}/{self.file}"
        return self.repository if self.quant is None else f"{self.repository}:{self.quant}"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model among the files of a repository: one GGUF, its parts in their order, or a folder."""

    label: str
    """Its quant, or its file name if that contains no quant."""
    files: tuple[str, ...]

    @property
    def is_folder(self) -> bool:
        """Whether these files are a model together, in their folder, and not one GGUF."""
        return self.files[0] == CONFIG


def parse_reference(text: str) -> Reference | None:
    """The reference in a text; None if the text can only be a path."""
    matched = _BY_FILE.fullmatch(text)
    if matched is not None and ".." not in PurePosixPath(text).parts:
        return Reference(matched[1], file=matched[2])
    matched = _BY_QUANT.fullmatch(text)
    # A name with .gguf is a mistyped path, not a repository.
    if matched is None or text.lower().endswith(".gguf") or ".." in text:
        return None
    return Reference(matched[1], quant=matched[2])


def reference_of(model: Path | None) -> Reference | None:
    """The reference in a `model` setting; None for a path. Anything that exists is a path."""
    if model is None or model.is_absolute():
        return None
    reference = parse_reference(str(model))
    try:
        return None if reference is None or model.exists() else reference
    except OSError:
        return None  # Reading the path will report what is wrong.


def models_among(files: Iterable[str]) -> list[ModelFiles]:
    """The models among the files of a repository, sorted by name, with their parts together."""
    files = list(files)
    whole: list[ModelFiles] = []
    parts: dict[tuple[str, int], dict[int, str]] = {}
    for file in sorted(files):
        name = PurePosixPath(file).name
        if not name.lower().endswith(".gguf") or any(word in name.lower() for word in _NOT_MODELS):
            continue
        part = part_name(file)
        if part is None:
            whole.append(ModelFiles(_label(file.removesuffix(name[-5:])), (file,)))
        else:
            parts.setdefault((part.stem, part.count), {})[part.number] = file
    for (stem, count), found in parts.items():
        if len(found) == count:
            whole.append(ModelFiles(_label(stem), tuple(found[at] for at in sorted(found))))
    return sorted(whole, key=lambda each: each.files) or _folder_among(files)


def _folder_among(files: Iterable[str]) -> list[ModelFiles]:
    """The model whose weights are safetensors, with all files that belong to it, if it is there."""
    names = set(files)
    weights = sorted(name for name in names if _WEIGHTS.fullmatch(name))
    if not weights or not {CONFIG, TOKENIZER} <= names:
        return []
    part = _WEIGHTS.fullmatch(weights[-1])
    if part is not None and part[2] is not None and len(weights) != int(part[2]):
        return []
    beside = [name for name in _BESIDE if name in names]
    return [ModelFiles(FOLDER_LABEL, (CONFIG, TOKENIZER, *beside, *weights))]


def choose_model(reference: Reference, among: Sequence[ModelFiles]) -> ModelFiles:
    """The model that the reference selects. Raises ModelError with a list of choices."""
    if not among:
        raise ModelError(
            f"{reference.repository} has no GGUF file, and no safetensors with config.json and "
            "tokenizer.json; take a repository that has, often the same name with -GGUF."
        )
    found: Sequence[ModelFiles]
    if reference.file is not None:
        found = [each for each in among if reference.file in each.files]
    elif reference.quant is not None:
        found = _of_quant(reference.quant, among)
    else:
        found = _preferred(among)
    if len(found) == 1:
        return found[0]
    raise ModelError(_choice_message(reference, found, among))


def hub_module(name: str) -> Any:  # Any: a module
    """A module of `jitney.models` that needs the hub's library. Raises MissingDependency."""
    try:
        return importlib.import_module(f"jitney.models.{name}")
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("huggingface_hub", "httpx2"):
            raise
        raise MissingDependency(
            "Models by name need huggingface_hub 2.4 or newer, which is not installed: install "
            "jitney with the extra `hub`, or name a GGUF file."
        ) from error


def _preferred(among: Sequence[ModelFiles]) -> Sequence[ModelFiles]:
    for quant in PREFERRED:
        found = [each for each in among if each.label.upper() == quant]
        if found:
            return found
    return among


def _of_quant(quant: str, among: Sequence[ModelFiles]) -> list[ModelFiles]:
    exact = [each for each in among if each.label.upper() == quant.upper()]
    if exact:
        return exact
    word = re.compile(rf"(?<![A-Z0-9]){re.escape(quant)}(?![A-Z0-9_])", re.IGNORECASE)
    return [each for each in among if word.search(each.files[0])]


def _choice_message(
    reference: Reference, found: Sequence[ModelFiles], among: Sequence[ModelFiles]
) -> str:
    """A message with the available models, and how to name one."""
    labels = list(dict.fromkeys(each.label for each in found or among))
    of = reference.repository
    if reference.file is not None:
        names = [each.files[0] for each in among]
        return f"{of} has no file {reference.file}; it has {_listing(names)}."
    if len(found) > 1 and (reference.quant is not None or len(labels) < len(found)):
        names = [each.files[0] for each in found]
        quant = reference.quant or labels[0]
        return (
            f"{of} has several models of {quant}: {_listing(names)}; name one, such as "
            f"{of}/{names[0]}."
        )
    lead = f"no {reference.quant}; it has" if reference.quant is not None else "several models:"
    return f"{of} has {lead} {_listing(labels)}; choose one, such as {of}:{labels[0]}."


def _listing(names: Sequence[str]) -> str:
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def _label(stem: str) -> str:
    """The last quant in a name, in capitals; the name itself if it has none."""
    # The folder may name the quant if the file does not.
    found = _QUANT.findall(PurePosixPath(stem).name) or _QUANT.findall(stem)
    return found[-1].upper() if found else PurePosixPath(stem).name
