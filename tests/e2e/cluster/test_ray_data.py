"""`RowAnswers` on a real Ray: the example answers every row once, and so does a job that loses an
actor."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any  # Any: rows of JSON

import numpy as np
import pytest

from jitney import LLM, RowAnswers, SamplingParams
from tests.e2e.cluster.ray_process import ENVIRONMENT, SharedRay

MISSING = [name for name in ("ray", "pandas", "pyarrow") if find_spec(name) is None]
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(MISSING), reason=f"Ray Data needs {', '.join(MISSING)}: not installed"),
]

SCRIPT = Path(__file__).with_name("ray_data_jobs.py")
ROWS = 60
BAD = 7
JOB_S = 800.0


def row(number: int) -> dict[str, Any]:
    """Prompts and conversations, with and without a seed of their own, and one row that fails."""
    made: dict[str, Any] = {"id": number, "tags": ["a", str(number)]}
    if number % 3:
        made["prompt"] = f"prompt {number}"
    else:
        made["messages"] = [{"role": "user", "content": f"hello {number}"}]
    if number % 2:
        made["seed"] = number
    return made | ({"max_tokens": -1} if number == BAD else {})


@pytest.fixture(scope="module")
def results(shared_ray: SharedRay, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what both jobs made."""
    folder = tmp_path_factory.mktemp("ray_data")
    source = folder / "in.jsonl"
    lines = [json.dumps(row(number)) + "\n" for number in range(ROWS)]
    source.write_text("".join(lines), encoding="utf-8")
    ray_address = shared_ray.running().ray_address
    done = subprocess.run(
        [sys.executable, "-P", str(SCRIPT), ray_address, str(source), str(folder)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def expected() -> dict[int, str]:
    """The texts of an engine in this process, by id."""
    made = [row(number) for number in range(ROWS) if number != BAD]
    batch = {
        name: np.fromiter((each.get(name) for each in made), object, len(made))
        for name in ("id", "prompt", "messages", "seed")
    }
    answers = RowAnswers(backend="fake", max_tokens=12)
    answered = answers.answer(batch)
    answers.close()
    return dict(zip(answered["id"], answered["text"], strict=True))


def check(files: list[Path], expected: dict[int, str]) -> None:
    """Every row is there once, with the fields that it had, and with the text of one engine."""
    texts = [path.read_text(encoding="utf-8") for path in files]
    found = sorted((json.loads(line) for text in texts for line in text.splitlines()), key=_id)
    assert [each["id"] for each in found] == list(range(ROWS))
    assert [each["tags"] for each in found] == [row(number)["tags"] for number in range(ROWS)]
    assert [each["messages"] for each in found[::3]] == [
        row(number)["messages"] for number in range(0, ROWS, 3)
    ]
    failed = found.pop(BAD)
    assert failed["error"].startswith("max_tokens must be a whole number")
    assert {each["error"] for each in found} == {""}
    assert {each["id"]: each["text"] for each in found} == expected
    assert all(1 <= each["completion_tokens"] <= 12 for each in found)


def _id(made: dict[str, Any]) -> int:
    return int(made["id"])


def test_the_example_answers_every_row_once(results: Path, expected: dict[int, str]) -> None:
    """Guards the first thing that a user of Ray Data copies."""
    check(list((results / "example").iterdir()), expected)
    seeded = [number for number in range(ROWS) if number % 3 and number % 2 and number != BAD]
    params = [SamplingParams(max_tokens=12, seed=number) for number in seeded]
    with LLM(backend="fake") as llm:
        alone = llm.generate([row(number)["prompt"] for number in seeded], params)
    assert [each.outputs[0].text for each in alone] == [expected[number] for number in seeded]


def test_a_row_that_runs_again_has_the_same_text(results: Path, expected: dict[int, str]) -> None:
    """Guards a job that loses an actor: its rows run again, and none is lost or changed."""
    assert (results / "died").exists(), "no actor died, so this test has shown nothing"
    check([results / "mortal.jsonl"], expected)
