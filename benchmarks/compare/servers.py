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
UBATCH = ("512", "2048")
ROOM_TOKENS = 512
"""Of each sequence."""

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


def llama_servers(model: Path, slots: int, label: str = "") -> list[ServerPlan]:
    """llama-server in every build that is here, with every setting worth a trial.

    `label` is part of the names.
    """
    compiled = environment().get("LLAMA_SERVER") or shutil.which("llama-server")
    context, cores = str(slots * ROOM_TOKENS), str(usable_cores())
    plans = []
    for flash, ubatch in itertools.product(FLASH, UBATCH):
        builds: dict[str, tuple[str, ...]] = {}
        if compiled is not None:
            builds["compiled"] = (
                *(compiled, "--model", str(model), "--host", HOST, "--port", "PORT"),
                *("--parallel", str(slots), "--ctx-size", context, "--threads", cores),
                *("--batch-size", "2048", "--ubatch-size", ubatch, "--flash-attn", flash),
                "--no-webui",
            )
        if is_installed("xllamacpp"):
            words = (str(model), "PORT", str(slots), context, cores, flash, ubatch)
            builds["wheel"] = (*python_file("xllamacpp_server"), *words)
        plans += [
            ServerPlan(
                name=f"llama-server ({build}){label}",
                command=command,
                extra_body={"cache_prompt": False},
                settings=f"flash attention {flash}, ubatch {ubatch}",
            )
            for build, command in builds.items()
        ]
    return plans


def other_servers(model: Path, eos_tokens: Iterable[int]) -> list[ServerPlan]:
    """llama-cpp-python's server, if it is installed."""
    if not (is_installed("llama_cpp") and is_installed("llama_cpp.server")):
        return []
    cores = str(usable_cores())
    command = (
        *(sys.executable, "-P", "-m", "llama_cpp.server", "--model", str(model)),
        *("--host", HOST, "--port", "PORT", "--n_threads", cores, "--n_threads_batch", cores),
        *("--n_batch", "2048", "--n_ctx", str(ROOM_TOKENS)),
        # It would end an answer as soon as another request waits.
        *("--interrupt_requests", "false"),
    )
    # It does not know `ignore_eos`.
    bias = {str(token): -100 for token in eos_tokens}
    return [ServerPlan(name="llama-cpp-python", command=command, extra_body={"logit_bias": bias})]


def vllm_servers(python: Path, folder: Path, slots: int) -> list[ServerPlan]:
    """vLLM on a folder of `unpack_for_vllm`, in each number type: which is faster depends."""
    return [
        ServerPlan(
            name="vLLM",
            command=(
                # Its command asks for a package `vllm`, and builds for CPUs have other names.
                *(str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)),
                *("--host", HOST, "--port", "PORT"),
                *("--max-num-seqs", str(slots), "--max-model-len", str(ROOM_TOKENS)),
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
