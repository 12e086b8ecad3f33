"""All that the rest of jitney knows about a backend: `Kind`, made in the `kind.py` of each.

To add a backend, write a package `jitney.backends.NAME` and add NAME to `BackendName` in
`jitney.config.settings`. That line is the list of backends, and everything else loops over it.
jitney looks for two modules in the package:

- `backend.py` has a frozen dataclass of settings, and a function that makes a backend from them.
  Where the model computes logits and the host samples, the backend is a `ModelBackend` of
  `jitney.backends.shared.model_backend`; else any `jitney.core.backend.Backend`. Settings are plain
  values, because they may go to another process. They must include `slots`, `kv_tokens` and
  `max_num_batched_tokens`: trials and the conformance tests set these.
- `kind.py` has `KIND`, a `Kind`. It is read on machines without the library, so it must not import
  the library, nor anything that does.

The order of the list matters: where several backends can run a model, jitney prefers the earlier
one. Functions of a kind are called at start-up and by the command line, from any thread. They get
the whole `Settings`, so `backends` is above `config` in the layers. A smaller type for them would
repeat the same fields.

Tests: tests/unit/backends/test_kinds.py.
"""

import importlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any  # Any: a module, and settings before their dataclass has checked them

from jitney.backends.machine.cores import usable_cores
from jitney.config import Settings
from jitney.core.backend import Backend
from jitney.errors import ConfigError, MissingDependency

Values = dict[str, int | bool | str]
"""The values of a backend's own settings, by name."""

SAME_TEXTS = "the same whatever else is in the batch"
MAY_DIFFER = "What else is in the batch can change a text here (batch_invariant)"

_log = logging.getLogger("jitney")


@dataclass(frozen=True, slots=True)
class Library:
    """The library of a backend, as it is installed here."""

    distributions: tuple[str, ...] = ()
    """Its packages, by their names in pip. The result of a trial is valid for these builds only."""
    version: str | None = None
    """In words, for `jitney backends`; None where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The memory that a model takes on this machine, and how long its sequences may be now."""

    weights_bytes: int
    token_bytes: float
    """Keys and values of one token; 0 where the model does not say."""
    state_bytes: int = 0
    """The recurrent state of a sequence."""
    model_len_max: int
    """The longest sequence that the model was made for; 0 where it does not say."""
    kv_tokens: int | None
    """The tokens that one sequence may have of the memory; None where that is a GPU's, which only
    the library knows."""

    def length(self, settings: Settings) -> int | None:
        """The longest sequence with these settings; None where it is not known."""
        if self.kv_tokens is None:
            return None
        is_even = settings.max_per_sequence == "even"
        tokens = max(self.kv_tokens // (settings.max_num_seqs if is_even else 1), 1)
        lengths = (tokens, self.model_len_max, settings.max_model_len)
        return min(each for each in lengths if each)

    def in_words(self, settings: Settings) -> str:
        """All of it, for people."""
        words = [f"{_in_units(self.weights_bytes)} of weights"]
        if self.token_bytes:
            words.append(f"{_in_units(self.token_bytes)} for each token of context")
        if self.state_bytes > 1:
            words.append(f"{_in_units(self.state_bytes)} for the state of each sequence")
        length = self.length(settings)
        if length is not None:
            words.append(f"room now for a context of {length} tokens")
        return ", ".join(words)


def _in_units(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.{int(unit != 'bytes')}f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of backend. Fields without a default are required."""

    name: str
    """The name of its package, and the value of the setting `backend`."""
    title: str
    """Its name in a sentence."""
    classes: tuple[str, str]
    """Names in `backend.py`: the dataclass of its settings, and what makes a backend from them."""

    models: str
    """Which models it runs. This field and the next four are words for `jitney backends`."""
    runs_on: str
    memory: str
    block_tokens: int
    texts: str

    values: Callable[[Settings, Path | None], Values]
    """The values for its settings, with the sizes of its memory. The second argument is the model
    as it was published; None where the backend takes no model. The function makes the model ready,
    and the value `model` is the path that the backend reads. With these values, loading does not
    crash the process."""
    trial_values: Callable[[Path, Path, Mapping[str, Any]], Values]
    """The values to run a tiny GGUF, for its trial and for the tests. The arguments are the file, a
    folder for converted files, and the values to try. The caller adds the sizes."""

    failure: Callable[[Settings], str | None]
    """Why it does not work on this machine, as a clause; None when it works.
    `jitney.backends.trials.trial` tries it in a child process, and remembers the result."""

    takes_model: bool = True
    is_automatic: Callable[[], bool] = lambda: True
    """Whether jitney may choose it on this machine where the user names no backend."""
    extra: str | None = None
    """The extra of jitney that installs its library; None where there is nothing to install."""
    libraries: tuple[str, ...] = ()
    """Modules of the library. An import error that names one means: it is not installed."""
    library: Callable[[], Library | None] = Library
    """The library as it is installed; None when it is not. Loads nothing."""
    advice: str = ""
    """What the user can do where it is not installed, as a clause."""
    advice_unusable: str = ""
    """What the user can do where no backend can run the model, as a clause."""
    add: Callable[[Path, str], str] | None = None
    """Installs the library, and returns its version. The arguments are the cache folder, and the
    word after the hyphen of `--add NAME-GPU`, or nothing."""

    stores_prefixes: bool = False
    """Whether it can have a disk for prefixes."""
    own_settings: Mapping[str, str] = field(default_factory=dict)
    """Settings that not every backend has, each with the reason as a clause. A user who gives one
    of them gets the first backend that has it, and an error where one without it was chosen."""
    own_values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """All values that it takes of a setting of which others take other values."""
    check: Callable[[Settings], None] = lambda settings: None
    """Refuses other settings that have no meaning here. Raises ConfigError."""
    refusal: Callable[[Path, int | None], str | None] = lambda model, length: None
    """Why it cannot run this model, with sequences of this length; None when it can."""
    unknown: Callable[[Path], str | None] = lambda head: None
    """Why its library could not load a model that it does not refuse, as a clause: asked before its
    weights are fetched. The path is that of its head (`models.hub_head`)."""
    needs: Callable[[Path, Settings], Needs | None] = lambda source, settings: None
    """The memory that a model takes, by its header or its head. Raises a SetupError where this
    machine could not hold it now."""
    ready: Callable[[Path, Settings], Path] = lambda source, settings: source
    """The model in the form that it reads. A converted model is kept in the cache."""
    conversions: tuple[str, ...] = ()
    """Kinds of converted models that it reads; other kinds are from an earlier jitney."""
    numbers: Callable[[Settings], str | None] = lambda settings: None
    """The types of numbers that it computes with, in words; None where there is no choice."""
    speed_facts: Callable[[Path, Settings], object] = lambda source, settings: None
    """What its speed depends on besides the model, the machine and the threads, as JSON."""

    def distributions(self) -> tuple[str, ...]:
        """The packages of the library; none where it is not installed."""
        found = self.library()
        return () if found is None else found.distributions

    def refused_setting(self, settings: Settings) -> str | None:
        """A setting whose value only other backends take; None where there is none."""
        refused = (
            name
            for name, values in self.own_values.items()
            if getattr(settings, name) not in values
        )
        return next(refused, None)

    def value_refusal(self, settings: Settings) -> str | None:
        """Why it does not take such a value, as a clause; None where it takes all."""
        name = self.refused_setting(settings)
        if name is None:
            return None
        values = ", ".join(self.own_values[name])
        return f"it does not take {name} {getattr(settings, name)}, but {values}"

    def module(self, name: str) -> Any:
        """A module of its package that loads the library. Raises MissingDependency."""
        try:
            return importlib.import_module(f"jitney.backends.{self.name}.{name}")
        except ImportError as error:
            if (error.name or "").split(".")[0] not in self.libraries:
                raise
            raise MissingDependency(
                f"The {self.name} backend needs {self.title}, which is not installed: "
                f"{self.advice}."
            ) from error
        except (OSError, RuntimeError) as error:
            raise MissingDependency(
                f"{self.title} is installed, but cannot be loaded ({error}): {self.advice}."
            ) from error

    def report_differences(self, batch_invariant: str, reason: str = "") -> None:
        """Warn that texts may differ. Raises ConfigError where `batch_invariant` is on."""
        if batch_invariant == "auto":
            _log.warning("%s%s", MAY_DIFFER, f": {reason}" if reason else "")
        if batch_invariant == "on":
            reason = reason or (
                f"no trial found that {self.title} computes this model alike in every batch on "
                "this machine; leave it out, or give off"
            )
            raise ConfigError(f"batch_invariant is on, and {reason}.")

    def load(self, values: Mapping[str, Any]) -> Backend:
        """The backend, in this process. Raises a SetupError."""
        settings, backend = (getattr(self.module("backend"), name) for name in self.classes)
        try:
            checked = settings(**values)
        except TypeError as error:
            raise ConfigError(f"The {self.name} backend has other settings: {error}.") from error
        built: Backend = backend(checked)
        return built


def version_of(distribution: str) -> str | None:
    """The version of an installed package, by its name in pip; None where pip does not know it."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def threads_of(settings: Settings) -> int:
    """The threads of a forward pass: the setting, or all usable cores."""
    return settings.threads or usable_cores()
