"""The servers that `benchmarks.compare` knows: how each is found here and started.

Each is given what makes it fastest on this work, as far as its documentation tells: as many slots
as clients, the cores that we use, no cache of prefixes. Some settings of llama-server and of vLLM
are searched.
"""

import itertools
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.compare.libraries import is_installed
from benchmarks.compare.server_process import FOLDER, HOST, python_file
from jitney.backends.machine.cores import usable_cores
from jitney.config import environment
from jitney.errors import SetupError

FLASH = ("on", "off")
UBATCH = (512, 2048)
ROOM_TOKENS = 512
DTYPES = ("bfloat16", "float32")
FOREIGN_PYTHON = {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1"}
"""Our packages are of no use to another environment, and nothing is fetched for it."""

UNPACK_S = 600.0
UNPACK_CHARACTERS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """One way to start one server. `PORT` in the command is replaced by a free port."""

    name: str
    command: tuple[str, ...]
    extra_body: dict[str, object] = field(default_factory=dict)
    """What its bodies need beside OpenAI's fields, so that answers have the whole length."""
    environment: dict[str, str] = field(default_factory=dict)
    settings: str = ""
    """The settings that were searched, for people."""

    def on(self, port: int) -> list[str]:
        """The command with its port."""
        return [str(port) if word == "PORT" else word for word in self.command]


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How many sequences a server should take, of how many tokens each."""

    slots: int
    tokens_each: int = ROOM_TOKENS

    @property
    def context(self) -> int:
        """Tokens of all sequences together."""
        return self.slots * self.tokens_each


def jitney_server(model: Path | None, words: Mapping[str, str], slots: int) -> ServerPlan:
    """Ourselves, over HTTP like the others, with these settings of the engine and no others."""
    place = () if model is None else (str(model),)
    # An empty variable does not count. The user's own may hold keys or other settings of a server.
    variables = {name: "" for name in environment() if name.startswith("JITNEY_")}
    ours = {
        **words,
        "max_num_seqs": str(slots),
        "max_model_len": str(ROOM_TOKENS),
        "enable_prefix_caching": "false",
    }
    return ServerPlan(
        name="jitney serve",
        command=(
            *(sys.executable, "-P", "-m", "jitney", "serve", *place),
            *("--host", HOST, "--port", "PORT"),
        ),
        environment=variables | {f"JITNEY_{name.upper()}": value for name, value in ours.items()},
    )


def llama_servers(model: Path, room: Room, label: str = "") -> list[ServerPlan]:
    """llama-server in every build that is here, with every setting worth a trial.

    The compiled build comes first: it is usually the faster one. `label` is part of the names.
    """
    compiled = compiled_llama_server()
    searched = list(itertools.product(FLASH, UBATCH))
    plans = []
    if compiled is not None:
        plans += [
            _llama_server(
                f"llama-server (compiled){label}",
                (
                    *(str(compiled), "--model", str(model), "--host", HOST, "--port", "PORT"),
                    *("--parallel", str(room.slots), "--ctx-size", str(room.context)),
                    *("--threads", str(usable_cores()), "--batch-size", "2048"),
                    *("--ubatch-size", str(ubatch), "--flash-attn", flash, "--no-webui"),
                ),
                flash,
                ubatch,
            )
            for flash, ubatch in searched
        ]
    if is_installed("xllamacpp"):
        words = (str(model), "PORT", str(room.slots), str(room.context), str(usable_cores()))
        plans += [
            _llama_server(
                f"llama-server (wheel){label}",
                (*python_file("xllamacpp_server"), *words, flash, str(ubatch)),
                flash,
                ubatch,
            )
            for flash, ubatch in searched
        ]
    return plans


def _llama_server(name: str, command: tuple[str, ...], flash: str, ubatch: int) -> ServerPlan:
    settings = f"flash attention {flash}, ubatch {ubatch}"
    return ServerPlan(
        name=name, command=command, extra_body={"cache_prompt": False}, settings=settings
    )


def other_servers(model: Path, room: Room, eos_tokens: Iterable[int]) -> list[ServerPlan]:
    """llama-cpp-python's server, if it is installed."""
    plans = []
    if is_installed("llama_cpp") and is_installed("llama_cpp.server"):
        plans.append(
            ServerPlan(
                name="llama-cpp-python",
                command=(
                    *(sys.executable, "-P", "-m", "llama_cpp.server"),
                    *("--model", str(model), "--host", HOST),
                    *("--port", "PORT", "--n_threads", str(usable_cores())),
                    *("--n_threads_batch", str(usable_cores()), "--n_batch", "2048"),
                    *("--n_ctx", str(room.tokens_each)),
                    # It would end an answer as soon as another request waits.
                    *("--interrupt_requests", "false"),
                ),
                # It does not know `ignore_eos`.
                extra_body={"logit_bias": {str(token): -100 for token in eos_tokens}},
            )
        )
    return plans


def compiled_llama_server() -> Path | None:
    """llama-server of this machine: named by LLAMA_SERVER, or on the PATH."""
    found = environment().get("LLAMA_SERVER") or shutil.which("llama-server")
    return None if found is None else Path(found)


def vllm_servers(python: Path, folder: Path, room: Room) -> list[ServerPlan]:
    """vLLM on a folder of `unpack_for_vllm`, in each number type: which is faster depends."""
    return [
        ServerPlan(
            name="vLLM",
            command=(
                # Its command asks for a package `vllm`, and builds for CPUs have other names.
                *(str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)),
                *("--host", HOST, "--port", "PORT"),
                *("--max-num-seqs", str(room.slots), "--max-model-len", str(room.tokens_each)),
                *("--dtype", dtype, "--no-enable-prefix-caching"),
            ),
            environment={
                **FOREIGN_PYTHON,
                "VLLM_CPU_KVCACHE_SPACE": "2",
                # By itself it leaves one core to its server.
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": str(usable_cores()),
                "VLLM_NO_USAGE_STATS": "1",
            },
            settings=dtype,
        )
        for dtype in DTYPES
    ]


def vllm_python() -> Path | None:
    """The Python with vLLM: named by VLLM_PYTHON, or beside the command `vllm` on the PATH."""
    named, command = environment().get("VLLM_PYTHON"), shutil.which("vllm")
    if named:
        return Path(named)
    # The PATH may hold a link into the environment.
    return None if command is None else Path(command).resolve().parent / "python"


def unpack_for_vllm(python: Path, model: Path, folder: Path) -> None:
    """Write a GGUF file as a folder that vLLM reads, with the Python of its environment.

    Raises SetupError.
    """
    command = [str(python), str(FOLDER / "hf_folder.py"), str(model), str(folder)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=UNPACK_S,
            env={**environment(), **FOREIGN_PYTHON},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"{model.name} could not be unpacked for vLLM: {error}") from error
    if done.returncode:
        reason = done.stderr.strip()[-UNPACK_CHARACTERS:] or "it wrote no reason"
        raise SetupError(f"{model.name} could not be unpacked for vLLM: {reason}")
