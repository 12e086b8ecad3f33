"""Bodies of /v1/completions, /tokenize and /detokenize, and what they share with those of chat.

Strict: no value is turned into another type, every range is checked, and a field that is not
here is refused. What each field means, and which ones are refused by name, is told in
`jitney.server.openai.fields`. Pure; any thread. The only modules that know pydantic are this one,
`wire_chat` and `body`.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)

from jitney.core import limits as engine_limits
from jitney.server import limits

NO_LIMIT = -1
"""As max_tokens: all the room there is, as llama-server has it."""


def _counted(value: int) -> int:
    if value < 1 and value != NO_LIMIT:
        raise ValueError(f"must be at least 1, or {NO_LIMIT} for all the room there is")
    return value


Tokens = Annotated[int, Field(ge=NO_LIMIT, le=engine_limits.TOKENS_MAX), AfterValidator(_counted)]
TokenId = Annotated[int, Field(ge=0, le=engine_limits.TOKENS_MAX)]
Penalty = Annotated[float, Field(ge=-engine_limits.PENALTY_MAX, le=engine_limits.PENALTY_MAX)]
RepetitionPenalty = Annotated[
    float,
    Field(ge=engine_limits.REPETITION_PENALTY_MIN, le=engine_limits.REPETITION_PENALTY_MAX),
]
StopString = Annotated[
    str, StringConstraints(min_length=1, max_length=engine_limits.STOP_STRING_CHARACTERS_MAX)
]
BiasKey = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,10}$")]
Bias = Annotated[float, Field(ge=-engine_limits.LOGIT_BIAS_MAX, le=engine_limits.LOGIT_BIAS_MAX)]
Name = Annotated[str, StringConstraints(max_length=limits.NAME_CHARACTERS_MAX)]
RequestIdText = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9._:\-]+$", max_length=limits.REQUEST_ID_CHARACTERS_MAX),
]
PriorityName = Literal["low", "normal", "high", "critical"]
Alternatives = Annotated[int, Field(ge=0, le=engine_limits.LOGPROBS_MAX)]


class Strict(BaseModel):
    """The manners of every body."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class StreamOptions(Strict):
    """What a stream carries beside deltas."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class StructuredOutputs(Strict):
    """vLLM's way to constrain a completion; exactly one of its fields."""

    json_: Annotated[dict[str, Any] | str | bool | None, Field(alias="json")] = None
    regex: str | None = None
    choice: (
        Annotated[
            list[str], Field(fail_fast=True, min_length=1, max_length=engine_limits.CHOICES_MAX)
        ]
        | None
    ) = None
    grammar: str | None = None


class SamplingFields(Strict):
    """What completions and chat have in common."""

    model: Name | None = None
    n: Annotated[int, Field(ge=1, le=engine_limits.COMPLETIONS_MAX)] | None = None
    max_tokens: Tokens | None = None
    min_tokens: Annotated[int, Field(ge=0, le=engine_limits.TOKENS_MAX)] | None = None
    temperature: Annotated[float, Field(ge=0, le=engine_limits.TEMPERATURE_MAX)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=engine_limits.TOP_K_MAX)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    repeat_penalty: RepetitionPenalty | None = None
    logit_bias: (
        Annotated[dict[BiasKey, Bias], Field(max_length=engine_limits.LOGIT_BIAS_ENTRIES_MAX)]
        | None
    ) = None
    seed: (
        Annotated[int, Field(ge=-engine_limits.SEED_MAX - 1, le=engine_limits.SEED_MAX)] | None
    ) = None
    stop: (
        StopString
        | Annotated[
            list[StopString], Field(fail_fast=True, max_length=engine_limits.STOP_STRINGS_MAX)
        ]
        | None
    ) = None
    stop_token_ids: (
        Annotated[list[TokenId], Field(fail_fast=True, max_length=engine_limits.STOP_TOKENS_MAX)]
        | None
    ) = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Name | None = None
    priority: PriorityName | Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    cache_salt: (
        Annotated[
            str, StringConstraints(min_length=1, max_length=engine_limits.TENANT_CHARACTERS_MAX)
        ]
        | None
    ) = None
    cache_prompt: bool | None = None
    request_id: RequestIdText | None = None
    deadline_ms: Annotated[float, Field(gt=0, le=limits.DEADLINE_MS_MAX)] | None = None


def _bounded(value: Any) -> Any:  # Any: not yet checked
    """Before any item is looked at: each form of a prompt would be tried in turn."""
    if not isinstance(value, list) or not value:
        return value
    if isinstance(value[0], int):
        if len(value) > limits.TOKENS_LISTED_MAX:
            raise ValueError(
                f"there are {len(value)} tokens; the limit is {limits.TOKENS_LISTED_MAX}"
            )
    elif len(value) > limits.PROMPTS_MAX:
        raise ValueError(
            f"there are {len(value)} prompts; the limit is {limits.PROMPTS_MAX} in one call"
        )
    return value


TokenIds = Annotated[list[TokenId], Field(fail_fast=True, max_length=limits.TOKENS_LISTED_MAX)]
Prompt = Annotated[
    str
    | Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=limits.PROMPTS_MAX)]
    | Annotated[TokenIds, Field(min_length=1)]
    | Annotated[
        list[Annotated[TokenIds, Field(min_length=1)]],
        Field(fail_fast=True, min_length=1, max_length=limits.PROMPTS_MAX),
    ],
    BeforeValidator(_bounded),
]


class CompletionBody(SamplingFields):
    """POST /v1/completions."""

    prompt: Prompt
    logprobs: Alternatives | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=engine_limits.COMPLETIONS_MAX)] | None = None


class DetokenizeBody(Strict):
    """POST /detokenize."""

    model: Name | None = None
    tokens: TokenIds
