"""What a run of `jitney batch run` has put in place: `Receipt`, a small file. Main thread.

A run that was killed after its last step has left its results, and no store that knows them. With
the receipt beside them the same command finds that all is done. It holds digests: another input
with the same ids is not the same command.

Tests: tests/e2e/batches/test_batch_run.py.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from jitney.models.files import sha256_of, write_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The digests of the input and of both files of results, and how many lines they have."""

    input_sha256: str
    model: str
    output_sha256: str
    errors_sha256: str | None
    answered: int
    failed: int

    def write(self, path: Path) -> None:
        """Put it there, complete and on the disk."""
        write_text(path, json.dumps(asdict(self), indent=1) + "\n")

    def are_results(self, output: Path, errors: Path) -> bool:
        """Whether these files are what was put in place."""
        found = [sha256_of(each) if each.is_file() else None for each in (output, errors)]
        return found == [self.output_sha256, self.errors_sha256]


def read_receipt(path: Path) -> Receipt | None:
    """The receipt in a file; None if there is none."""
    try:
        return Receipt(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
