"""The same model as a folder, over `jitney serve`: two starts, 256 requests together, and a kill.

Needs what a server needs, and room for the weights in FOLDER's place, 16 GB of memory.
"""

import asyncio
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.gpu.load import random_tokens
from benchmarks.gpu.model import SHAPE, RandomTensors
from benchmarks.http.served import Served, served
from benchmarks.http.wire import Connection
from jitney.backends.torch.architecture import Architecture
from jitney.backends.torch.tensor_names import hub_names
from jitney.models.token_names import byte_characters

FOLDER = Path("/dev/shm/jitney-gpu-model")
START_S = 240.0
STREAMS = 64
"""How many run when the backend is killed."""
FLAGS = (
    *("--max-num-seqs", "256", "--max-num-batched-tokens", "8192", "--prefill-chunk", "8192"),
    *("--max-model-len", "4096", "--backend", "torch", "--mix", "decode-first"),
)


def http(shape: Architecture = SHAPE, flags: tuple[str, ...] = FLAGS, count: int = 256) -> None:
    """Write the model, start a server with it twice, load the second, and kill its backend."""
    started = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        _write(FOLDER, shape, device)
        _say(f"model written in {time.perf_counter() - started:.1f} s")
        with _empty_caches():
            with _started("cold", flags):
                pass
            with _started("warm", flags) as server:
                asyncio.run(_load(server, count))
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)


@contextmanager
def _empty_caches() -> Iterator[None]:
    """What is started in here finds no kernels and no results of trials, and keeps its own."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = f"{folder}/triton"
        os.environ["JITNEY_CACHE"] = f"{folder}/jitney"
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


@contextmanager
def _started(how: str, flags: tuple[str, ...]) -> Iterator[Served]:
    """A server that gave its first token."""
    started = time.perf_counter()
    with served("--model", str(FOLDER), *flags, start_s=START_S) as server:
        ready = time.perf_counter()
        asyncio.run(_together(server, 1, 0, streams=True))
        first = time.perf_counter()
        _say(f"{how} start: ready in {ready - started:.1f} s, first token {first - started:.1f} s")
        yield server


async def _load(server: Served, count: int) -> None:
    for turn, streams in enumerate((False, False, True), 1):
        seconds, tokens = await _together(server, count, turn, streams=streams)
        how = "streamed" if streams else "whole"
        _say(f"{count} of 256 in, 256 out over HTTP, {how}: {tokens / seconds:.0f} tokens/s")
    running = asyncio.create_task(_together(server, STREAMS, 4, streams=True))
    await asyncio.sleep(1.5)
    worker = server.worker()
    assert worker is not None, "It runs"
    os.kill(worker, signal.SIGKILL)
    seconds, tokens = await running
    wanted = STREAMS * 256
    _say(f"backend killed under {STREAMS} streams: {tokens} of {wanted} tokens, {seconds:.1f} s")


async def _together(server: Served, count: int, turn: int, *, streams: bool) -> tuple[float, int]:
    """Seconds, and tokens that came. Each turn has prompts of its own: no prefix is found."""
    connections = [await Connection.open(server.port) for _ in range(count)]
    bodies: list[dict[str, object]] = [
        {"prompt": random_tokens(turn * 10_000 + number, 256), "temperature": 0, "stream": streams,
         "max_tokens": 256 if count > 1 else 1,
         **({"stream_options": {"include_usage": True}} if streams else {})}
        for number in range(count)
    ]  # fmt: skip
    started = time.perf_counter()
    pairs = zip(connections, bodies, strict=True)
    found = await asyncio.gather(*(_answer(one, body) for one, body in pairs))
    seconds = time.perf_counter() - started
    for connection in connections:
        connection.close()
    return seconds, sum(found)


async def _answer(connection: Connection, body: dict[str, object]) -> int:
    head = await connection.begin("/v1/completions", body)
    if head.status != 200:
        raise RuntimeError((await connection.rest(head)).decode())
    if body["stream"]:
        last = (await connection.events_at_end())[-2]
    else:
        last = await connection.rest(head)
    found: int = json.loads(last)["usage"]["completion_tokens"]
    return found


def _write(folder: Path, shape: Architecture, device: torch.device) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    tensors = RandomTensors(shape, device)
    save_file(
        {name: tensors.read(key).bfloat16().cpu() for key, name in hub_names(shape).items()},
        folder / "model.safetensors",
    )
    config = {
        "model_type": "llama", "num_attention_heads": shape.heads, "hidden_size": shape.width,
        "head_dim": shape.head, "hidden_act": "silu", "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.heads_kv, "intermediate_size": shape.inner,
        "vocab_size": shape.vocabulary, "max_position_embeddings": shape.length_max,
        "rms_norm_eps": shape.epsilon, "rope_theta": 500_000.0, "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    pieces = ["<end>", *byte_characters()]
    pieces += [f"w{at}" for at in range(len(pieces), shape.vocabulary)]
    tokenizer = Tokenizer(models.BPE({piece: at for at, piece in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))


def _say(text: str) -> None:
    print(text, flush=True)
