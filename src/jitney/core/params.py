"""`SamplingParams`: what a caller may ask of the sampler, with the names of vLLM's offline API.

`PARAMETERS` is the table of them: type, help and range by name. HTTP bodies, the reference page and
the command line use it. So a new parameter needs a row, a field, and a step in the sampler.

Frozen and checked at construction, so the core does not check again. `jitney.sampling.sampler`
defines what each parameter does.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from jitney.core import limits
from jitney.core.stops import StopTable
from jitney.errors import InvalidRequest


class ConstraintKind(StrEnum):
    """The languages in which a constraint can be written."""

    JSON = "json"
    REGEX = "regex"
    CHOICE = "choice"
    LARK = "lark"
    GBNF = "gbnf"
    LED = "led"
    """One of the others after something else: JSON of a lead, a kind and a text."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A language that the completion must follow. `text` is its source; choices are JSON."""

    kind: ConstraintKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """Exactly one of: a JSON schema, a regex, a list of choices, or a grammar (Lark or GBNF).

    Objects of a schema take only the keys in their `properties`, unless `additionalProperties` says
    otherwise. Between the parts of JSON there is a space, or one new line and an indentation of at
    most 20.
    """

    json: str | dict[str, Any] | bool | None = None  # Any: a JSON schema is any JSON value
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    lead: str | None = None
    """A grammar of Lark for what stands before it, in which `@answer` is the constraint itself. The
    server writes it, for models that reason before they answer."""

    def __post_init__(self) -> None:
        names = ("json", "regex", "choice", "grammar")
        names_set = [name for name in names if getattr(self, name) is not None]
        if len(names_set) != 1:
            raise _unusable(
                "structured_outputs takes exactly one of json, regex, choice and grammar, "
                f"and got {' and '.join(names_set) or 'none'}."
            )
        self.constraint()

    def constraint(self) -> Constraint:
        """The same in the form that the core uses."""
        answer = self._answer()
        if self.lead is None:
            return answer
        return Constraint(
            ConstraintKind.LED, json.dumps([self.lead, answer.kind.value, answer.text])
        )

    def _answer(self) -> Constraint:
        if self.json is not None:
            return _sized(ConstraintKind.JSON, _as_json(self.json))
        if self.regex is not None:
            return _sized(ConstraintKind.REGEX, self.regex)
        if self.choice is not None:
            return _choices(self.choice)
        assert self.grammar is not None, "checked at construction"
        kind = ConstraintKind.GBNF if "::=" in self.grammar else ConstraintKind.LARK
        return _sized(kind, self.grammar)


def _as_json(schema: object) -> str:
    if isinstance(schema, str):
        return schema
    try:
        return json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise _unusable(f"The JSON schema cannot be written as JSON ({error}).") from None


def _choices(choices: Iterable[str]) -> Constraint:
    listed = list(choices)
    if not listed or len(listed) > limits.CHOICES_MAX:
        raise _unusable(f"choice takes 1 to {limits.CHOICES_MAX} strings, and got {len(listed)}.")
    if not all(isinstance(choice, str) and choice for choice in listed):
        raise _unusable("choice takes non-empty strings.")
    return _sized(ConstraintKind.CHOICE, json.dumps(listed))


def _sized(kind: ConstraintKind, text: str) -> Constraint:
    is_grammar = kind in (ConstraintKind.LARK, ConstraintKind.GBNF)
    name = "grammar" if is_grammar else kind.value
    if not isinstance(text, str) or not text:
        raise _unusable(f"{name} takes a non-empty string.")
    is_regex = kind is ConstraintKind.REGEX
    length_max = limits.REGEX_CHARACTERS_MAX if is_regex else limits.CONSTRAINT_CHARACTERS_MAX
    if len(text) > length_max:
        raise _unusable(
            f"The {name} constraint has {len(text)} characters; the limit is {length_max}."
        )
    return Constraint(kind, text)


def _unusable(message: str) -> InvalidRequest:
    return InvalidRequest(message, "structured_outputs")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A row of the table. Numbers have a range. With `is_above`, `lowest` is not part of it."""

    type: Any  # Any: a type, or a union of them
    about: str
    lowest: float | None = None
    highest: float | None = None
    is_above: bool = False

    def check(self, name: str, value: object) -> None:
        """Raise InvalidRequest for a number out of range, or for a value that is not a number."""
        if self.lowest is None or self.highest is None:
            return
        if self.type is float:
            _number(name, value, self.lowest, self.highest)
        elif self.type is int or value is not None:
            _integer(name, value, int(self.lowest), int(self.highest))
        if self.is_above and value == self.lowest:
            raise InvalidRequest(
                f"{name} must be above {self.lowest:g} and at most {self.highest:g}, "
                f"and got {value}.",
                name,
            )


_PENALTY = Parameter(float, "-2 to 2.", -limits.PENALTY_MAX, limits.PENALTY_MAX)
_LOGPROBS = Parameter(
    int | None,
    f"0 to {limits.LOGPROBS_MAX} alternatives for each token.",
    0,
    limits.LOGPROBS_MAX,
)

PARAMETERS: Mapping[str, Parameter] = {
    "n": Parameter(
        int, f"1 to {limits.COMPLETIONS_MAX} completions of a prompt.", 1, limits.COMPLETIONS_MAX
    ),
    "max_tokens": Parameter(
        int | None, "Tokens of a completion; None is all the room there is.", 1, limits.TOKENS_MAX
    ),
    "min_tokens": Parameter(
        int,
        "No end token before so many tokens; a stop string still ends it.",
        0,
        limits.TOKENS_MAX,
    ),
    "temperature": Parameter(float, "0 to 2; 0 is greedy. Default: 1.", 0, limits.TEMPERATURE_MAX),
    "top_p": Parameter(float, "Above 0, up to 1.", 0, 1, is_above=True),
    "top_k": Parameter(int, "Only the k likeliest tokens; 0 and -1 are all.", -1, limits.TOP_K_MAX),
    "min_p": Parameter(float, "Only tokens at least this share as likely as the likeliest.", 0, 1),
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "repetition_penalty": Parameter(
        float,
        "0.01 to 10; 1 is none.",
        limits.REPETITION_PENALTY_MIN,
        limits.REPETITION_PENALTY_MAX,
    ),
    "logit_bias": Parameter(Mapping, "Token ids as keys, -100 to 100 as values; at most 1024."),
    "seed": Parameter(
        int | None,
        "A whole number of 64 bits: the same seed gives the same text.",
        -limits.SEED_MAX - 1,
        limits.SEED_MAX,
    ),
    "stop": Parameter(str | list | tuple, "A string or up to 16, each of 1 to 256 characters."),
    "stop_token_ids": Parameter(list | tuple, "Up to 256 token ids that end a completion."),
    "ignore_eos": Parameter(bool, "Go on after the model's own end token."),
    "include_stop_str_in_output": Parameter(bool, "Keep the stop string in the text."),
    "skip_special_tokens": Parameter(bool, "Leave control tokens out of the text. Default: true."),
    "logprobs": _LOGPROBS,
    "prompt_logprobs": _LOGPROBS,
    "structured_outputs": Parameter(
        StructuredOutputsParams, "Exactly one of `json`, `regex`, `choice` and `grammar`."
    ),
}
"""Every sampling parameter by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of a completion are chosen, and when it ends."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int | None = 16
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputsParams | None = None
    stop_strings: tuple[str, ...] = field(init=False, default=())
    stop_table: StopTable | None = field(init=False, default=None, repr=False, compare=False)
    constraint: Constraint | None = field(init=False, default=None, repr=False, compare=False)
    """Stop strings and constraint in the form that the core uses. They are made here, once, because
    the engine thread has no time for it."""

    def __post_init__(self) -> None:
        for name, row in PARAMETERS.items():
            row.check(name, getattr(self, name))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens ({self.min_tokens}) is above max_tokens ({self.max_tokens}).",
                "min_tokens",
            )
        self._check_lists()
        stop = (self.stop,) if isinstance(self.stop, str) else _listed("stop", self.stop)
        object.__setattr__(self, "stop_strings", stop)
        self._check_stop()
        self._check_structured()
        object.__setattr__(self, "stop_table", StopTable(stop) if stop else None)
        if self.structured_outputs is not None:
            object.__setattr__(self, "constraint", self.structured_outputs.constraint())

    def _check_structured(self) -> None:
        if not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            raise _unusable("structured_outputs takes a StructuredOutputsParams.")
        if self.structured_outputs is not None and (self.min_tokens or self.ignore_eos):
            raise InvalidRequest(
                "decides where the completion ends, so it does not go together with min_tokens "
                "or ignore_eos.",
                "structured_outputs",
                is_predicate=True,
            )

    def _check_lists(self) -> None:
        # Copied, so that nobody can change what was checked.
        if isinstance(self.logit_bias, Mapping):
            object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        bias = {} if self.logit_bias is None else self.logit_bias
        if not isinstance(bias, Mapping) or len(bias) > limits.LOGIT_BIAS_ENTRIES_MAX:
            raise InvalidRequest(
                f"logit_bias takes a mapping of at most {limits.LOGIT_BIAS_ENTRIES_MAX} tokens.",
                "logit_bias",
            )
        for token, value in bias.items():
            _integer("logit_bias key", token, 0, limits.TOKENS_MAX)
            _number("logit_bias", value, -limits.LOGIT_BIAS_MAX, limits.LOGIT_BIAS_MAX)
        stop_tokens = _listed("stop_token_ids", self.stop_token_ids)
        object.__setattr__(self, "stop_token_ids", stop_tokens or None)
        if len(stop_tokens) > limits.STOP_TOKENS_MAX:
            raise InvalidRequest(
                f"stop_token_ids takes at most {limits.STOP_TOKENS_MAX} tokens.", "stop_token_ids"
            )
        for token in stop_tokens:
            _integer("stop_token_ids", token, 0, limits.TOKENS_MAX)

    def _check_stop(self) -> None:
        if len(self.stop_strings) > limits.STOP_STRINGS_MAX:
            raise InvalidRequest(
                f"stop takes at most {limits.STOP_STRINGS_MAX} strings, "
                f"and got {len(self.stop_strings)}.",
                "stop",
            )
        for text in self.stop_strings:
            if not isinstance(text, str) or not 0 < len(text) <= limits.STOP_STRING_CHARACTERS_MAX:
                raise InvalidRequest(
                    f"Each stop string has 1 to {limits.STOP_STRING_CHARACTERS_MAX} characters.",
                    "stop",
                )


def _listed(name: str, value: object) -> tuple[Any, ...]:  # Any: items are checked next
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise InvalidRequest(f"{name} takes a list, and got {value!r:.80}.", name)
    return tuple(value)


def _integer(name: str, value: object, lowest: int, highest: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise InvalidRequest(
            f"{name} must be a whole number from {lowest} to {highest}, and got {value!r}.", name
        )


def _number(name: str, value: object, lowest: float, highest: float) -> None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or not lowest <= float(value) <= highest:  # type: ignore[arg-type]
        raise InvalidRequest(
            f"{name} must be a number from {lowest:g} to {highest:g}, and got {value!r}.", name
        )
