"""What a backend is to the rest of jitney: `Kind`. The `kind.py` of each backend makes one.

To add a backend, write a package `jitney.backends.NAME` and add NAME to `BackendName` in
`jitney.config.settings`: that line is the list of backends, and everything else loops over it. The
package has two modules that jitney looks for:

- `backend.py` has a frozen dataclass of settings, and a function that makes a backend of them.
  Where the model computes logits and the host samples, that is a `ModelBackend` of
  `jitney.backends.shared.model_backend`; else any `jitney.core.backend.Backend`. Settings are plain
  values, because they may go to another process. Those named `slots`, `kv_tokens` and
  `max_num_batched_tokens` must be among them: trials and the conformance tests set them.
- `kind.py` has `KIND`, a `Kind`. It is asked on machines without the library, so it must not import
  the library, nor anything that does.

The order of the list matters: where several backends can run a model, an earlier one is preferred.
Functions of a kind are called at start-up and by the command line, from any thread. They get
`Settings` as they are, and `backends` stands above `config` in the layers for that: to hand over
each number apart would take a second type with the same fields.

Tests: tests/unit/backends/test_kinds.py.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any  # Any: a module, and settings before their dataclass has checked them

from jitney.backends.machine.cores import usable_cores
from jitney.backends.process.worker_process import Fallback
from jitney.config import Settings
from jitney.core.backend import Backend
from jitney.errors import ConfigError, MissingDependency

Values = dict[str, int | bool | str]
"""What a backend is given, by the names of its own settings."""

SAME_TEXTS = "the same whatever else is in the batch"


@dataclass(frozen=True, slots=True)
class Library:
    """What a backend needs and was found here."""

    distributions: tuple[str, ...] = ()
    """By the names under which pip knows them; trials hold for these builds only."""
    version: str | None = None
    """In words, for `jitney backends`; None where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of backend. What has no default here, each of them must say."""

    name: str
    """Of its package, and what people give as `backend`."""
    title: str
    """What it is called in a sentence."""
    classes: tuple[str, str]
    """Names in `backend.py`: the dataclass of its settings, and what makes a backend of them."""

    models: str
    """In words, for `jitney backends`: which models it runs, and so on."""
    runs_on: str
    memory: str
    block_tokens: int
    texts: str

    values: Callable[[Settings, Path | None], Values]
    """The values for its settings, and how much memory it takes. The second argument is the model
    as it was published, which is made ready first; None where it takes no model. Where it does,
    the value `model` is the path of what it reads."""
    trial_values: Callable[[Path, Path, Mapping[str, Any]], Values]
    """The values with which it runs a tiny GGUF, for its trial and for the tests: the file, a
    folder for what is made of it, and values to be tried. Sizes are added by the caller."""

    takes_model: bool = True
    is_automatic: bool = True
    """Whether it may be chosen where nobody named a backend."""
    extra: str | None = None
    """The extra of jitney that installs its library; None where there is nothing to install."""
    libraries: tuple[str, ...] = ()
    """Modules of the library: an import error that names one means that it is not installed."""
    library: Callable[[], Library | None] = Library
    """What was found here of the library; None when it is not installed. Nothing is loaded."""
    advice: str = ""
    """What to do where it is not installed, as a clause."""
    instead: str = ""
    """What to do where no other one could run the model, and this one does not work."""
    add: Callable[[Path], str] | None = None
    """Puts the library into this environment; its version. The folder is the cache."""

    only: Mapping[str, str] = field(default_factory=dict)
    """Settings that only this backend has, which choose it where they are given; with a clause."""
    lacks: tuple[str, ...] = ()
    """Settings of others that are refused where this backend was chosen."""
    check: Callable[[Settings], None] = lambda settings: None
    """Refuses other settings that have no meaning here. Raises ConfigError."""
    failure: Callable[[Settings], str | None] = lambda settings: None
    """Why it does not work on this machine, as a clause; None when it was seen to.
    `jitney.backends.trials.selftest` tries a backend in a child process, and remembers that."""
    refusal: Callable[[Path, int | None], str | None] = lambda model, length: None
    """Why it cannot run this model, with sequences of this length; None when it can."""
    ready: Callable[[Path, Settings], Path] = lambda source, settings: source
    """The model as it reads it: converted, where it must be, and kept in the cache."""
    conversions: tuple[str, ...] = ()
    """Kinds of converted models that it reads; others are left from an earlier jitney."""
    proven: Callable[[Values, Settings], Values] = lambda values, settings: values
    """The values, changed so that they do not end the process that loads the backend."""
    fallback: Fallback | None = None
    """What its process does without after an illegal instruction."""
    numbers: Callable[[Settings], str | None] = lambda settings: None
    """What it would compute with, in words, where that is a choice."""
    speed_facts: Callable[[Path, Settings], object] = lambda source, settings: None
    """What its speed depends on besides the model, the machine and the threads, as JSON."""

    def distributions(self) -> tuple[str, ...]:
        """What brings the library; nothing where it is not installed."""
        found = self.library()
        return () if found is None else found.distributions

    def module(self, name: str) -> Any:
        """A module of its package that loads the library. Raises MissingDependency without it."""
        try:
            return importlib.import_module(f"jitney.backends.{self.name}.{name}")
        except ImportError as error:
            if (error.name or "").split(".")[0] not in self.libraries:
                raise
            raise MissingDependency(
                f"the {self.name} backend needs {self.title}, which is not installed: "
                f"{self.advice}."
            ) from error
        except (OSError, RuntimeError) as error:
            raise MissingDependency(
                f"{self.title} is installed and cannot be loaded ({error}): {self.advice}."
            ) from error

    def load(self, values: Mapping[str, Any]) -> Backend:
        """The backend, in this process. Raises a SetupError that says what to mend."""
        settings, backend = (getattr(self.module("backend"), name) for name in self.classes)
        known = {each.name for each in fields(settings)}
        for name in values:
            if name not in known:
                raise ConfigError(
                    f"the {self.name} backend has no setting {name!r}; it has "
                    f"{', '.join(sorted(known))}."
                )
        built: Backend = backend(settings(**values))
        return built


def threads_of(settings: Settings) -> int:
    """The threads of a forward pass: as given, or all cores that can be used."""
    return settings.threads or usable_cores()
