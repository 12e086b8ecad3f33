"""`python -m benchmarks.batch_kills`: a batch whose server is killed every few seconds, recounted.

In turn the server and its backend's process are killed with SIGKILL, and once the disk is full for
a while (the server may write to no file). A killed server is started again at once. When the batch
has ended, its two files are recounted: every line of the input exactly once, in order. Some lines
are bad on purpose, for the error file. One of them ends the backend whenever it is tokenised. A
killed server forgets how often it did, so when no other line is left, nothing more is killed.
"""

import argparse
import contextlib
import itertools
import json
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from os import kill
from pathlib import Path
from typing import Any

import httpx
from openai import APIConnectionError, APIStatusError, OpenAI

from tests.deadly_text import DEADLY, deadly_text
from tests.e2e.jobs.job_process import ServerProcess, server_process
from tests.e2e.server.processes import backend_of

FULL_S = 6.0
DEADLY_LINE = 25
ENDED = ("completed", "failed", "expired", "cancelled")
URL = "/v1/completions"


@dataclass(slots=True)
class Faults:
    """What was done to the server."""

    server_kills: int = 0
    backend_kills: int = 0
    full_disks: int = 0
    starts: int = 0


@dataclass(slots=True)
class Recount:
    """What the files of results hold, against the lines of the input."""

    answered: int = 0
    failed: int = 0
    missing: int = 0
    twice: int = 0
    strange: int = 0
    out_of_order: int = 0
    in_the_wrong_file: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether each line is there once, in order, and those have failed that are bad."""
        once = not (self.missing or self.twice or self.strange)
        return once and not (self.out_of_order or self.in_the_wrong_file)


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
                "max_tokens": max_tokens,
                "temperature": 0,
                **({"stream": True} if number % 100 == 50 else {}),
            },
        }
        for number in range(count)
    ]


def is_bad(line: dict[str, Any]) -> bool:
    """Whether a line of the input has to fail."""
    return "stream" in line["body"] or DEADLY in line["body"]["prompt"]


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
        self.faults = Faults()
        self.told = Told()

    def to_end(self) -> Recount:
        """Start servers and harm them until the batch has ended; then recount."""
        while True:
            self.faults.starts += 1
            flags = ("--max-num-seqs", str(self._options.sequences))
            with server_process(self._folder, *flags) as server, server.client() as client:
                # Asked again after every start: one idempotency key is one batch.
                batch_id = self._submit(client)
                done = self._harm(server, client, batch_id)
                if done is not None:
                    return self._recount(client, done)

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
        return batch.id

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
            half = self._options.lines // 2
            if not self.faults.full_disks and self.told.done > half:
                self._fill_disk(server, client)
            elif self._draw.random() < 0.3:
                with contextlib.suppress(ValueError, ProcessLookupError):
                    kill(backend_of(server.pid), signal.SIGKILL)
                    self.faults.backend_kills += 1
            else:
                server.kill()
                self.faults.server_kills += 1
                return None

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
        answered, failed = (
            [
                json.loads(each)["custom_id"]
                for each in client.files.content(file_id).text.splitlines()
            ]
            if file_id
            else []
            for file_id in files
        )
        bad = {each["custom_id"] for each in self._lines if is_bad(each)}
        return recount([each["custom_id"] for each in self._lines], answered, failed, bad)


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
    with tempfile.TemporaryDirectory() as root, deadly_text(Path(root) / "custom") as deaths:
        run = Run(options, Path(root) / "jobs")
        found = run.to_end()
        deadly = deaths.count
    seconds = time.monotonic() - started_at
    print(f"{options.lines} lines in {seconds:.0f} s: {asdict(run.faults)}, deadly texts: {deadly}")
    print(f"recount: {asdict(found)}; counts that shrank: {run.told.shrank}")
    is_good = found.is_exact and not run.told.shrank
    print(
        json.dumps(
            {
                "lines": options.lines,
                "seconds": round(seconds, 1),
                **asdict(run.faults),
                "deadly_texts": deadly,
                **asdict(found),
                "is_exact": is_good,
            }
        )
    )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
