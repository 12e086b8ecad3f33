"""`RowAnswers`: answers the rows of a dataset, for `map_batches` of Ray Data.

    dataset.map_batches(
        RowAnswers,
        fn_constructor_kwargs={"model": "model.gguf", "max_tokens": 64},
        compute=ray.data.ActorPoolStrategy(size=2),
        batch_size=64,
    )

Each actor has one engine, and all batches that Ray Data gives to the actor share it. Ray is not
imported here: a batch is a mapping of numpy arrays, one for each column.

An answer depends on its row alone, not on the batch, the actor or the order. When an actor dies,
Ray Data gives its batches to another, and the same rows get the same texts. Three things are not
promised: a chat template that writes today's date; a machine on which texts depend on the batch
(the engine's log says so); and errors of the moment, such as a time limit.

Any thread may call.
"""

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from jitney.api.feed import AnswerOrError, run_each
from jitney.api.llm import LLM
from jitney.api.prompts import Prompt, read_prompt
from jitney.core.events import FinishReason
from jitney.core.params import PARAMETERS, SamplingParams
from jitney.core.request import Request
from jitney.engine.answer import Answer
from jitney.engine.engine import EngineState
from jitney.errors import InvalidRequest, JitneyError, ModelError

Column = np.ndarray[Any, Any]
"""Any: of any type, with a value for each row."""

Row = Mapping[str, Any]
"""Any: the values of a row are checked when they are read."""

OUTPUT_COLUMNS = ("text", "finish_reason", "prompt_tokens", "completion_tokens", "error")
REFUSED_PARAMETERS = ("n", "logprobs", "prompt_logprobs")
"""A row has one text, and no column for logprobs."""

ROW_PARAMETERS = tuple(
    name
    for name in PARAMETERS
    if name not in (*REFUSED_PARAMETERS, "logit_bias", "structured_outputs")
)
"""Parameters that may be columns. Mappings may not: Arrow gives those of all rows the same keys."""

EXACT_MAX = 2**53
"""Every whole number below it is a float too."""


class RowAnswers:
    """Answers rows with one engine.

    The columns of a batch:

        prompt      a text, or a list of tokens; or
        messages    a conversation: a list of mappings with a role and a content
        max_tokens, temperature, seed and the other ROW_PARAMETERS
                    parameters of this row, if there are such columns; null is the constructor's

    The answers add `text`, `finish_reason`, `prompt_tokens`, `completion_tokens` and `error`; all
    columns of the batch stay. A row that fails has a sentence in `error` and the finish reason
    `error`; the others have an empty `error`. Where the engine itself has stopped, the call raises.

    A row without a seed gets one from its prompt and the constructor's `seed`. So rows with equal
    prompts have equal texts: give them a column `seed` to have several answers to one prompt.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        config: str | Path | None = None,
        seed: int = 0,
        **options: Any,  # Any: a sampling parameter or a setting, checked by its reader
    ) -> None:
        """Load the model. `options` are sampling parameters, and settings as `LLM` takes them."""
        sampling = {name: options.pop(name) for name in PARAMETERS if name in options}
        refused = [name for name in REFUSED_PARAMETERS if name in sampling]
        if refused:
            raise InvalidRequest(
                f"{refused[0]} has no effect on rows: each has one text, without logprobs; leave "
                "it out.",
                refused[0],
            )
        self._params = SamplingParams(seed=seed, **sampling)
        self._llm = LLM(model, config=config, **options)

    async def __call__(self, batch: Mapping[str, Column]) -> dict[str, Column]:
        """`answer` for Ray Data, which runs several calls at once because this is a coroutine."""
        return await asyncio.to_thread(self.answer, batch)

    def answer(self, batch: Mapping[str, Column]) -> dict[str, Column]:
        """The batch with the answers to its rows. Several threads may call at the same time."""
        self._check(batch)
        read = [name for name in ("prompt", "messages", *ROW_PARAMETERS) if name in batch]
        columns_read = (batch[name] for name in read)
        rows = [dict(zip(read, row, strict=True)) for row in zip(*columns_read, strict=True)]
        outcomes = run_each(self._llm.engine, self._requests(rows), self._check_engine)
        values = [_output_values(each) for each in outcomes]
        added = {
            name: np.array([row[at] for row in values], np.int64 if "_tokens" in name else object)
            for at, name in enumerate(OUTPUT_COLUMNS)
        }
        return {**{name: _storable(column) for name, column in batch.items()}, **added}

    def close(self) -> None:
        """Release the model. The end of the actor does it too."""
        self._llm.close()

    def _check(self, batch: Mapping[str, Column]) -> None:
        """Refuse a batch of which no row could be answered."""
        if not isinstance(batch, Mapping):
            raise InvalidRequest(
                "A batch is a mapping of numpy arrays, and this one is of the type "
                f'{type(batch).__name__}; leave batch_format at "default".'
            )
        if "prompt" not in batch and "messages" not in batch:
            raise InvalidRequest(
                "A batch needs a column prompt or messages, and this one has "
                f"{', '.join(map(str, batch)) or 'none':.200}; rename one."
            )
        taken = [name for name in OUTPUT_COLUMNS if name in batch]
        if taken:
            raise InvalidRequest(
                f"The answers have a column {taken[0]}, and the batch has one already; rename it."
            )
        if "messages" in batch and self._llm.engine.backend.vocabulary.chat_template is None:
            raise ModelError("The model has no chat template; give a column prompt, not messages.")

    def _check_engine(self, _place: int, outcome: AnswerOrError) -> None:
        """Raise an error that every other row would get too."""
        is_running = self._llm.engine.state is EngineState.RUNNING
        if isinstance(outcome, JitneyError) and not is_running:
            raise outcome

    def _requests(self, rows: Sequence[Row]) -> Iterator[Request | JitneyError]:
        for row in rows:
            try:
                prompt = self._prompt(row)
                params = self._params_of(row, prompt)
                yield self._llm.make_request(prompt, params, {})
            except JitneyError as error:
                yield error

    def _prompt(self, row: Row) -> Prompt:
        prompt, messages = _plain(row.get("prompt")), _plain(row.get("messages"))
        if _is_null(prompt) == _is_null(messages):
            raise InvalidRequest(
                "A row needs a prompt or messages, and this one has "
                f"{'neither' if _is_null(prompt) else 'both'}.",
                "prompt",
            )
        if _is_null(messages):
            return read_prompt(prompt)
        return self._llm.chat_prompt(_without_nulls(messages))

    def _params_of(self, row: Row, prompt: Prompt) -> SamplingParams:
        """The parameters of this row, with a seed that depends on nothing else."""
        own = {name: _plain(row[name]) for name in ROW_PARAMETERS if name in row}
        own = {name: _whole(name, value) for name, value in own.items() if not _is_null(value)}
        seed = _seed_of(self._params.seed, prompt)
        return replace(self._params, **{"seed": seed, **own})


def _output_values(outcome: AnswerOrError) -> tuple[str, str, int, int, str]:
    """The answer's values for OUTPUT_COLUMNS."""
    if isinstance(outcome, Answer):
        (completion,) = outcome.completions
        usage = outcome.usage
        counts = usage.prompt_count, usage.completion_count
        return completion.text, completion.finish_reason.value, *counts, ""
    return "", FinishReason.FAILED.value, 0, 0, str(outcome)


def _seed_of(seed: int | None, prompt: Prompt) -> int:
    content = prompt.tokens if prompt.text is None else prompt.text
    digest = blake2b(repr((seed, content)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _storable(column: Column) -> Column:
    """The column as it came, in a form that Ray can store as it was: it pickles nested arrays."""
    if column.dtype != object:
        return column
    values = ((None if _is_null(each) else _plain(each)) for each in column)
    return np.fromiter(values, object, len(column))


def _plain(value: Any) -> Any:  # Any: a value of any column
    """The value in Python's own types."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _without_nulls(value: Any) -> Any:  # Any: messages, before they are checked
    """The value without keys that have none: Arrow gives all mappings of a column the same keys."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value


def _is_null(value: object) -> bool:
    """Whether a row has no value. In columns of numbers, NaN stands for that."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _whole(name: str, value: object) -> object:
    """Whole numbers as such: a column of them becomes one of floats where it has a null."""
    is_number = PARAMETERS[name].type in (int, int | None)
    if is_number and isinstance(value, float) and value.is_integer() and abs(value) < EXACT_MAX:
        return int(value)
    return value
