"""`jitney batch run`: answers a file of requests, line by line, into another file. Main thread.

Results go to the output, failed lines to a file beside it. Progress is on standard error, and the
counts at the end on standard output. The exit code is 0 if every line was answered, 1 if some
failed.

Tests: tests/e2e/batches/test_batch_run.py.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rich.console import Console

from jitney.cli.failures import FAILED, say, say_at_sigterm
from jitney.cli.opening import loading
from jitney.cli.progress_bar import progress_bar
from jitney.cli.pull import show_log
from jitney.cli.result_lines import plural
from jitney.cli.verbs import BatchRunOptions
from jitney.config import Resolved, ServeSettings, Settings, for_serving
from jitney.errors import ConfigError, SetupError
from jitney.loading.compose import Assembly, assemble, name_of
from jitney.server.batches import offline
from jitney.server.batches.answer_line import LineAnswerer
from jitney.server.batches.batch_input import HeldInput, InputChanged
from jitney.server.batches.batches import Batches
from jitney.server.batches.database import DiskError
from jitney.server.batches.rows import BatchStatus, StoredBatch
from jitney.server.batches.store import BatchStore
from jitney.server.service import Service


def call(options: BatchRunOptions, resolved: Resolved) -> int:
    """Run the command; the exit code."""
    if not options.source:
        raise ConfigError("There is no input: name a file, as in jitney batch run in.jsonl.")
    places = offline.RunPlaces(Path(options.source), options.output)
    places.check()
    settings = for_serving(resolved)
    model = name_of(settings)
    with _disk_errors(places), offline.locked(places), closing(HeldInput(places.source)) as source:
        done = offline.find_results(places, source, model)
        if done is not None:
            say("All of it was done by an earlier run.")
            return _say_counts(places, done.answered, done.failed)
        serving = ServeSettings(served_model_name=(model,), strict=resolved.serving.strict)
        return _answer(places, source, settings, serving, offline.adopt(places, source, model))


@contextmanager
def _disk_errors(places: offline.RunPlaces) -> Iterator[None]:
    try:
        yield
    except DiskError as error:
        raise SetupError(
            f"The disk of {places.folder} cannot be used: {error}; give the same command again "
            "when it can."
        ) from error


def _answer(
    places: offline.RunPlaces,
    source: HeldInput,
    settings: Settings,
    serving: ServeSettings,
    batch: StoredBatch,
) -> int:
    if batch.total:
        say(f"Going on with an earlier run, which has {_progress_text(batch)} done.")
    if batch.status.is_live:
        show_log(every_tick=settings.log_batch_composition)
        with say_at_sigterm():
            with loading(settings):
                assembly = assemble(settings)
            try:
                batch = _run(assembly, serving, places, source, batch)
            finally:
                assembly.close(0.0)
    return _end(places, batch)


def _run(
    assembly: Assembly,
    serving: ServeSettings,
    places: offline.RunPlaces,
    source: HeldInput,
    batch: StoredBatch,
) -> StoredBatch:
    if assembly.engine.settings.wait_s is None:
        # No other calls come, so the last lines might never fill a group.
        assembly.engine.end_waits()
    service = Service(assembly.engine, assembly.request_factory, assembly.template, serving)
    answerer = LineAnswerer(service, has_live_calls=False)
    batches = Batches(places.folder, answerer, bounds=offline.NO_BOUNDS)
    batches.thread.open()
    batches.thread.store.inputs[batch.input_file_id] = source
    last = batch
    try:
        with _progress() as show:

            def note(seen: StoredBatch) -> None:
                nonlocal last
                last = seen
                show(seen)

            ended = asyncio.run(offline.run(batches, batch, note))
        source.check_content()
        return ended
    except InputChanged:
        raise SetupError(
            f"{places.source} was edited while its lines were answered; put it back as it was and "
            f"give the same command, or remove {places.folder} to begin again."
        ) from None
    except offline.StoreGone:
        raise SetupError(
            f"{places.folder} was removed, with all results of this run; give the same command to "
            "begin again."
        ) from None
    except KeyboardInterrupt:
        say(f"Stopped: {_progress_text(last)} are done. The same command goes on from there.")
        raise
    finally:
        batches.close()
        service.worker_threads.close()
        service.bodies.close()


def _end(places: offline.RunPlaces, batch: StoredBatch) -> int:
    """Put the results where they belong, and say how many there are."""
    store = BatchStore(places.folder)
    try:
        offline.deliver(store, batch, places)
    except (OSError, KeyboardInterrupt) as error:
        advice = f"they stay in {places.folder}, and the same command goes on from there"
        if isinstance(error, OSError):
            named = error.filename2 or error.filename or places.output
            raise SetupError(
                f"{named}: {error.strerror}, so the results are not in place; {advice}."
            ) from error
        say(f"Stopped before the results were in place; {advice}.")
        raise
    finally:
        store.close()
    offline.remove_folder(places)
    if batch.status is BatchStatus.FAILED:
        raise ConfigError(f"{places.source}: {batch.errors[0]['message']}")
    return _say_counts(places, batch.completed, batch.failed)


def _progress_text(batch: StoredBatch) -> str:
    return f"{batch.completed + batch.failed:,} of {batch.total:,} lines"


def _say_counts(places: offline.RunPlaces, answered: int, failed: int) -> int:
    total = answered + failed
    text = f"{total:,} {plural('line', total)}: {answered:,} answered in {places.output}"
    if failed:
        text += f", {failed:,} failed in {places.errors}"
    sys.stdout.write(f"{text}\n")
    return FAILED if failed else 0


@contextmanager
def _progress() -> Iterator[Callable[[StoredBatch], None]]:
    """A progress bar on a terminal; elsewhere nothing."""
    with progress_bar(Console(stderr=True)) as progress:
        task = progress.add_task("reading", total=None)

        def show(batch: StoredBatch) -> None:
            done = batch.completed + batch.failed
            if batch.status is BatchStatus.VALIDATING:
                progress.update(task, completed=batch.total)
            else:
                progress.update(task, description="lines", completed=done, total=batch.total)

        yield show
