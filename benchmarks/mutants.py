"""`python -m benchmarks.mutants --count 200`: damaged model files, each loaded by each backend.

A mutant is a good file with bits flipped, its end cut off, or one field of its header changed:
counts, lengths, sizes, offsets, types, values, texts. It is made from a seed, and is loaded as the
server would, with the backend in a process of its own, and asked for a few tokens. What may become
of it: a sentence (ModelError and its like, at the start or for the request), or answers. Anything
else is a miss and prints its seed; `--seed N --count 1` makes that one again.

The loading process is one for all mutants, as the one that serves HTTP would be: its end is a
miss too. Every twentieth refusal is also shown to `jitney run`, which has to exit with 1 and no
traceback. The files are the tiny model of the tests, and every eighth is the embedded model.
"""

import argparse
import contextlib
import json
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.mutations import KINDS, make_mutant
from jitney import LLM, SamplingParams
from jitney.backends.kinds import all_kinds
from jitney.config import Settings
from jitney.errors import EngineError, JitneyError, SetupError
from jitney.loading import backend_failure
from jitney.models import embedded
from jitney.models.tiny import TinyShape, write_tiny_gguf

HANG_S_MAX = 60.0
COMMAND_EVERY = 20
EMBEDDED_EVERY = 8
SETTINGS = {"max_num_seqs": 2, "backend_process": True}
SETTINGS_OF = {"llamacpp": {"flash_attention": "on"}}
"""Because `auto` may measure, which takes long and is not the question here."""

ALLOWED = frozenset({"refused", "failed with a sentence", "answers"})


class Loader:
    """A process that loads one file after the other, and is started again when it dies."""

    def __init__(self, backend: str, cache: Path) -> None:
        self._command = [sys.executable, "-m", "benchmarks.mutants", "--load", backend, str(cache)]
        self._process: subprocess.Popen[str] | None = None

    def outcome(self, path: Path) -> tuple[str, str]:
        """What became of this file, and the words for it."""
        process = self._living()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(f"{path}\n")
            process.stdin.flush()
        if not select.select([process.stdout], [], [], HANG_S_MAX)[0]:
            self.close()
            return "hangs", f"for more than {HANG_S_MAX:g} s"
        line = process.stdout.readline()
        if not line:
            status = process.wait()
            self.close()
            return "the loading process died", f"status {status}"
        name, words = json.loads(line)
        return name, words

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _living(self) -> "subprocess.Popen[str]":
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        return self._process


def load_all(backend: str, cache: str) -> None:
    """The loading process: a path on each line in, an outcome on each line out."""
    for line in sys.stdin:
        print(json.dumps(_load(Path(line.strip()), backend, cache)), flush=True)


def _load(path: Path, backend: str, cache: str) -> tuple[str, str]:
    try:
        own = SETTINGS | SETTINGS_OF.get(backend, {})
        with LLM(path, config=None, backend=backend, cache_dir=cache, **own) as llm:
            params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
            (output,) = llm.generate(["hello"], params)
            return "answers", f"{len(output.outputs[0].token_ids)} tokens"
    except SetupError as error:
        return "refused" if _is_sentence(error) else "no sentence", str(error)
    except (EngineError, JitneyError) as error:
        return "failed with a sentence" if _is_sentence(error) else "no sentence", str(error)
    except Exception as error:  # it would be a traceback for the operator: a miss, to be told
        return "traceback", f"{type(error).__name__}: {error}"


def _is_sentence(error: Exception) -> bool:
    text = str(error)
    return len(text) > 20 and "Traceback" not in text and text.count("\n") < 3


def main(arguments: list[str]) -> int:
    """Run by hand; the exit code says whether anything was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="that of the first one")
    parser.add_argument("--backend", help="only this one; otherwise all that work here")
    parser.add_argument("--load", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.load:
        load_all(*given.load)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        sources = _sources(place)
        told = {
            backend: _try_all(backend, sources, range(given.seed, given.seed + given.count), place)
            for backend in ([given.backend] if given.backend else usable_backends())
        }
    print(json.dumps(told))
    return int(any(each["missed"] for each in told.values()))


def usable_backends() -> list[str]:
    """Those that load models on this machine."""
    settings = Settings()
    names = [kind.name for kind in all_kinds() if kind.takes_model]
    return [name for name in sorted(names) if not backend_failure(name, settings)]


def _sources(place: Path) -> list[tuple[str, bytes]]:
    """The good files: small ones of both kinds of weights, and the real one where it is there."""
    found: list[tuple[str, bytes]] = []
    for name, packed in (("tiny", False), ("tiny Q8_0", True)):
        write_tiny_gguf(place / "good.gguf", shape=TinyShape(packed=packed))
        found.append((name, (place / "good.gguf").read_bytes()))
    cache = Settings().cache_dir
    if embedded.is_there(cache):
        found.append((embedded.NAME, embedded.path_in(cache).read_bytes()))
    return found


def source_of(seed: int, sources: list[tuple[str, bytes]]) -> tuple[str, bytes]:
    """Which good file the mutant of this seed is made of."""
    if len(sources) > 2 and seed % EMBEDDED_EVERY == EMBEDDED_EVERY - 1:
        return sources[2]
    return sources[seed % 2]


def _try_all(
    backend: str, sources: list[tuple[str, bytes]], seeds: range, place: Path
) -> dict[str, object]:
    outcomes: Counter[tuple[str, str]] = Counter()
    missed: list[str] = []
    refusals, started = 0, time.monotonic()
    with contextlib.closing(Loader(backend, place / "cache")) as loader:
        _check_good(loader, sources, place)
        for seed in seeds:
            name, content = source_of(seed, sources)
            mutant = make_mutant(content, seed)
            path = place / "mutant.gguf"
            path.write_bytes(mutant.content)
            outcome, words = loader.outcome(path)
            refusals += outcome == "refused"
            if outcome == "refused" and refusals % COMMAND_EVERY == 1:
                outcome, words = _command(backend, path, words)
            outcomes[mutant.kind, outcome] += 1
            if outcome not in ALLOWED:
                missed.append(f"seed {seed}, {name}, {mutant.what}: {outcome}: {words[:300]}")
                print(f"    MISSED {missed[-1]}", flush=True)
    print(f"{backend}: {len(seeds)} mutants in {time.monotonic() - started:.0f} s")
    for line in table(outcomes):
        print(f"    {line}")
    return {"outcomes": dict(Counter(name for _, name in outcomes.elements())), "missed": missed}


def table(outcomes: Counter[tuple[str, str]]) -> Iterator[str]:
    """A line for each kind of change, a column for each outcome."""
    columns = [*sorted(ALLOWED), *sorted({name for _, name in outcomes} - ALLOWED)]
    yield f"{'changed':<14}" + "".join(f"{column:>24}" for column in columns)
    for kind in KINDS:
        counts = [outcomes[kind, column] for column in columns]
        if any(counts):
            yield f"{kind:<14}" + "".join(f"{count:>24}" for count in counts)


def _check_good(loader: Loader, sources: list[tuple[str, bytes]], place: Path) -> None:
    """What nobody changed has to answer, or nothing is shown by what follows."""
    for name, content in sources:
        path = place / "good.gguf"
        path.write_bytes(content)
        outcome, words = loader.outcome(path)
        if outcome != "answers":
            raise RuntimeError(f"{name} itself does not run: {outcome}: {words}")


def _command(backend: str, path: Path, words: str) -> tuple[str, str]:
    """The same by `jitney run`: one sentence and status 1."""
    command = [sys.executable, "-m", "jitney", "run", "-m", str(path), "--backend", backend, "hi"]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=HANG_S_MAX, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return "hangs", "jitney run"
    told = done.stderr.decode("utf-8", "replace")
    if done.returncode != 1 or "Traceback" in told or not told.strip():
        return "another end of jitney run", f"status {done.returncode}: {told[-300:]}"
    return "refused", words


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
