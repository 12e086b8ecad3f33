"""Every field of the published request schemas: supported, accepted though it changes nothing in
the answer, or refused by name with a reason.

The one place that says so: bodies are checked against it, and the reference page is made from it.
Pure; any thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jitney.server import limits


@dataclass(frozen=True, slots=True)
class Supported:
    """A field that does what it says; `note` is for the reference page."""

    note: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """A field that is checked and then left alone: no answer would differ; `note` says why."""

    note: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A field that is refused, with the reason; values in `allows` ask for nothing, and pass."""

    reason: str
    allows: tuple[Any, ...] = ()  # Any: JSON values


Field = Supported | Accepted | Refused

SAMPLING: Mapping[str, Field] = {
    "model": Supported("A name from /v1/models; without it, the model that is served."),
    "n": Supported("1 to 16 completions of a prompt."),
    "max_tokens": Supported(
        "At least 1. More than the context has room for means all the room there is, and so does "
        "-1. Default: 16 for completions, the room left for chat."
    ),
    "min_tokens": Supported("No end token before so many tokens; a stop string still ends it."),
    "temperature": Supported("0 to 2; 0 is greedy. Default: 1."),
    "top_p": Supported("Above 0, up to 1."),
    "top_k": Supported("Only the k likeliest tokens; 0 and -1 are all."),
    "min_p": Supported("Only tokens at least so likely as this share of the likeliest."),
    "presence_penalty": Supported("-2 to 2."),
    "frequency_penalty": Supported("-2 to 2."),
    "repetition_penalty": Supported("0.01 to 10; 1 is none."),
    "repeat_penalty": Supported("llama-server's name for repetition_penalty; only one of the two."),
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
        "0 is normal, -1 high, below that critical, above 0 low. In Python numbers count up, from "
        "0 for `Priority.LOW` to 3 for `Priority.CRITICAL`. Matters under the policy `priority`."
    ),
    "cache_salt": Supported("Prefixes are shared only under equal salts (and keys' scopes)."),
    "cache_prompt": Supported(
        "False: nothing of the prompt is taken from cached prefixes, or found in them later. "
        "Default: true."
    ),
    "request_id": Supported(
        "Becomes part of the reply's id, and names the call for `/v1/requests/ID/...` while it "
        "waits: 1 to 64 letters, digits and `.`, `_`, `:`, `-`."
    ),
    "deadline_ms": Supported("Milliseconds from arrival; past them the request ends with 408."),
}

_ONE_WAY = "tokens are chosen in one order here; use temperature, top_p, top_k and min_p"
_OFF = (0, 0.0)

OTHERS: Mapping[str, Field] = {
    # llama-server's.
    "n_predict": Refused("it is max_tokens here; use that"),
    "grammar": Refused('use structured_outputs, as {"grammar": ...}, with the same text', ("",)),
    "json_schema": Refused('use structured_outputs, as {"json": ...}, with the same schema'),
    "n_probs": Refused("use logprobs", _OFF),
    "post_sampling_probs": Refused("logprobs are those of the model; leave it out", (False,)),
    "t_max_predict_ms": Refused("use deadline_ms, which counts from arrival", (0, -1)),
    "repeat_last_n": Refused("repetition_penalty counts all tokens; leave it out", (-1,)),
    "samplers": Refused(_ONE_WAY, ([],)),
    "typical_p": Refused(_ONE_WAY, (1, 1.0)),
    "top_n_sigma": Refused(_ONE_WAY, (-1, -1.0)),
    "mirostat": Refused(_ONE_WAY, _OFF),
    "dynatemp_range": Refused(_ONE_WAY, _OFF),
    "dry_multiplier": Refused(_ONE_WAY, _OFF),
    "xtc_probability": Refused(_ONE_WAY, _OFF),
    **dict.fromkeys(
        (
            *("mirostat_tau", "mirostat_eta", "dynatemp_exponent", "dry_base"),
            *("dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
            *("xtc_threshold", "min_keep"),
        ),
        Refused(_ONE_WAY),
    ),
    "id_slot": Refused("slots are given out by the scheduler; leave it out", (-1,)),
    "n_keep": Refused("a prompt is never cut; leave it out", _OFF),
    "n_cache_reuse": Refused("prefixes are found by their tokens; leave it out", _OFF),
    "lora": Refused("this server has no adapters; leave it out", ([],)),
    "return_tokens": Refused("use logprobs, which names the tokens, or /tokenize", (False,)),
    "return_progress": Refused("streams begin with the first token; leave it out", (False,)),
    "timings_per_token": Refused("use the headers x-jitney-..., or /metrics", (False,)),
    # vLLM's.
    "guided_json": Refused('use structured_outputs, as {"json": ...}'),
    "guided_regex": Refused('use structured_outputs, as {"regex": ...}'),
    "guided_choice": Refused('use structured_outputs, as {"choice": ...}'),
    "guided_grammar": Refused('use structured_outputs, as {"grammar": ...}'),
    "use_beam_search": Refused("there is no beam search; use n", (False,)),
    "length_penalty": Refused("there is no beam search; leave it out", (1, 1.0)),
    "bad_words": Refused("use logit_bias to forbid tokens", ([],)),
    "allowed_token_ids": Refused("use logit_bias, or structured_outputs"),
    "truncate_prompt_tokens": Refused("a prompt is never cut; shorten it"),
    "prompt_logprobs": Refused("use /v1/completions with echo and logprobs"),
    "return_tokens_as_token_ids": Refused("logprobs names tokens by their text", (False,)),
    "return_token_ids": Refused("use /tokenize for the tokens of a text", (False,)),
    "session_id": Refused("prefixes are found by their tokens; leave it out"),
    "vllm_xargs": Refused("this server has no extensions; leave it out", ({},)),
    "kv_transfer_params": Refused("prefixes stay on this server; leave it out"),
}
"""Names that clients of other servers send, with what to use instead; defaults pass."""

COMPLETION: Mapping[str, Field] = {
    **SAMPLING,
    **OTHERS,
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
    "messages": Refused("conversations go to /v1/chat/completions"),
    "response_format": Refused("use structured_outputs, or /v1/chat/completions"),
    "add_special_tokens": Refused("a prompt always begins as the model wants it", (True,)),
}

CHAT: Mapping[str, Field] = {
    **SAMPLING,
    **OTHERS,
    "messages": Supported(
        "Text, from system, developer, user, assistant and tool. Several parts of text in one "
        "message are joined with a line break between them."
    ),
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
    "add_generation_prompt": Supported(
        "False leaves out the beginning of the assistant's turn. Default: true, unless the last "
        "message is continued."
    ),
    "continue_final_message": Supported(
        "True: the prompt ends with the text of the last message, and the answer goes on from "
        "there, without it. Not together with add_generation_prompt. Default: false, and a last "
        "message of the assistant is followed by a new turn."
    ),
    "chat_template_kwargs": Supported("`enable_thinking` and nothing else."),
    "audio": Refused("this server makes text only; leave audio out"),
    "chat_template": Refused("the chat template is the model's own; leave chat_template out"),
    "function_call": Refused("it was replaced by tool_choice; use that"),
    "functions": Refused("they were replaced by tools; use those", ([],)),
    "metadata": Accepted(
        f"Up to {limits.METADATA_ENTRIES_MAX} strings of {limits.METADATA_VALUE_CHARACTERS_MAX} "
        f"characters under names of {limits.METADATA_KEY_CHARACTERS_MAX}; nothing is stored that "
        "they could be kept with."
    ),
    "modalities": Refused("this server makes text only", (["text"],)),
    "moderation": Refused("this server does not moderate; leave it out"),
    "prediction": Refused("predicted output is not supported; leave it out"),
    "prompt_cache_key": Accepted(
        f"Up to {limits.NAME_CHARACTERS_MAX} characters; prefixes are found by their tokens, and "
        "`cache_salt` keeps them apart."
    ),
    "prompt_cache_options": Refused("prefixes are kept while there is room; leave it out"),
    "prompt_cache_retention": Refused(
        "prefixes are kept while there is room; leave it out", ("in_memory",)
    ),
    "reasoning_effort": Supported(
        "`none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`, handed to the chat template "
        "by this name; `none` is `enable_thinking: false` as well. A template that reads neither "
        "writes the same prompt."
    ),
    "safety_identifier": Accepted(
        f"Up to {limits.NAME_CHARACTERS_MAX} characters; there is no abuse monitoring, and `user` "
        "says who it is."
    ),
    "service_tier": Refused("there are no tiers; use priority", ("auto", "default")),
    "store": Accepted(
        "Nothing is stored, whatever it says: an answer cannot be asked for again later."
    ),
    "verbosity": Refused("no model here has levels of verbosity; leave it out", ("medium",)),
    "web_search_options": Refused("this server does not search the web; leave it out"),
    "prompt": Refused("use messages, or /v1/completions"),
    "echo": Refused("the messages are not repeated; leave it out", (False,)),
    "documents": Refused("put their text into messages", ([],)),
    "add_special_tokens": Refused("the chat template writes them; leave it out", (False,)),
    "include_reasoning": Refused("what the model writes is told as it is", (True,)),
    "reasoning_format": Refused("what the model writes is told as it is", ("none",)),
}

TOKENIZE: Mapping[str, Field] = {
    "model": SAMPLING["model"],
    "prompt": Supported("A text."),
    "add_special_tokens": Supported("False: without the token that begins every text."),
    "messages": Supported("A conversation, instead of a prompt."),
    "tools": Supported("As in a chat; with messages."),
    "add_generation_prompt": Supported("As in a chat; with messages."),
    "continue_final_message": Supported("As in a chat; with messages."),
    "content": Refused("the text goes into prompt; use that"),
    "add_special": Refused("it is add_special_tokens here; use that"),
    "parse_special": Refused("names of control tokens in a prompt are those tokens", (True,)),
    "with_pieces": Refused("use /detokenize for the text of tokens", (False,)),
    "return_token_strs": Refused("use /detokenize for the text of tokens", (False,)),
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
