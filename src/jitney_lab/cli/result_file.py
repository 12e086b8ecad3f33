"""The file of `--save-result`: its name and what is written to it, as `vllm bench serve` does it.

Tests: tests/unit/lab/cli/test_result_file.py.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from jitney.errors import ConfigError
from jitney_lab.bench.report import written_to
from jitney_lab.cli.bench_result import check_folder
from jitney_lab.cli.serve_load_verb import ServeLoadOptions

FLAG = "--result-dir"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFile:
    """Where a result is saved. Without a name it is made from the result."""

    folder: Path
    name: str | None
    is_appended: bool

    @classmethod
    def of(cls, options: ServeLoadOptions) -> Self | None:
        """The file that is asked for, whose folder can be written to. Raises a SetupError."""
        if not (options.save_result or options.append_result):
            unused = {
                "--save-detailed": options.save_detailed,
                FLAG: options.result_dir,
                "--result-filename": options.result_filename,
            }
            for flag, value in unused.items():
                if value:
                    raise ConfigError(
                        f"{flag} would not be used without --save-result; add it, or leave this "
                        "out."
                    )
            return None
        file = cls(
            folder=options.result_dir or Path(),
            name=options.result_filename,
            is_appended=options.append_result,
        )
        # The name may have folders in it.
        folder = file.folder if file.name is None else (file.folder / file.name).parent
        check_folder(folder, FLAG)
        if file.name is not None and (file.folder / file.name).is_dir():
            raise ConfigError(
                f"--result-filename {file.name} is a folder; give the name of a file."
            )
        return file

    def write(self, content: Mapping[str, object], more: Mapping[str, object]) -> Path:
        """Write a result with `more` of it; the path. Raises a SetupError."""
        path = self.folder / (self.name or _name_of(content))
        line = json.dumps({**content, **more}, allow_nan=False) + "\n"
        with written_to(path, FLAG):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a+b" if self.is_appended else "wb") as file:
                if self.is_appended and file.tell():
                    file.seek(-1, 2)
                    # vLLM ends its files without one.
                    line = line if file.read(1) == b"\n" else "\n" + line
                file.write(line.encode())
        return path


def _name_of(content: Mapping[str, object]) -> str:
    """vLLM's name of a result, with signs that every disk takes."""
    at_once = content["max_concurrency"]
    parts = (
        str(content["label"]),
        f"{content['request_rate'] or 'trace'}qps" + (f"-concurrency{at_once}" if at_once else ""),
        str(content["model_id"]).rpartition("/")[2],
        str(content["date"]),
    )
    return re.sub(r"[^\w.+-]", "_", "-".join(parts)) + ".json"
