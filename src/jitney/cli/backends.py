"""`jitney backends`: what is installed, what works here, and which one a model would get.

Main thread. Each backend is tried once, in a child process. Without `--measure` and `--add` nothing
is fetched or converted, and nothing but the answers of those trials is written.
"""

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jitney.backends.llamacpp import prebuilt
from jitney.backends.llamacpp import usable as llamacpp
from jitney.backends.openvino import families
from jitney.backends.openvino import usable as openvino
from jitney.backends.openvino.families import BLOCK_TOKENS
from jitney.cli.flags import Given, resolved
from jitney.cli.pull import fetch_model, show_log
from jitney.cli.terminal import printable
from jitney.cli.verbs import BackendsOptions
from jitney.config import Settings
from jitney.errors import ConfigError, MissingDependency, SetupError
from jitney.loading import (
    backend_failure,
    foreseen,
    foreseen_backend,
    installed_backends,
    library_version,
    openvino_numbers,
    select_backend,
)
from jitney.loading.selection import FEW_SEQUENCES, Selection
from jitney.models import embedded
from jitney.models.gguf import read_header

LABELS_WIDTH = 11

ADVICE = {"openvino": openvino.ADVICE, "llamacpp": llamacpp.ADVICE}

NOT_MEASURED = (
    f"with up to {FEW_SEQUENCES} sequences it is the faster one of openvino and llamacpp, which "
    "was not measured for this model yet: the first start measures it, and so does this command "
    "with --measure"
)
NOT_FETCHED = "the model was not fetched yet: jitney pull fetches it, and so does --measure"
_EQUAL = "the same whatever else is in the batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a backend can do, in words."""

    name: str
    extra: str | None
    """The extra that installs it; None where nothing needs to be."""
    models: str
    runs_on: str
    memory: str
    block_tokens: int
    texts: str


KINDS = (
    Kind(
        name="openvino",
        extra="openvino",
        models=f"GGUF files of the architectures {', '.join(families.ARCHITECTURES)}, with "
        f"weights of {', '.join(sorted(families.WEIGHT_TYPES))}; folders exported for OpenVINO",
        runs_on="the CPU",
        memory=f"blocks of {BLOCK_TOKENS} tokens; equal beginnings share theirs",
        block_tokens=BLOCK_TOKENS,
        texts=f"{_EQUAL} (--batch-invariant)",
    ),
    Kind(
        name="llamacpp",
        extra="llama",
        models="GGUF files of every architecture that llama.cpp knows",
        runs_on="the CPU, and a GPU if llama.cpp was built for one (--gpu-layers)",
        memory="single tokens; cells for each slot where they fit, one pool elsewhere",
        block_tokens=1,
        texts=f"{_EQUAL} (--batch-invariant), but where all sequences share one pool",
    ),
    Kind(
        name="fake",
        extra=None,
        models="none: its next token is a hash, for trying things out",
        runs_on="anything",
        memory="single tokens, which are only counted",
        block_tokens=1,
        texts=_EQUAL,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A backend as it is here."""

    kind: Kind
    installed: bool
    version: str | None
    failure: str | None
    """Why it does not work on this machine; None when it was seen to work."""
    refusal: str | None
    """Why it cannot run the model; None when it can, or takes none."""

    @property
    def works(self) -> bool:
        """Whether it could run a model here."""
        return self.installed and self.failure is None

    @property
    def state(self) -> str:
        """Its version and whether it works here, or what to do about its absence."""
        if self.kind.extra is None:
            return "built in"
        if not self.installed:
            return f"not installed: {ADVICE[self.kind.name]}"
        version = self.version or "installed, of an unknown version"
        told = "it was seen to" if self.failure is None else f"no: {self.failure}"
        return f"{version}; works here: {told}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """All that the command tells. `chosen` is None where there is none, or none yet."""

    model: str
    listed: tuple[Listed, ...]
    chosen: str | None
    reason: str
    numbers: str | None = None
    """What it would compute with, where that is a choice."""


def call(options: BackendsOptions, given: Given) -> int:
    """Carry out the command; the exit code."""
    settings = resolved(_with_model(given, options.named)).settings
    show_log(every_tick=False)
    if options.add is not None:
        _add(options.add, settings)
    found = overview(settings, measures=options.measure)
    if options.json:
        sys.stdout.write(overview_json(found) + "\n")
        return 0
    if sys.stdout.isatty():
        Console(highlight=False).print(_table(found))
        return 0
    # Lines are not broken where a program reads them.
    for row in _rows(found):
        sys.stdout.write(f"{row.label:<{LABELS_WIDTH}}{row.text}".rstrip() + "\n")
    return 0


def overview(settings: Settings, *, measures: bool = False) -> Overview:
    """What is here, and what these settings would get. Raises ModelError for a bad model."""
    here = foreseen(settings)
    if here is None and measures:
        fetch_model(settings)
        here = foreseen(settings)
    refusals = {} if here is None else _refusals(here.model, here.max_model_len)
    installed = installed_backends()
    listed = tuple(
        Listed(
            kind=kind,
            installed=kind.extra is None or kind.name in installed,
            version=library_version(kind.name) if kind.name in installed else None,
            failure=backend_failure(kind.name, settings) if kind.name in installed else None,
            refusal=refusals.get(kind.name),
        )
        for kind in KINDS
    )
    try:
        selection = None if here is None else _selection(here, measures=measures)
        reason = NOT_FETCHED if here is None else NOT_MEASURED
        reason = reason if selection is None else selection.reason
    except (ConfigError, MissingDependency) as error:
        selection, reason = None, str(error).rstrip(".")
    chosen = None if selection is None else selection.name
    return Overview(
        model=_model_text(settings, is_here=here is not None),
        listed=listed,
        chosen=chosen,
        reason=reason + _obstacle(chosen, listed),
        numbers=openvino_numbers(here) if here is not None and chosen == "openvino" else None,
    )


def _add(name: str, settings: Settings) -> None:
    """Put the library of a backend into this environment. Raises a SetupError."""
    if name != "llamacpp":
        raise ConfigError(
            f"--add takes llamacpp, and got {printable(name)!r}; OpenVINO comes with the extra "
            "`openvino` of jitney."
        )
    sys.stderr.write("jitney: adding llama.cpp, prebuilt\n")
    try:
        version = prebuilt.add(settings.cache_dir)
    except SetupError as error:
        raise SetupError(
            f"llama.cpp could not be added: {str(error).rstrip('.')}; the extra `{llamacpp.EXTRA}` "
            "of jitney compiles it instead."
        ) from error
    sys.stderr.write(f"jitney: llama.cpp {version} was added\n")


def _selection(settings: Settings, *, measures: bool) -> Selection | None:
    selection = foreseen_backend(settings)
    if selection is None and measures:
        fetch_model(settings)
        selection = select_backend(settings)
    return selection


def overview_json(found: Overview) -> str:
    """An object with the backends, the choice and its reason."""
    backends = [
        {
            **asdict(each.kind),
            "installed": each.installed,
            "works": each.works,
            "failure": each.failure,
            "version": each.version,
            "refusal": each.refusal,
        }
        for each in found.listed
    ]
    told = {
        "model": found.model,
        "chosen": found.chosen,
        "reason": found.reason,
        "numbers": found.numbers,
    }
    return json.dumps({"backends": backends, **told}, indent=2)


def _with_model(given: Given, model: str | None) -> Given:
    if model is None:
        return given
    if given.flags.get("model") is not None:
        raise ConfigError("The model is given twice, with --model and without; leave one out.")
    return replace(given, flags={**given.flags, "model": model})


def _refusals(model: Path | None, model_len_max: int | None) -> dict[str, str]:
    """Why a backend cannot run the model, for those that cannot. Raises ModelError."""
    if model is None:
        return {}
    if families.is_exported(model):
        return {"llamacpp": "it reads GGUF files, and the model is a folder"}
    refusal = families.refusal(read_header(model), model_len_max)
    return {} if refusal is None else {"openvino": refusal}


def _model_text(settings: Settings, *, is_here: bool) -> str:
    if settings.backend == "fake":
        return "none, with the fake backend"
    if settings.model is not None:
        return f"{settings.model}" + ("" if is_here else ", not fetched yet")
    is_there = embedded.is_there(settings.cache_dir)
    return f"{embedded.NAME}, the embedded one" + ("" if is_there else ", not fetched yet")


def _obstacle(chosen: str | None, listed: tuple[Listed, ...]) -> str:
    """What stands against a choice that settings have forced."""
    each = next((each for each in listed if each.kind.name == chosen), None)
    if each is None:
        return ""
    if not each.installed:
        return f"; but it is {each.state}"
    return f"; but it cannot run the model: {each.refusal}" if each.refusal else ""


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of the answer; those of a heading begin at the margin."""

    label: str
    text: str
    style: str = ""


def _rows(found: Overview) -> list[_Row]:
    rows = []
    for each in found.listed:
        kind = each.kind
        rows += [
            _Row(kind.name, each.state, "green" if each.works else "yellow"),
            _Row("  models", kind.models),
            _Row("  runs on", kind.runs_on),
            _Row("  memory", kind.memory),
            _Row("  texts", kind.texts),
        ]
        if each.refusal is not None:
            rows.append(_Row("  refuses", f"this model: {printable(each.refusal)}"))
        rows.append(_Row("", ""))
    name = found.chosen or (
        "not known yet" if found.reason in (NOT_MEASURED, NOT_FETCHED) else "none"
    )
    rows += [
        _Row("model", printable(found.model)),
        _Row("chosen", name, "bold"),
        _Row("  because", printable(found.reason)),
    ]
    if found.numbers is not None:
        rows.append(_Row("  with", found.numbers))
    return rows


def _table(found: Overview) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=0)
    table.add_column(width=LABELS_WIDTH)
    table.add_column(overflow="fold")
    for row in _rows(found):
        style = "dim" if row.label.startswith(" ") else "bold"
        table.add_row(Text(row.label, style=style), Text(row.text, style=row.style))
    return table
