"""Two jobs of Ray Data on a Ray that runs, for `test_ray_data`: a process of its own.

The example as a user runs it, and a job whose first actor dies with a batch that it has answered.
"""

import json
import os
import runpy
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any  # Any: arguments of `RowAnswers`

import ray

from jitney import RowAnswers
from jitney_cluster.ray_data import Column

EXAMPLE = Path(__file__).parents[3] / "examples" / "ray_data.py"


class MortalAnswers(RowAnswers):
    """Ends its process before it gives the first batch back. Only one of all actors does so."""

    def __init__(self, mark: str, **given: Any) -> None:
        super().__init__(**given)
        self._mark = Path(mark)

    def answer(self, batch: Mapping[str, Column]) -> dict[str, Column]:
        """The answers, unless this is the actor that dies."""
        answered = super().answer(batch)
        try:
            self._mark.touch(exist_ok=False)
        except FileExistsError:
            return answered
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a killed process goes on")


def run_example(source: Path, folder: Path) -> None:
    """As from the command line, with two engines."""
    sys.argv = [str(EXAMPLE), str(source), "-o", str(folder), "--backend", "fake"]
    sys.argv += ["--max-tokens", "12", "--engines", "2"]
    runpy.run_path(str(EXAMPLE), run_name="__main__")


def run_mortal(source: Path, target: Path, mark: Path) -> None:
    """The same rows in small batches, with an actor that dies."""
    rows = ray.data.read_json(str(source)).map_batches(
        MortalAnswers,
        fn_constructor_kwargs={"mark": str(mark), "backend": "fake", "max_tokens": 12},
        compute=ray.data.ActorPoolStrategy(size=1),
        batch_size=8,
    )
    lines = [json.dumps(row) + "\n" for row in rows.take_all()]
    target.write_text("".join(lines), encoding="utf-8")


def main() -> None:
    """Join the Ray at this address, and run both. The folder gets the results."""
    source, folder = map(Path, sys.argv[2:])
    ray.init(sys.argv[1], log_to_driver=False)
    run_example(source, folder / "example")
    run_mortal(source, folder / "mortal.jsonl", folder / "died")


if __name__ == "__main__":
    main()
