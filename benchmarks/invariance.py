"""`python -m benchmarks.invariance`: are texts equal whatever else runs, and what does that cost?

`tables` runs the same eight requests alone and in every way that could round otherwise, with
`batch_invariant` on and off, and counts the texts that are equal to the letter and the answers
whose logprobs are equal to the last bit. `price` runs the same load with and without, in turns, at
1, 4, 16 and 64 sequences, and kills the backend's process under it.
"""

import argparse
import json
import os
import signal
import statistics
import time
from collections.abc import Callable, Sequence

from jitney import LLM, RequestOutput, SamplingParams
from jitney.backends.process.client import ProcessBackend

SYSTEM = "You are the driver of a small bus that never stops moving, and you answer in a sentence. "
QUESTIONS = (
    "What is the capital of France, and why do people visit it?",
    "Name three fruits that are red.",
    "How does a bicycle stay upright when it moves?",
    "Write one line of a poem about rain.",
    "What is 12 times 12?",
    "Why is the sky blue?",
    "Describe a cat to somebody who has never seen one.",
    "What should I pack for a week in the mountains?",
)
PROMPTS = [f"{SYSTEM * 3}\nQuestion: {question}\nAnswer:" for question in QUESTIONS]
LENGTH = 48
KINDS = {
    "greedy": SamplingParams(temperature=0, max_tokens=LENGTH, logprobs=5, ignore_eos=True),
    "seeded": SamplingParams(
        temperature=0.8, seed=7, max_tokens=LENGTH, logprobs=5, ignore_eos=True
    ),
}
CHOICES = ("on", "off")
RUNS = 3
COUNTS = (1, 4, 16, 64)
PRICE_TOKENS = 48
WAIT_S = 600.0

Opener = Callable[..., LLM]
Way = Callable[[Opener, SamplingParams], list[RequestOutput]]


def main() -> None:
    """Run what was asked for; a line of JSON at the end."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.invariance", description=__doc__)
    parser.add_argument("part", nargs="?", choices=("tables", "price"), help="both unless given")
    parser.add_argument(
        "--backend", required=True, help="auto may choose another one for each shape of an engine"
    )
    parser.add_argument("--threads", type=int)
    parser.add_argument("--model", help="the embedded one unless given")
    asked = parser.parse_args()
    usual = {"backend": asked.backend, "threads": asked.threads}

    def opener(**settings: object) -> LLM:
        small = {"max_model_len": 512, "max_num_seqs": 8}
        return LLM(asked.model, **{**small, **usual, **settings})

    found: dict[str, object] = {}
    if asked.part in (None, "tables"):
        found["tables"] = tables(opener)
    if asked.part in (None, "price"):
        found["price"] = price(opener)
    print(json.dumps(found))


def tables(opener: Opener) -> dict[str, dict[str, list[int]]]:
    """Of eight, how many texts and how many answers in every bit equal those of the run alone."""
    found: dict[str, dict[str, list[int]]] = {}
    for choice in CHOICES:
        for kind, params in KINDS.items():

            def opened(choice: str = choice, **settings: object) -> LLM:
                return opener(batch_invariant=choice, **settings)

            expected = _alone(opened, params)
            for name, way in WAYS.items():
                counts = _count_equal(way(opened, params), expected)
                found.setdefault(name, {})[f"{choice} {kind}"] = counts
                print(f"{name:34} {choice:3} {kind:6} {counts[0]} texts, {counts[1]} to the bit")
    return found


def _count_equal(got: Sequence[RequestOutput], expected: Sequence[RequestOutput]) -> list[int]:
    pairs = [(a.outputs[0], b.outputs[0]) for a, b in zip(got, expected, strict=True)]
    texts = sum(ours.text == theirs.text for ours, theirs in pairs)
    return [texts, sum(ours.logprobs == theirs.logprobs for ours, theirs in pairs)]


def _alone(opener: Opener, params: SamplingParams) -> list[RequestOutput]:
    with opener(max_num_seqs=1, enable_prefix_caching=False) as llm:
        return [llm.generate(prompt, params)[0] for prompt in PROMPTS]


def _beside(count: int) -> Way:
    """Each of them in one batch with so many strangers, in the middle."""

    def way(opener: Opener, params: SamplingParams) -> list[RequestOutput]:
        strangers = [f"Number {number} of a list begins" for number in range(count)]
        half = count // 2
        with opener(max_num_seqs=len(PROMPTS) + count, enable_prefix_caching=False) as llm:
            outputs = llm.generate([*strangers[:half], *PROMPTS, *strangers[half:]], params)
        return outputs[half : half + len(PROMPTS)]

    return way


def _in_spans(chunk: int) -> Way:
    def way(opener: Opener, params: SamplingParams) -> list[RequestOutput]:
        with opener(prefill_chunk=chunk, enable_prefix_caching=False) as llm:
            return llm.generate(PROMPTS, params)

    return way


def _copied(opener: Opener, params: SamplingParams) -> list[RequestOutput]:
    """Backwards, where every prompt was computed and cached before."""
    with opener() as llm:
        llm.generate(PROMPTS, params)
        return llm.generate(PROMPTS[::-1], params)[::-1]


def _restored(opener: Opener, params: SamplingParams) -> list[RequestOutput]:
    return _in_little(opener, params, "1GiB")


def _recomputed(opener: Opener, params: SamplingParams) -> list[RequestOutput]:
    return _in_little(opener, params, 0)


def _in_little(opener: Opener, params: SamplingParams, saved: object) -> list[RequestOutput]:
    """Four of low class lose their places to four of high class, and come back."""
    with opener(
        max_num_seqs=4, policy="priority", enable_prefix_caching=bool(saved), saved_limit=saved
    ) as llm:
        low = [llm.submit(prompt, params, priority="low") for prompt in PROMPTS[:4]]
        for number, _ in enumerate(low[0]):
            if number == LENGTH // 3:
                break
        high = [llm.submit(prompt, params, priority="high") for prompt in PROMPTS[4:]]
        return [handle.result(WAIT_S) for handle in (*low, *high)]


def _killed(opener: Opener, params: SamplingParams) -> list[RequestOutput]:
    """The backend's process is killed in the middle of all answers."""
    with opener(backend_process=True) as llm:
        handles = [llm.submit(prompt, params) for prompt in PROMPTS]
        for number, _ in enumerate(handles[0]):
            if number == LENGTH // 2:
                _kill(llm)
        return [handle.result(WAIT_S) for handle in handles]


def _kill(llm: LLM) -> None:
    backend = llm.engine.backend
    assert isinstance(backend, ProcessBackend), "it was asked for"
    assert backend.pid is not None, "it runs"
    os.kill(backend.pid, signal.SIGKILL)


WAYS: dict[str, Way] = {
    "alone again": _alone,
    **{f"beside {count} others": _beside(count) for count in (0, 1, 7, 24, 56)},
    **{f"in spans of {chunk}": _in_spans(chunk) for chunk in (1, 2, 7, 16, 64, 512)},
    "copied from cached prefixes": _copied,
    "displaced, memory kept": _restored,
    "displaced, computed again": _recomputed,
    "process killed": _killed,
}


def price(opener: Opener) -> dict[str, object]:
    """Tokens a second and seconds to the first token, with and without, in turns."""
    found: dict[str, object] = {}
    for count in COUNTS:
        speeds: dict[str, list[float]] = {choice: [] for choice in CHOICES}
        firsts: dict[str, list[float]] = {choice: [] for choice in CHOICES}
        llms = {
            choice: opener(batch_invariant=choice, max_num_seqs=count, enable_prefix_caching=False)
            for choice in CHOICES
        }
        for number in range(RUNS + 1):
            for choice in CHOICES if number % 2 else CHOICES[::-1]:
                speed, first = _load(llms[choice], count)
                if number:  # the first round warms up
                    speeds[choice].append(speed)
                    firsts[choice].append(first)
        for llm in llms.values():
            llm.close()
        found[str(count)] = {"tokens_per_s": speeds, "first_token_s": firsts}
        print(
            f"{count:3} sequences: {_told(speeds, 'tokens/s')}; {_told(firsts, 's to the first')}"
        )
    found["killed"] = {choice: _outage(opener, choice) for choice in CHOICES}
    print(f"killed at 16 sequences, s until all go on: {found['killed']}")
    return found


def _told(values: dict[str, list[float]], unit: str) -> str:
    told = [f"{name} {' '.join(f'{each:.3g}' for each in list_)}" for name, list_ in values.items()]
    ratio = statistics.median(values["on"]) / statistics.median(values["off"])
    return f"{', '.join(told)} {unit}, ratio {ratio:.3f}"


def _load(llm: LLM, count: int) -> tuple[float, float]:
    params = SamplingParams(temperature=0, max_tokens=PRICE_TOKENS, ignore_eos=True)
    prompts = [f"{SYSTEM * 3}{number}. {QUESTIONS[number % 8]}" for number in range(count)]
    started = time.perf_counter()
    handles = [llm.submit(prompt, params) for prompt in prompts]
    outputs = [handle.result(WAIT_S) for handle in handles]
    seconds = time.perf_counter() - started
    firsts = [output.metrics.time_to_first_token or 0.0 for output in outputs]
    return count * PRICE_TOKENS / seconds, statistics.mean(firsts)


def _outage(opener: Opener, choice: str) -> float:
    """Seconds from a kill until the last of 16 sequences has its next token."""
    params = SamplingParams(temperature=0, max_tokens=96, ignore_eos=True)
    with opener(batch_invariant=choice, backend_process=True, max_num_seqs=16) as llm:
        handles = [llm.submit(f"{SYSTEM}{number}.", params) for number in range(16)]
        for number, _ in enumerate(handles[-1]):
            if number == 48:
                break
        killed = time.perf_counter()
        _kill(llm)
        next(iter(handles[-1]))
        seconds = time.perf_counter() - killed
        for handle in handles:
            handle.cancel()
    return seconds


if __name__ == "__main__":
    main()
