"""Every field of the published request schemas: supported, or refused by name with a reason.

The one place that says so: bodies are checked against it, and the reference page is made from it.
Pure; any thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Supported:
    """A field that does what it says; `note` is for the reference page."""

    note: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A field that is refused, with the reason; values in `allows` ask for nothing, and pass."""

    reason: str
    allows: tuple[Any, ...] = ()  # Any: JSON values


Field = Supported | Refused

SAMPLING: Mapping[str, Field] = {
    "model": Supported("A name from /v1/models; without it, the model that is served."),
    "n": Supported("1 to 16 completions of a prompt."),
    "max_tokens": Supported(
        "At least 1. More than the context has room for means all the room there is. "
        "Default: 16 for completions, the room left for chat."
    ),
    "min_tokens": Supported("No end token before so many tokens; a stop string still ends it."),
    "temperature": Supported("0 to 2; 0 is greedy. Default: 1."),
    "top_p": Supported("Above 0, up to 1."),
    "top_k": Supported("Only the k likeliest tokens; 0 and -1 are all."),
    "min_p": Supported("Only tokens at least so likely as this share of the likeliest."),
    "presence_penalty": Supported("-2 to 2."),
    "frequency_penalty": Supported("-2 to 2."),
    "repetition_penalty": Supported("0.01 to 10; 1 is none."),
    "logit_bias": Supported("Token ids as keys, -100 to 100 as values; at most 1024."),
    "seed": Supported("A whole number of 64 bits: the same seed gives the same text."),
    "stop": Supported("A string or up to 16, each of 1 to 256 characters."),
    "stop_token_ids": Supported("Up to 256 token ids that end a completion."),
    "ignore_eos": Supported("Go on after the model's own end token."),
    "include_stop_str_in_output": Supported("Keep the stop string in the text."),
    "skip_special_tokens": Supported("Leave control tokens out of the text. Default: true."),
    "structured_outputs": Supported("Exactly one of `json`, `regex`, `choice` and `grammar`."),
    "stream": Supported("Server-sent events."),
    "stream_options": Supported(
        "`include_usage` adds a last chunk with the usage. `include_obfuscation` may be false."
    ),
    "user": Supported(
        "Whose request it is: a label in the line of the server's log, and the tenant of the "
        "policy `fair` where no key is needed."
    ),
    "priority": Supported(
        "`low`, `normal`, `high` or `critical`; or a number as vLLM has them, lower first: "
        "0 is normal, -1 high, below that critical, above 0 low. Matters under the policy "
        "`priority`."
    ),
    "cache_salt": Supported("Prefixes are shared only under equal salts (and keys' scopes)."),
    "request_id": Supported("Becomes part of the reply's id."),
    "deadline_ms": Supported("Milliseconds from arrival; past them the request ends with 408."),
}

COMPLETION: Mapping[str, Field] = {
    **SAMPLING,
    "prompt": Supported(
        "A string, a list of up to 128 strings, a list of token ids, or a list of such lists. "
        "An empty string is refused unless the model begins every text with a token."
    ),
    "logprobs": Supported("0 to 20 alternatives for each token."),
    "echo": Supported(
        "The prompt comes before the completion, with its logprobs where they are asked for "
        "(those not together with stream)."
    ),
    "best_of": Supported("Only the value of n."),
    "suffix": Refused("no model here fills in the middle; leave suffix out", ("",)),
}

CHAT: Mapping[str, Field] = {
    **SAMPLING,
    "messages": Supported("Text, from system, developer, user, assistant and tool."),
    "max_completion_tokens": Supported("As max_tokens; only one of the two."),
    "logprobs": Supported("Whether to give the logprob of each token."),
    "top_logprobs": Supported("0 to 20 alternatives for each token; needs logprobs."),
    "response_format": Supported(
        "`text`, `json_object` or `json_schema`, always enforced; see JSON above."
    ),
    "tools": Supported(
        "Up to 128 functions. A schema that cannot be enforced is refused whatever `tool_choice` "
        "says; `strict` changes nothing: `tool_choice` decides what is enforced."
    ),
    "tool_choice": Supported(
        "`none`, `auto`, `required`, or one function by name; the last two are enforced."
    ),
    "parallel_tool_calls": Supported("False keeps it to one call. Default: true."),
    "chat_template_kwargs": Supported("`enable_thinking` and nothing else."),
    "audio": Refused("this server makes text only; leave audio out"),
    "chat_template": Refused("the chat template is the model's own; leave chat_template out"),
    "function_call": Refused("it was replaced by tool_choice; use that"),
    "functions": Refused("they were replaced by tools; use those", ([],)),
    "metadata": Refused("nothing is stored that it could be kept with; leave it out", ({},)),
    "modalities": Refused("this server makes text only", (["text"],)),
    "moderation": Refused("this server does not moderate; leave it out"),
    "prediction": Refused("predicted output is not supported; leave it out"),
    "prompt_cache_key": Refused("prefixes are found by their tokens; cache_salt keeps them apart"),
    "prompt_cache_options": Refused("prefixes are kept while there is room; leave it out"),
    "prompt_cache_retention": Refused(
        "prefixes are kept while there is room; leave it out", ("in_memory",)
    ),
    "reasoning_effort": Refused("no model here has levels of effort; leave it out", ("none",)),
    "safety_identifier": Refused("there is no abuse monitoring; use user to say who it is"),
    "service_tier": Refused("there are no tiers; use priority", ("auto", "default")),
    "store": Refused("nothing is stored; leave it out", (False,)),
    "verbosity": Refused("no model here has levels of verbosity; leave it out", ("medium",)),
    "web_search_options": Refused("this server does not search the web; leave it out"),
}


def refusal_among(body: Mapping[str, Any], table: Mapping[str, Field]) -> str | None:
    """The first field of the body that is refused by name; null is the same as not given."""
    for name, value in body.items():
        field = table.get(name)
        if isinstance(field, Refused) and value is not None and not _is_allowed(value, field):
            return name
    return None


def _is_allowed(value: Any, field: Refused) -> bool:
    # To Python 0 is False, and to a caller it is not.
    return any(type(value) is type(each) and value == each for each in field.allows)


def without_refused(body: Mapping[str, Any], table: Mapping[str, Field]) -> dict[str, Any]:
    """The body without the fields that ask for nothing."""
    return {name: value for name, value in body.items() if not isinstance(table.get(name), Refused)}
