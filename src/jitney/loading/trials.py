"""The choice between backends by speed: both measured on this machine, once, and remembered."""

import logging
from dataclasses import asdict
from pathlib import Path

from jitney.backends.llamacpp import usable as llamacpp_usable
from jitney.backends.machine.processor import read_processor
from jitney.backends.openvino import usable as openvino_usable
from jitney.backends.trials import measure, probes
from jitney.config import Settings, usable_cores
from jitney.errors import SetupError
from jitney.loading import llamacpp, openvino
from jitney.loading.common import Values, source_of
from jitney.loading.selection import Selection, fastest, trial_sequences
from jitney.models import embedded

_log = logging.getLogger("jitney")

MEASURED = ("openvino", "llamacpp")
"""Those between which speed may decide."""


def recalled(source: Path, settings: Settings) -> Selection | None:
    """What an earlier measurement found; None when there was none."""
    trials = measure.recall(_memory(source, settings), MEASURED)
    return None if trials is None else fastest(trials, trial_sequences(settings.max_num_seqs))


def measured(settings: Settings, progress: embedded.Progress) -> Selection:
    """The faster of both on this machine, for so few sequences; remembered."""
    source = source_of(settings, progress)
    memory = _memory(source, settings)
    sequences = trial_sequences(settings.max_num_seqs)
    trials = measure.recall(memory, MEASURED)
    if trials is None:
        ready, failed = _prepared(settings)
        with measure.undisturbed(settings.cache_dir):
            # Another process may have measured while this one waited.
            trials = measure.recall(memory, MEASURED)
            if trials is None:
                trials = failed | _run(ready, sequences)
                _tell(trials, memory, source)
    return fastest(trials, sequences)


def _prepared(settings: Settings) -> tuple[dict[str, Values], dict[str, measure.Trial]]:
    """What each backend would be told, and the trials of those that cannot be made ready."""
    ready: dict[str, Values] = {}
    failed: dict[str, measure.Trial] = {}
    for name, kind in (("openvino", openvino), ("llamacpp", llamacpp)):
        try:
            ready[name] = kind.values(settings)
            if name == "llamacpp":
                model = Path(str(ready[name]["model"]))
                kernels = llamacpp.can_use_extra_kernels(model, settings, warns=False)
                ready[name]["extra_kernels"] = kernels
        except SetupError as error:
            ready.pop(name, None)
            failed[name] = measure.Trial(None, str(error).rstrip("."), is_lasting=False)
    return ready, failed


def _run(ready: dict[str, Values], sequences: int) -> dict[str, measure.Trial]:
    if ready:
        _log.warning("measuring which backend is faster here, once")
    return {name: measure.measure(name, told, sequences) for name, told in ready.items()}


def _tell(trials: dict[str, measure.Trial], memory: Path, source: Path) -> None:
    """Say what failed, and remember what was found if it would be found again."""
    if all(trial.tokens_per_s is None for trial in trials.values()):
        return  # loading one will say what is wrong
    for name, trial in trials.items():
        if trial.failure is not None:
            _log.warning("the %s backend could not be measured: %s", name, trial.failure)
    if all(trial.is_lasting for trial in trials.values()):
        libraries = (*openvino_usable.distributions(), *llamacpp_usable.distributions())
        measure.remember(memory, trials, source, libraries)


def _memory(source: Path, settings: Settings) -> Path:
    """Where the trials of this model, these libraries and this machine are remembered."""
    status = source.stat()
    facts = [
        str(source.resolve()),
        [status.st_size, status.st_mtime_ns],
        [probes.builds(kind.distributions()) for kind in (openvino_usable, llamacpp_usable)],
        asdict(read_processor()),
        settings.threads or usable_cores(),
        trial_sequences(settings.max_num_seqs),
        llamacpp.has_own_cells(source, settings),
        settings.batch_invariant,
    ]
    return measure.memory_path(settings.cache_dir, facts)
