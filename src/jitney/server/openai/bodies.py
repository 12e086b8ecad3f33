"""Bodies of /v1/completions, /tokenize and /detokenize, and what they share with those of chat.

Strict: no value is turned into another type, every range is checked, and a field that is not
here is refused. A body defines everything about its fields: type, range, a note for the reference
page, which fields change nothing, and which are refused or ignored by name. Sampling parameters
come from the table in `jitney.core.params`. Pure; any thread. Of this room only this module,
`chat_body` and `check_body` know pydantic.

Tests: tests/unit/server/openai/test_check_body.py, tests/e2e/server/test_field_tables.py.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    create_model,
)

from jitney.core import limits as engine_limits
from jitney.core.params import PARAMETERS
from jitney.server import limits
from jitney.server.openai.refused_fields import OF_COMPLETIONS, RefusedField

NO_LIMIT = -1
"""As max_tokens: all the room there is, as llama-server has it."""

MODEL_NOTE = "A name from /v1/models; without it, the model that is served."

CONVERTED = ("max_tokens", "logit_bias", "logprobs", "prompt_logprobs", "structured_outputs")
PASSED_ON = tuple(name for name in PARAMETERS if name not in CONVERTED)
"""Sampling parameters that are the field of the same name, as it is."""


def note(text: str) -> Any:  # Any: what pydantic makes a field from
    """A field that may be left out, with its note for the reference page."""
    return Field(None, description=text)


def _counted(value: int) -> int:
    if value < 1 and value != NO_LIMIT:
        raise ValueError(f"must be at least 1, or {NO_LIMIT} for all the room there is")
    return value


def most(count: int, least: int | None = None) -> Any:  # Any: as above
    """The bounds of a list. Of several wrong items the first one is told."""
    return Field(fail_fast=True, min_length=least, max_length=count)


Tokens = Annotated[int, Field(ge=NO_LIMIT, le=engine_limits.TOKENS_MAX), AfterValidator(_counted)]
TokenId = Annotated[int, Field(ge=0, le=engine_limits.TOKENS_MAX)]
StopString = Annotated[
    str, StringConstraints(min_length=1, max_length=engine_limits.STOP_STRING_CHARACTERS_MAX)
]
StopStrings = Annotated[list[StopString], most(engine_limits.STOP_STRINGS_MAX)]
StopTokens = Annotated[list[TokenId], most(engine_limits.STOP_TOKENS_MAX)]
BiasKey = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,9})$")]
Bias = Annotated[float, Field(ge=-engine_limits.LOGIT_BIAS_MAX, le=engine_limits.LOGIT_BIAS_MAX)]
Biases = Annotated[dict[BiasKey, Bias], Field(max_length=engine_limits.LOGIT_BIAS_ENTRIES_MAX)]
Name = Annotated[str, StringConstraints(max_length=limits.NAME_CHARACTERS_MAX)]
RequestIdText = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9._:\-]+$", max_length=limits.REQUEST_ID_CHARACTERS_MAX),
]
PriorityName = Literal["low", "normal", "high", "critical"]
Alternatives = Annotated[int, Field(ge=0, le=engine_limits.LOGPROBS_MAX)]
Salt = Annotated[
    str, StringConstraints(min_length=1, max_length=engine_limits.TENANT_CHARACTERS_MAX)
]
TokenIds = Annotated[list[TokenId], most(limits.TOKENS_LISTED_MAX)]


class Strict(BaseModel):
    """What every body has in common."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    without_effect: ClassVar[frozenset[str]] = frozenset()
    """Fields that are checked and change no answer."""
    refused: ClassVar[Mapping[str, RefusedField]] = {}
    """Fields that are refused by name, or ignored."""
    ignored_parts: ClassVar[Mapping[str, RefusedField]] = {}
    """Fields inside others that are ignored."""
    tags: ClassVar[frozenset[str]] = frozenset()
    """What tells the forms of items of lists apart; no part of the place of a field."""


Body = TypeVar("Body", bound=Strict)


def parameter(name: str) -> Any:  # Any: as above
    """The field of a sampling parameter, with its range and its note."""
    row = PARAMETERS[name]
    lower: dict[str, Any] = {"gt" if row.is_above else "ge": row.lowest}
    return Field(None, description=row.about, le=row.highest, **lower)


def with_parameters(kind: type[Body]) -> type[Body]:
    """The same body with the other sampling parameters that are passed on."""
    added: dict[str, Any] = {}  # Any: types, and what pydantic makes a field from
    for name in PASSED_ON:
        if name in kind.model_fields:
            continue
        added[name] = (PARAMETERS[name].type | None, parameter(name))
    return create_model(
        kind.__name__, __base__=kind, __module__=kind.__module__, __doc__=kind.__doc__, **added
    )


class StreamOptions(Strict):
    """What a stream carries beside deltas."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Literal[False] | None = None


class StructuredOutputs(Strict):
    """vLLM's way to constrain a completion; exactly one of its fields."""

    json_: Annotated[dict[str, Any] | str | bool | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Annotated[list[str], most(engine_limits.CHOICES_MAX, least=1)] | None = None
    grammar: str | None = None


@with_parameters
class SamplingFields(Strict):
    """What completions and chat have in common."""

    model: Name | None = note(MODEL_NOTE)
    max_tokens: Tokens | None = note(
        "At least 1. More than the context has room for means all the room there is, and so does "
        "-1. Default: 16 for completions, the room left for chat."
    )
    repeat_penalty: float | None = Field(
        None,
        description="llama-server's name for repetition_penalty; only one of the two.",
        ge=engine_limits.REPETITION_PENALTY_MIN,
        le=engine_limits.REPETITION_PENALTY_MAX,
    )
    logit_bias: Biases | None = note(PARAMETERS["logit_bias"].about)
    stop: StopString | StopStrings | None = note(PARAMETERS["stop"].about)
    stop_token_ids: StopTokens | None = note(PARAMETERS["stop_token_ids"].about)
    structured_outputs: StructuredOutputs | None = note(PARAMETERS["structured_outputs"].about)
    stream: bool | None = note("Server-sent events.")
    stream_options: StreamOptions | None = note(
        "`include_usage` adds a last chunk with the usage. With `continuous_usage_stats`, which is "
        "vLLM's, every chunk has the usage of the call so far: all its prompts, and the tokens "
        "whose text was sent. `include_obfuscation` may be false."
    )
    user: Name | None = note(
        "Whose request it is: a label in the line of the server's log, and the tenant of the "
        "policy `fair` where no key is needed."
    )
    priority: PriorityName | Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = note(
        "`low`, `normal`, `high` or `critical`; or a number. In vLLM 0 is normal, -1 high, below "
        "that critical, above 0 low; as levels, and in Python, 0 is low, 1 normal, 2 high, 3 "
        "critical. Under the policy `priority`, or one of your own, 0 to 3 are refused unless "
        "`priority_numbers` says which they are. Other policies do not look at it."
    )
    cache_salt: Salt | None = note("Prefixes are shared only under equal salts (and keys' scopes).")
    cache_prompt: bool | None = note(
        "False: nothing of the prompt is taken from cached prefixes, or found in them later. "
        "Default: true."
    )
    request_id: RequestIdText | None = note(
        "Becomes part of the reply's id, and names the call for `/v1/requests/ID/...` while it "
        "waits: 1 to 64 letters, digits and `.`, `_`, `:`, `-`."
    )
    deadline_ms: Annotated[float, Field(gt=0, le=limits.DEADLINE_MS_MAX)] | None = note(
        "Milliseconds from arrival; past them the request ends with 408."
    )


def _bounded(value: Any) -> Any:  # Any: not yet checked
    """Check the length first: pydantic would try each form of a prompt."""
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


SomeTokenIds = Annotated[TokenIds, Field(min_length=1)]
PromptForms = Annotated[
    str
    | Annotated[list[str], most(limits.PROMPTS_MAX, least=1)]
    | SomeTokenIds
    | Annotated[list[SomeTokenIds], most(limits.PROMPTS_MAX, least=1)],
    BeforeValidator(_bounded),
]


class CompletionBody(SamplingFields):
    """POST /v1/completions."""

    refused = OF_COMPLETIONS

    prompt: PromptForms = Field(
        description="A string, a list of up to 128 strings, a list of token ids, or a list of "
        "such lists. An empty string is refused unless the model begins every text with a token."
    )
    logprobs: Alternatives | None = note("0 to 20 alternatives for each token.")
    echo: bool | None = note(
        "The prompt comes before the completion, with its logprobs where they are asked for "
        "(those not together with stream). Then `max_tokens` of 1 makes exactly one token more "
        "than the prompt has, also where the model would end, as `lm_eval` expects it."
    )
    best_of: Annotated[int, Field(ge=1, le=engine_limits.COMPLETIONS_MAX)] | None = note(
        "Only the value of n."
    )


class DetokenizeBody(Strict):
    """POST /detokenize."""

    model: Name | None = None
    tokens: TokenIds
