"""Finds the published model on this machine, and fetches it first if necessary.

The user names a model by a path or by a name on the hub. Without either, it is the embedded model.

Tests: tests/unit/loading/test_loading.py.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from jitney.backends.kind import Kind
from jitney.backends.kinds import all_kinds, kind_of
from jitney.config import Settings
from jitney.errors import ModelError, SetupError
from jitney.models import embedded
from jitney.models.hub_reference import hub_module, reference_of

_Verdicts = list[tuple[Kind, str | None]]

_log = logging.getLogger("jitney")


def takes_model(settings: Settings) -> bool:
    """Whether the backend takes a model."""
    return settings.backend == "auto" or kind_of(settings.backend).takes_model


def located(settings: Settings, progress: embedded.Progress = lambda done, total: None) -> Settings:
    """The settings with a path in place of a name on the hub; fetches the model if necessary.

    Other functions of `loading` need settings with a path.
    """
    reference = reference_of(settings.model)
    if reference is None or not takes_model(settings):
        return settings
    check = partial(check_loadable, settings)
    found = hub_module("hub").find_or_fetch(reference, settings.cache_dir, progress, check)
    return replace(settings, model=found)


def check_known(settings: Settings, head: Path, name: str) -> None:
    """Raise ModelError where no backend knows the model of this head, automatic or not.

    Where none could load it on this machine now, the log says so.
    """
    known = _verdicts(settings, head)
    _refuse(name, known)
    if lacks := _reasons(_here(known, settings, head)):
        _log.warning("%s cannot be loaded here now. %s", name, _listed(lacks))


def check_loadable(settings: Settings, head: Path, name: str) -> None:
    """Raise ModelError where none could load it on this machine now."""
    known = _verdicts(settings, head)
    usual = [each for each in known if settings.backend != "auto" or each[0].is_automatic()]
    advice = [
        f" It runs with `--backend {kind.name}`, where that is installed."
        for kind, reason in known
        if reason is None
    ]
    _refuse(name, usual, "".join(advice))
    _refuse(name, _here(usual, settings, head), f" `jitney pull {name}` fetches it all the same.")


def _verdicts(settings: Settings, head: Path) -> _Verdicts:
    """Why each backend does not know the model; None for one that does."""
    kinds = [kind for kind in all_kinds() if kind.takes_model]
    asked = [kind for kind in kinds if settings.backend in ("auto", kind.name)]
    try:
        return [
            (
                kind,
                kind.value_refusal(settings)
                or kind.refusal(head, settings.max_model_len)
                or kind.unknown(head),
            )
            for kind in asked
        ]
    except ModelError:
        return []  # the file itself says it, with its own name


def _here(known: _Verdicts, settings: Settings, head: Path) -> _Verdicts:
    """The same, and why this machine could not hold the model now."""
    return [(kind, reason or _why_no_room(kind, settings, head)) for kind, reason in known]


def _why_no_room(kind: Kind, settings: Settings, head: Path) -> str | None:
    try:
        kind.needs(head, settings)
    except SetupError as error:
        return str(error)
    return None


def _reasons(verdicts: _Verdicts) -> dict[str, str]:
    """The titles of backends by the reason why they cannot; nothing where one can."""
    titles: dict[str, str] = {}
    for kind, reason in verdicts:
        if reason is None:
            return {}
        key = reason.rstrip(".")
        titles[key] = f"{titles[key]}, {kind.title}" if key in titles else kind.title
    return titles


def _listed(reasons: dict[str, str]) -> str:
    return "; ".join(f"{titles}: {reason}" for reason, titles in reasons.items()) + "."


def _refuse(name: str, verdicts: _Verdicts, advice: str = "") -> None:
    if reasons := _reasons(verdicts):
        raise ModelError(
            f"{name} was not fetched, because nothing here can run it. {_listed(reasons)}{advice}"
        )


@contextmanager
def located_head(settings: Settings) -> Iterator[Settings | None]:
    """Like `located`, with the head of a model that was not fetched, until the end of the block.

    None where the hub does not give it; then the log says why.
    """
    reference = reference_of(settings.model)
    assert reference is not None, "A path is there or not"
    with hub_module("hub").head(reference, settings.cache_dir) as head:
        yield None if head is None else replace(settings, model=head)


def located_if_fetched(settings: Settings) -> Settings | None:
    """Like `located`, but None where the model must be fetched first."""
    reference = reference_of(settings.model)
    if reference is None or not takes_model(settings):
        return settings
    found = hub_module("hub_cache").find(reference)
    return None if found is None else replace(settings, model=found)


def source_if_there(settings: Settings) -> Path | None:
    """Like `source_of`, but None where the embedded model must be fetched first."""
    if settings.model is None and not embedded.is_there(settings.cache_dir):
        return None
    return settings.model or embedded.path_in(settings.cache_dir)


def source_of(settings: Settings, progress: embedded.Progress = lambda done, total: None) -> Path:
    """The file or folder that the user named, or the embedded model, fetched if necessary."""
    source = source_if_there(settings)
    if source is not None:
        return source
    _log.warning("The embedded model (%s) is being fetched, once", embedded.NAME)
    return embedded.fetch(settings.cache_dir, progress)
