"""`python -m benchmarks.hybrid_turns [NAME ...]`: turns of a conversation with a recurrent state.

The same random checkpoint of each family over `jitney serve` and over llama-server (the wheel
xllamacpp), one after the other. Printed are the prompt tokens that each computed in each turn, the
fewer the better, and how much its processes grew meanwhile. The second and third turn go on with
the answer as it was given. `half` goes on with half of the last one, as after an interrupt; `again`
repeats that call; `other` is a conversation with the same beginning of 2,000 tokens.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import httpx

from benchmarks.compare.server_process import HOST, free_port, python_file, running_server
from benchmarks.http.served import children_of, resident_mib, served
from benchmarks.http.wire import Json
from tests.hybrids_for_tests import HYBRIDS, write_hybrid

SLOTS, LENGTH = 4, 16_384
FIRST, SHARED, NEWS, ANSWER = 3_000, 2_000, 200, 64
FLAGS = ("--max-num-seqs", str(SLOTS), "--max-model-len", str(LENGTH), "--backend", "llamacpp")
WAIT_S = 300.0
LETTERS = tuple(range(4 + ord("a"), 4 + ord("z") + 1))
"""Tokens of the tiny vocabulary that are one letter each: all that prompts and answers have."""

Tokens = list[int]
Ask = Callable[[Tokens], tuple[int, Tokens]]
"""Prompt tokens computed, and the answer."""


def main(names: list[str]) -> None:
    """Measure these families, or all."""
    for name in names or HYBRIDS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tiny.gguf"
            write_hybrid(path, HYBRIDS[name], context=LENGTH)
            for kind, running in (("jitney", _jitney), ("llama-server", _llama_server)):
                with running(path) as ask:
                    before_mib = _resident_mib()
                    computed = _talk(ask)
                    grown_mib = _resident_mib() - before_mib
                turns = ", ".join(f"{turn} {count}" for turn, count in computed.items())
                print(f"{name:14} {kind:13} {turns}; grew by {grown_mib:.1f} MiB", flush=True)


def _talk(ask: Ask) -> dict[str, int]:
    random = Random(0)

    def news(count: int) -> Tokens:
        return random.choices(LETTERS, k=count)

    computed: dict[str, int] = {}
    history, answer = news(FIRST), Tokens()
    first = history
    for turn in ("first", "second", "third"):
        computed[turn], answer = ask(history)
        history = [*history, *answer, *news(NEWS)]
    half = [*history[: -NEWS - ANSWER // 2], *news(NEWS)]
    computed["half"], _ = ask(half)
    computed["again"], _ = ask(half)
    computed["other"], _ = ask([*first[:SHARED], *news(NEWS)])
    return computed


def _body(tokens: Tokens) -> Json:
    bias = {str(token): 100 for token in LETTERS}
    return {"prompt": tokens, "max_tokens": ANSWER, "temperature": 0, "logit_bias": bias}


@contextmanager
def _jitney(model: Path) -> Iterator[Ask]:
    with (
        served("--model", str(model), *FLAGS) as server,
        _client(f"http://{HOST}:{server.port}") as post,
    ):

        def ask(tokens: Tokens) -> tuple[int, Tokens]:
            reply = post(_body(tokens) | {"ignore_eos": True})
            usage = reply["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            return usage["prompt_tokens"] - cached, _tokens(reply)

        yield ask


@contextmanager
def _llama_server(model: Path) -> Iterator[Ask]:
    port = free_port()
    words = (str(model), str(port), str(SLOTS), str(SLOTS * LENGTH), "2", "on", "512")
    with (
        running_server((*python_file("xllamacpp_server"), *words), port) as address,
        _client(address) as post,
    ):

        def ask(tokens: Tokens) -> tuple[int, Tokens]:
            reply = post(_body(tokens) | {"cache_prompt": True})
            return reply["timings"]["prompt_n"], _tokens(reply)

        yield ask


@contextmanager
def _client(address: str) -> Iterator[Callable[[Json], Json]]:
    with httpx.Client(base_url=address, timeout=WAIT_S, trust_env=False) as client:

        def post(body: Json) -> Json:
            reply = client.post("/v1/completions", json=body)
            if reply.status_code != 200:
                raise RuntimeError(reply.text)
            found: Json = reply.json()
            return found

        yield post


def _tokens(reply: Json) -> Tokens:
    text: str = reply["choices"][0]["text"]
    assert len(text) == ANSWER, f"Only letters may come: {text!r}"
    return [4 + ord(letter) for letter in text]


def _resident_mib() -> float:
    """Of all processes that we started."""
    found, left = 0.0, children_of(os.getpid())
    while left:
        pid = left.pop()
        found += resident_mib(pid)
        left += children_of(pid)
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
