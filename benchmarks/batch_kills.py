"""`python -m benchmarks.batch_kills`: a batch whose server is killed every few seconds, recounted.

In turn the server and its backend's process are killed with SIGKILL. Once each, the disk is full
for a while (the server may write to no file), the folder of files is away for three seconds, the
wall clock is 25 hours ahead for a moment, and a server is started without the folder, which it must
refuse. A killed server is started again at once. When the batch has ended, its two files are
recounted: every line of the input exactly once, in order, with its own answer (each line asks for
its own number of tokens). Some lines are bad on purpose, for the error file. One of them ends the
backend whenever it is tokenised. A killed server forgets how often it did, so when no other line is
left, nothing more is killed.

Then `jitney batch run` answers the same lines, is killed in between, and another file takes the
place of its input.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from openai import APIConnectionError, APIStatusError, OpenAI

from tests.deadly_text import DEADLY, deadly_text
from tests.e2e.batches.batch_process import ServerProcess, server_process
from tests.e2e.server.processes import backend_of

FULL_S = 6.0
AWAY_S = 3.0
STEP, STEP_S = "step", 1.5
DEADLY_LINE = 25
ENDED = ("completed", "failed", "expired", "cancelled")
URL = "/v1/completions"
RUN_KILLS = 3
"""How often `jitney batch run` is killed."""
LENGTHS = 31
"""How many different numbers of tokens lines ask for."""

STEPPING = """
import datetime, os
class Stepped(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        step = datetime.timedelta(hours=25 if os.path.exists({step!r}) else 0)
        return super().now(tz) + step
datetime.datetime = Stepped
"""
"""For `sitecustomize`: it steps the wall clock while a file is there."""


@dataclass(slots=True)
class Faults:
    """What was done to the server."""

    server_kills: int = 0
    backend_kills: int = 0
    full_disks: int = 0
    folders_away: int = 0
    clock_steps: int = 0
    starts_without_folder: int = 0
    starts: int = 0
    runs: int = 0
    inputs_replaced: int = 0


@dataclass(slots=True)
class Recount:
    """What the files of results hold, against the lines of the input."""

    answered: int = 0
    failed: int = 0
    missing: int = 0
    twice: int = 0
    strange: int = 0
    out_of_order: int = 0
    foreign: int = 0
    """Answers that are as long as another line asked for."""
    in_the_wrong_file: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether each line is there once, in order, with its own answer; a bad one has failed."""
        once = not (self.missing or self.twice or self.strange)
        return once and not (self.out_of_order or self.foreign or self.in_the_wrong_file)


@dataclass(slots=True)
class Told:
    """What the caller was told on the way: it may only grow."""

    done: int = 0
    shrank: int = 0
    seen: list[int] = field(default_factory=list)

    def note(self, done: int) -> None:
        """The caller was told that so many lines are done."""
        self.shrank += done < self.done
        self.done = max(self.done, done)
        self.seen.append(done)


def make_lines(count: int, max_tokens: int) -> list[dict[str, Any]]:
    """The input; every hundredth line is refused when it is asked, and one ends the backend."""
    return [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": URL,
            "body": {
                "prompt": f"Line {number}{DEADLY * (number == DEADLY_LINE)} of the batch.",
                "max_tokens": max(1, max_tokens - number % LENGTHS),
                "ignore_eos": True,
                "temperature": 0,
                **({"stream": True} if number % 100 == 50 else {}),
            },
        }
        for number in range(count)
    ]


def is_bad(line: dict[str, Any]) -> bool:
    """Whether a line of the input has to fail."""
    return "stream" in line["body"] or DEADLY in line["body"]["prompt"]


def recount_rows(lines: list[dict[str, Any]], done: list[Any], failed: list[Any]) -> Recount:
    """Compare the lines of the input with the rows of both files."""
    wanted, answered, refused = (
        [row["custom_id"] for row in rows] for rows in (lines, done, failed)
    )
    found = recount(wanted, answered, refused, {row["custom_id"] for row in lines if is_bad(row)})
    lengths = {each["custom_id"]: each["body"]["max_tokens"] for each in lines}
    found.foreign = sum(
        row["response"]["body"]["usage"]["completion_tokens"] != lengths.get(row["custom_id"])
        for row in done
    )
    return found


def recount(
    wanted: list[str], answered: list[str], failed: list[str], bad: Collection[str]
) -> Recount:
    """Compare the ids of the input, and of its bad lines, with those of both files."""
    found = Counter(answered) + Counter(failed)
    places = {name: place for place, name in enumerate(wanted)}
    known = [[places[name] for name in names if name in places] for names in (answered, failed)]
    return Recount(
        answered=len(answered),
        failed=len(failed),
        missing=sum(name not in found for name in wanted),
        twice=sum(count - 1 for count in found.values()),
        strange=sum(name not in places for name in found),
        out_of_order=sum(a > b for each in known for a, b in itertools.pairwise(each)),
        in_the_wrong_file=sum(name in bad for name in answered)
        + sum(name not in bad for name in failed),
    )


class Run:
    """One batch under faults."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._draw = random.Random(options.seed)
        self._lines = make_lines(options.lines, options.max_tokens)
        self._file_id: str | None = None
        self._step_file = folder.parent / STEP
        self.faults = Faults()
        self.told = Told()

    def to_end(self) -> Recount:
        """Start servers and harm them until the batch has ended; then recount."""
        while True:
            self.faults.starts += 1
            if self.faults.starts > 1 and not self.faults.starts_without_folder:
                self._start_without_folder()
            with self._server() as server, server.client() as client:
                # Asked again after every start: one idempotency key is one batch.
                batch_id = self._submit(client)
                done = self._harm(server, client, batch_id)
                if done is not None:
                    return self._recount(client, done)

    def _server(self) -> contextlib.AbstractContextManager[ServerProcess]:
        flags = ("--max-num-seqs", str(self._options.sequences))
        return server_process(self._folder, *flags)

    def _start_without_folder(self) -> None:
        with self._folder_away():
            try:
                with self._server():
                    raise SystemExit("A server started without the folder of its files")
            except AssertionError as refused:
                print(f"a start without the folder is refused: {str(refused).strip()}")
        self.faults.starts_without_folder += 1

    @contextlib.contextmanager
    def _folder_away(self) -> Iterator[None]:
        files, away = self._folder / "files", self._folder.parent / "away"
        files.rename(away)
        try:
            yield
        finally:
            away.rename(files)

    def _submit(self, client: OpenAI) -> str:
        if self._file_id is None:
            content = "".join(f"{json.dumps(each)}\n" for each in self._lines).encode()
            self._file_id = client.files.create(file=("in.jsonl", content), purpose="batch").id
        batch = client.batches.create(
            input_file_id=self._file_id,
            endpoint="/v1/completions",
            completion_window="24h",
            extra_headers={"Idempotency-Key": "batch-kills"},
        )
        return str(batch.id)

    def _harm(self, server: ServerProcess, client: OpenAI, batch_id: str) -> Any:
        """Wait, and harm the server; the batch if it has ended, None if the server was killed."""
        while True:
            until = time.monotonic() + self._draw.uniform(0.3, 1.7) * self._options.every
            while time.monotonic() < until:
                batch = client.batches.retrieve(batch_id)
                counts = batch.request_counts
                self.told.note(0 if counts is None else counts.completed + counts.failed)
                if batch.status in ENDED:
                    return batch
                time.sleep(0.1)
            if self.told.done == self._options.lines - 1:
                continue  # the deadly line is left
            if self._harm_once(server, client):
                continue
            if self._draw.random() < 0.3:
                with contextlib.suppress(ValueError, ProcessLookupError):
                    os.kill(backend_of(server.pid), signal.SIGKILL)
                    self.faults.backend_kills += 1
            else:
                server.kill()
                self.faults.server_kills += 1
                return None

    def _harm_once(self, server: ServerProcess, client: OpenAI) -> bool:
        """Do what is done once in a run, if it is time for that."""
        share = self.told.done / self._options.lines
        if not self.faults.folders_away and share > 0.2:
            self.faults.folders_away += 1
            with self._folder_away():
                time.sleep(AWAY_S)
        elif not self.faults.clock_steps and share > 0.4:
            self.faults.clock_steps += 1
            self._step_file.touch()
            time.sleep(STEP_S)
            self._step_file.unlink()
        elif not self.faults.full_disks and share > 0.6:
            self._fill_disk(server, client)
        else:
            return False
        return True

    def _fill_disk(self, server: ServerProcess, client: OpenAI) -> None:
        self.faults.full_disks += 1
        with _full(server):
            time.sleep(FULL_S)
            try:
                client.files.create(file=("more.jsonl", b"x" * 4096), purpose="batch")
            except (APIStatusError, APIConnectionError) as error:
                print(f"an upload to the full disk is refused: {error}")
            live = httpx.post(
                f"{server.address}{URL}", json={"prompt": "a", "max_tokens": 1}, timeout=60
            )
            print(f"a live call beside the full disk: {live.status_code}")

    def _recount(self, client: OpenAI, batch: Any) -> Recount:
        files = (batch.output_file_id, batch.error_file_id)
        done, failed = (
            [json.loads(each) for each in client.files.content(file_id).text.splitlines()]
            if file_id
            else []
            for file_id in files
        )
        return recount_rows(self._lines, done, failed)

    def offline(self) -> Recount:
        """The same lines with `jitney batch run`, killed, and its input replaced."""
        folder = self._folder.parent / "offline"
        folder.mkdir()
        source, output = folder / "in.jsonl", folder / "out.jsonl"
        source.write_text("".join(f"{json.dumps(each)}\n" for each in self._lines))
        command = [sys.executable, "-m", "jitney", "batch", "run", "--backend", "fake"]
        while True:
            self.faults.runs += 1
            with subprocess.Popen([*command, source, "-o", output]) as process:
                is_last = self.faults.runs > RUN_KILLS
                if self._wait_for(process, self._options.every * 2) or is_last:
                    if is_last:
                        self._replace(source)
                    process.wait()
                    break
                process.kill()
        rows = [
            [json.loads(each) for each in path.read_text().splitlines()]
            for path in (output, folder / "out.errors.jsonl")
        ]
        return recount_rows(self._lines, *rows)

    def _replace(self, source: Path) -> None:
        """Another file takes the place of the input: its lines in reverse order."""
        other = source.with_name("other")
        other.write_text("".join(f"{json.dumps(each)}\n" for each in self._lines[::-1]))
        other.replace(source)
        self.faults.inputs_replaced += 1

    def _wait_for(self, process: "subprocess.Popen[bytes]", seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return process.poll() is not None


@contextlib.contextmanager
def _full(server: ServerProcess) -> Iterator[None]:
    soft, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (soft, hard))


def main(arguments: list[str]) -> int:
    """Run it; 1 if the recount is not exact."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batch_kills")
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--every", type=float, default=3.0, help="seconds between faults")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    started_at = time.monotonic()
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stepping = STEPPING.format(step=str(root / STEP))
        deaths = stack.enter_context(deadly_text(root / "custom", stepping))
        run = Run(options, root / "jobs")
        found, found_offline = run.to_end(), run.offline()
        deadly = deaths.count
    seconds = time.monotonic() - started_at
    print(f"{options.lines} lines in {seconds:.0f} s: {asdict(run.faults)}, deadly texts: {deadly}")
    print(f"recount: {asdict(found)}; counts that shrank: {run.told.shrank}")
    print(f"recount of batch run: {asdict(found_offline)}")
    is_good = found.is_exact and found_offline.is_exact and not run.told.shrank
    print(
        json.dumps(
            {
                "lines": options.lines,
                "seconds": round(seconds, 1),
                **asdict(run.faults),
                "deadly_texts": deadly,
                **asdict(found),
                "offline": asdict(found_offline),
                "is_exact": is_good,
            }
        )
    )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
