"""Prompts from files, in the forms that `vllm bench serve` reads: custom and sharegpt.

No tokenizer is at hand, so a length that a file does not say is estimated from the characters. The
server's own counts replace those of prompts in the result.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from jitney.errors import ConfigError
from jitney_lab.bench.workload import JOBS_MAX, Job, Length, Workload, arrival_times

TOKEN_CHARACTERS = 4
"""Characters of a token of English text, about."""

SHORTEST, LONGEST_PROMPT, LONGEST = 4, 1024, 2048
"""vLLM leaves out conversations with fewer or more tokens than these."""

LINE_BYTES_MAX = 2**24
FILE_BYTES_MAX = 4 * 2**30
"""The usual file of conversations has about 0.7 GB, and is read as a whole."""


@dataclass(frozen=True, slots=True)
class FilePrompt:
    """A prompt of a file and how long its answer should be."""

    text: str
    completion_count: int

    @property
    def prompt_count(self) -> int:
        """Its tokens, about."""
        return estimated(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choosing:
    """Which prompts of a file are sent, and when. Without a count, each is sent once."""

    count: int | None
    shuffles: bool
    repeats: bool
    per_s: float
    burstiness: float
    seed: int

    def workload(self, name: str, prompts: Sequence[FilePrompt]) -> Workload:
        """The prompts as requests."""
        order = list(prompts)
        if self.shuffles:
            random.Random(f"{self.seed} prompts").shuffle(order)
        count = len(order) if self.count is None else self.count
        if not self.repeats:
            count = min(count, len(order))
        times = arrival_times(count, self.per_s, burstiness=self.burstiness, seed=self.seed)
        jobs = tuple(
            Job(
                number=number,
                at_s=at_s,
                prompt_count=prompt.prompt_count,
                completion_count=prompt.completion_count,
                given_text=prompt.text,
            )
            for number, (at_s, prompt) in enumerate(
                zip(times, itertools.cycle(order), strict=False)
            )
        )
        return Workload(name=name, seed=self.seed, jobs=jobs)


class CustomLine(msgspec.Struct):
    """One line of a custom file. Other fields are ignored, as vLLM does."""

    prompt: str
    output_tokens: Length | None = None


class Turn(msgspec.Struct):
    """What one side of a conversation said."""

    value: str


class Conversation(msgspec.Struct):
    """One entry of a ShareGPT file: a question, its answer, and more that is not used."""

    conversations: list[Turn] = []


def read_custom(path: Path, output_len: int | None, default: int) -> list[FilePrompt]:
    """The prompts of a JSONL file. Raises ConfigError.

    Answers have `output_len` tokens. Without it a line may say its own, or it is `default`. If
    `output_len` is -1, every line must say it.
    """
    decoder = msgspec.json.Decoder(CustomLine)
    prompts: list[FilePrompt] = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            read = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{path}, line {number}: {error}. Each line of a custom dataset is an object with "
                "prompt, and output_tokens if it likes."
            ) from None
        if output_len == -1 and read.output_tokens is None:
            raise ConfigError(
                f"{path}, line {number} has no output_tokens, which --custom-output-len -1 asks "
                "for; give a length instead."
            )
        if not read.prompt:
            raise ConfigError(f"{path}, line {number} has an empty prompt; take the line out.")
        given = None if output_len == -1 else output_len
        prompts.append(FilePrompt(read.prompt, given or read.output_tokens or default))
        if len(prompts) > JOBS_MAX:
            raise ConfigError(f"{path} has above {JOBS_MAX:,} prompts; use a part of it.")
    if not prompts:
        raise ConfigError(f"{path} has no prompts; it needs one JSON object a line.")
    return prompts


def read_sharegpt(path: Path, output_len: int | None) -> list[FilePrompt]:
    """The first question of each conversation, with the length of its answer. Raises ConfigError.

    Very short and long ones are left out, by their estimated tokens.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"{path} has above {FILE_BYTES_MAX:,} bytes; use a part of it.")
        entries = msgspec.json.decode(path.read_bytes(), type=list[Conversation])
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: {error}. A sharegpt dataset is a JSON list of objects with conversations."
        ) from None
    prompts = []
    for question, answer in (each.conversations[:2] for each in entries if _has_answer(each)):
        prompt = FilePrompt(question.value, output_len or estimated(answer.value))
        # A length that was asked for may be as small as one likes.
        is_short = prompt.prompt_count < SHORTEST or (
            output_len is None and prompt.completion_count < SHORTEST
        )
        total = prompt.prompt_count + prompt.completion_count
        if not is_short and prompt.prompt_count <= LONGEST_PROMPT and total <= LONGEST:
            prompts.append(prompt)
    if not prompts:
        raise ConfigError(
            f"{path} has no conversation with two turns of {SHORTEST} to {LONGEST_PROMPT} tokens; "
            "give another file, or a smaller --sharegpt-output-len."
        )
    return prompts


def estimated(text: str) -> int:
    """The tokens of a text, about."""
    return max(1, len(text) // TOKEN_CHARACTERS)


def _has_answer(entry: Conversation) -> bool:
    return len(entry.conversations) >= 2


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as lines:
            # A file without line ends would be read into memory as a whole.
            while line := lines.readline(LINE_BYTES_MAX):
                if len(line) == LINE_BYTES_MAX and not line.endswith(b"\n"):
                    raise ConfigError(
                        f"{path} has a line of above {LINE_BYTES_MAX:,} bytes; a custom dataset "
                        "has one JSON object a line."
                    )
                yield line
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
