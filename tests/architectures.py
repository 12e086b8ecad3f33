"""Tries every architecture that llama.cpp knows, each on a small random checkpoint of its own.

    python -m tests.architectures [NAME ...]

writes what was seen to `docs/families/PROCESSOR.json`, from which `python -m scripts.write_docs`
makes the page of families. Each is tried in a child, because native code may take its process
along. The names are those that the library's file holds and the library answers to.
"""

import json
import os
import platform
import re
import struct
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import gguf
import numpy as np

from jitney.backends.llamacpp import library
from jitney.backends.llamacpp.bindings import Model
from jitney.backends.machine.processor import read_processor
from jitney.errors import BackendFailed, JitneyError, ModelError
from tests.alone_for_tests import ask, gap_to_alone, rounding_alone, served
from tests.families_for_tests import BY_LLAMACPP, FAMILIES, write_family
from tests.grown_for_tests import grow
from tests.hybrids_for_tests import Hybrid, write_hybrid

FOLDER = Path(__file__).parents[1] / "docs" / "families"
NAME = re.compile(rb"(?<=\0)[a-z][a-z0-9]*(?:[._-][a-z0-9]+)*(?=\0)")
NAME_CHARACTERS_MAX = 24
BOUND = 0.05
"""Largest difference of a logprob to llama.cpp alone with which an architecture counts as run."""
BOUND_OF_EXPERTS = 0.6
"""And at most, where the library's own ways differ as much."""
LENGTH = 6
TRIAL_S_MAX = 300.0
NO_TEXT = {
    **dict.fromkeys(("bert", "eurobert", "gemma-embedding", "jina-bert-v2"), "embeds texts"),
    **dict.fromkeys(("jina-bert-v3", "llama-embed", "modern-bert", "neo-bert"), "embeds texts"),
    **dict.fromkeys(("nomic-bert", "nomic-bert-moe"), "embeds texts"),
    **dict.fromkeys(("t5", "t5encoder"), "has an encoder"),
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), "writes by diffusion"),
    **dict.fromkeys(("dflash", "eagle3", "gemma4-assistant"), "drafts for another model"),
    **dict.fromkeys(("pockettts", "qwen3tts", "wavtokenizer-dec"), "makes speech"),
    "clip": "reads images for another model",
    "gptj": "the library knows the name alone",
}
"""Names that the library knows and that stand for no model that continues a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What was seen of an architecture."""

    reason: str = ""
    """Why it was not seen to run; empty where it was."""
    gap: float = 0.0
    """Largest difference of a likely token's logprob to llama.cpp called alone."""
    keeps_state: bool = False
    has_window: bool = False
    is_promised: bool = False
    """Whether equal texts are promised, after a trial of the model itself."""
    are_equal: bool = False
    """Whether sixteen answers asked together were those of each alone, to the last bit."""
    is_reused: bool = False
    """Whether next turns went on from what was kept, with what llama.cpp says alone."""


def known_names() -> list[str]:
    """The architectures that the installed library knows."""
    found = library.find()
    assert found is not None
    (file,) = (each for each in found.folder.glob("libllama*") if "common" not in each.name)
    names = {
        each.decode()
        for each in NAME.findall(file.read_bytes())
        if len(each) <= NAME_CHARACTERS_MAX
    }
    names |= set(gguf.MODEL_ARCH_NAMES.values())
    known = {each for each in names if _is_known(each)}
    # A compiler keeps a text once that is the end of another one.
    ends = {each[at:] for each in known for at in range(1, len(each) - 2)}
    return sorted(known | {each for each in ends - known if _is_known(each)})


def _is_known(name: str) -> bool:
    """Whether the library knows an architecture of this name: it is asked with an empty model."""
    key, value = b"general.architecture", name.encode()
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1))
        file.write(struct.pack("<Q", len(key)) + key)
        file.write(struct.pack("<IQ", 8, len(value)) + value)
        file.flush()
        try:
            Model(Path(file.name), gpu_layers=0, extra_kernels=False, has_weights=False)
        except ModelError as error:
            return "unknown model architecture" not in str(error)
    return True


def tried(architecture: str, folder: Path) -> Tried:
    """A random checkpoint of it, by a recipe or grown, asked through the engine. For a child."""
    model = folder / "model.gguf"
    try:
        recipe = {**FAMILIES, **BY_LLAMACPP}.get(architecture)
        if isinstance(recipe, Hybrid):
            write_hybrid(model, recipe, seed=2)
        elif recipe is not None:
            write_family(model, recipe, seed=2)
        else:
            grow(model, architecture)
    except ModelError as error:
        return Tried(reason=f"untested: no checkpoint was made ({error})")
    try:
        return _seen(model)
    except (JitneyError, BackendFailed, AssertionError) as error:
        reason = str(error).partition("\n")[0].replace(str(model), "the file")
        return Tried(reason=f"failed: {reason}")


def _seen(model: Path) -> Tried:
    random = np.random.default_rng(7)
    prompts = [tuple(map(int, random.integers(4, 268, length))) for length in range(8, 136, 8)]
    with served(model, 1, enable_prefix_caching=False) as engine:
        alone = [ask(engine, [prompt], LENGTH)[0] for prompt in prompts]
    with served(model) as engine:
        traits = engine.backend.traits
        found = ask(engine, prompts, LENGTH)
        turns = [(*said.prompt, *said.tokens, *prompts[0]) for said in found[-4:]]
        turns += [(*said.prompt, *prompts[1]) for said in found[-4:]]
        reused = ask(engine, turns, LENGTH)
    gap = max(gap_to_alone(model, said) for said in found)
    gap_reused = max(gap_to_alone(model, said) for said in reused)
    bound = BOUND
    if max(gap, gap_reused) > BOUND:
        # Between experts that are nearly as good, rounding decides.
        rounding = max(rounding_alone(model, said) for said in (*found, *reused))
        bound = min(max(BOUND, rounding), BOUND_OF_EXPERTS)
    if not gap <= bound:
        return Tried(reason=f"failed: logprobs differ by {gap:.2f} from llama.cpp alone")
    return Tried(
        gap=round(gap, 4),
        keeps_state=traits.state_bytes > 0,
        has_window=not traits.can_save,
        is_promised=traits.batch_invariant,
        are_equal=[each.content for each in found] == [each.content for each in alone],
        is_reused=gap_reused <= bound and any(said.cached_count for said in reused),
    )


def asked(architecture: str) -> Tried:
    """What a child saw of it."""
    if architecture in NO_TEXT:
        return Tried(reason=f"no: {NO_TEXT[architecture]}")
    command = [sys.executable, "-m", "tests.architectures", "--child", architecture]
    # A library that fails would start a debugger.
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TRIAL_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Tried(reason="failed: no answer came")
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"reason"')]
    if lines:
        return Tried(**json.loads(lines[-1]))
    if done.returncode < 0:
        return Tried(reason="untested: the library stopped the process with our checkpoint")
    return Tried(reason=f"untested: {done.stderr.strip().splitlines()[-1][:200]}")


def processor_kind() -> str:
    """The kind of processor: kernels differ by it."""
    machine = platform.machine().lower()
    found = set(read_processor().instructions.split())
    if machine in ("x86_64", "amd64"):
        levels = ("amx_tile", "avx512f", "avx2")
        level = next((each for each in levels if each in found), "sse")
        return f"x86-64-{level.removesuffix('_tile').removesuffix('f')}"
    return f"arm64-{'sve' if 'sve' in found else 'neon'}"


def main(arguments: list[str]) -> None:
    """Try those that are named, or all; what was seen of the others before stays."""
    if arguments[:1] == ["--child"]:
        with tempfile.TemporaryDirectory() as folder:
            sys.stdout.write(json.dumps(asdict(tried(arguments[1], Path(folder)))) + "\n")
        return
    path = FOLDER / f"{processor_kind()}.json"
    seen = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    names = arguments or known_names()
    for name in names:
        seen[name] = asdict(asked(name))
        sys.stdout.write(f"{name} {seen[name]}\n")
        sys.stdout.flush()
        FOLDER.mkdir(exist_ok=True)
        path.write_text(json.dumps(seen, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
