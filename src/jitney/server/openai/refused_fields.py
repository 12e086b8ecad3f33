"""Fields that bodies refuse or ignore by name, each with the reason and what to use instead.

A field is ignored if clients send it and no answer could differ by it: then a header of the
response names it, and a strict server refuses it like the others. Bodies name those that concern
them, and the reference page is made from the bodies. Pure; any thread.

Tests: tests/unit/scripts/test_api_page.py, tests/e2e/server/test_field_tables.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RefusedField:
    """Why a field is refused. Null and the values in `allows` change nothing, and pass. One that
    is harmless is refused by a strict server alone."""

    reason: str
    allows: tuple[Any, ...] = ()  # Any: JSON values
    is_harmless: bool = False

    def passes(self, value: Any) -> bool:
        """Whether the value changes nothing."""
        # In Python 0 equals False; for a caller it does not.
        return value is None or any(
            type(value) is type(each) and value == each for each in self.allows
        )


_ONE_WAY = "tokens are chosen in one order here; use temperature, top_p, top_k and min_p"
_OFF = (0, 0.0)


def harmless(reason: str, *allows: Any) -> RefusedField:
    """A field that could not change an answer."""
    return RefusedField(f"{reason}; leave it out", allows, is_harmless=True)


_PREFIXES = harmless("prefixes are found by their tokens")
_STAYS = harmless("the model stays loaded")
_UNSTORED = harmless("nothing is stored here")
_TIMES = harmless("times are in the headers x-jitney-... and in /metrics", False)

IGNORED: Mapping[str, RefusedField] = {
    "cache_control": _PREFIXES,
    "session_id": _PREFIXES,
    "promptCacheKey": _PREFIXES,
    "prompt_cache_options": harmless("prefixes are kept while there is room"),
    "prompt_cache_retention": harmless("prefixes are kept while there is room", "in_memory"),
    "n_cache_reuse": harmless("prefixes are found by their tokens", *_OFF),
    "n_keep": harmless("a prompt is never cut", *_OFF),
    "id_slot": harmless("slots are given out by the scheduler", -1),
    "keep_alive": _STAYS,
    "ttl": _STAYS,
    "service_tier": harmless("there are no tiers, only priority", "auto", "default"),
    "client_metadata": _UNSTORED,
    "timings_per_token": _TIMES,
    "return_progress": _TIMES,
}
"""Of both endpoints: where a prompt is kept, what is noted beside it, how long it took."""

_OF_OPENAI_CHAT: Mapping[str, RefusedField] = {
    "metadata": _UNSTORED,
    "store": _UNSTORED,
    "prompt_cache_key": _PREFIXES,
    "safety_identifier": harmless("there is no abuse monitoring, and user says who it is"),
}
"""Fields of chats that some clients send with completions too."""

_PARSED = harmless("it is what a client read from the text, or from arguments, which count")

IGNORED_PARTS: Mapping[str, RefusedField] = {
    "messages.cache_control": _PREFIXES,
    "messages.content.cache_control": _PREFIXES,
    "messages.copilot_cache_control": _PREFIXES,
    "messages.parsed": _PARSED,
    "messages.provider_specific_fields": harmless("they are notes of another server"),
    "messages.tool_calls.function.parsed_arguments": _PARSED,
    "messages.tool_calls.index": harmless("calls are read in the order of the list"),
    "tools.cache_control": _PREFIXES,
    "tools.copilot_mcp_server_name": harmless("where a tool comes from is not told to the model"),
}
"""The same inside messages and tools: the place of each, without the numbers of items."""

OF_BOTH: Mapping[str, RefusedField] = {
    **IGNORED,
    # llama-server's.
    "n_predict": RefusedField("it is max_tokens here; use that"),
    "grammar": RefusedField(
        'use structured_outputs, as {"grammar": ...}, with the same text', ("",)
    ),
    "json_schema": RefusedField('use structured_outputs, as {"json": ...}, with the same schema'),
    "n_probs": RefusedField("use logprobs", _OFF),
    "post_sampling_probs": RefusedField("logprobs are those of the model; leave it out", (False,)),
    "t_max_predict_ms": RefusedField("use deadline_ms, which counts from arrival", (0, -1)),
    "repeat_last_n": RefusedField("repetition_penalty counts all tokens; leave it out", (-1,)),
    "samplers": RefusedField(_ONE_WAY, ([],)),
    "typical_p": RefusedField(_ONE_WAY, (1, 1.0)),
    "top_n_sigma": RefusedField(_ONE_WAY, (-1, -1.0)),
    "mirostat": RefusedField(_ONE_WAY, _OFF),
    "dynatemp_range": RefusedField(_ONE_WAY, _OFF),
    "dry_multiplier": RefusedField(_ONE_WAY, _OFF),
    "xtc_probability": RefusedField(_ONE_WAY, _OFF),
    **dict.fromkeys(
        (
            *("mirostat_tau", "mirostat_eta", "dynatemp_exponent", "dry_base"),
            *("dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
            *("xtc_threshold", "min_keep"),
        ),
        RefusedField(_ONE_WAY),
    ),
    "lora": RefusedField("this server has no adapters; leave it out", ([],)),
    "return_tokens": RefusedField("use logprobs, which names the tokens, or /tokenize", (False,)),
    # vLLM's.
    "guided_json": RefusedField('use structured_outputs, as {"json": ...}'),
    "guided_regex": RefusedField('use structured_outputs, as {"regex": ...}'),
    "guided_choice": RefusedField('use structured_outputs, as {"choice": ...}'),
    "guided_grammar": RefusedField('use structured_outputs, as {"grammar": ...}'),
    "use_beam_search": RefusedField("there is no beam search; use n", (False,)),
    "length_penalty": RefusedField("there is no beam search; leave it out", (1, 1.0)),
    "bad_words": RefusedField("use logit_bias to forbid tokens", ([],)),
    "allowed_token_ids": RefusedField("use logit_bias, or structured_outputs"),
    "truncate_prompt_tokens": RefusedField("a prompt is never cut; shorten it"),
    "prompt_logprobs": RefusedField("use /v1/completions with echo and logprobs"),
    "return_tokens_as_token_ids": RefusedField("logprobs names tokens by their text", (False,)),
    "return_token_ids": RefusedField("use /tokenize for the tokens of a text", (False,)),
    "vllm_xargs": RefusedField("this server has no extensions; leave it out", ({},)),
    "kv_transfer_params": RefusedField("prefixes stay on this server; leave it out"),
}
"""Names that clients of other servers send, with what to use instead; defaults pass."""

OF_COMPLETIONS: Mapping[str, RefusedField] = {
    **OF_BOTH,
    **_OF_OPENAI_CHAT,
    "suffix": RefusedField("no model here fills in the middle; leave suffix out", ("",)),
    "messages": RefusedField("conversations go to /v1/chat/completions"),
    "response_format": RefusedField("use structured_outputs, or /v1/chat/completions"),
    "add_special_tokens": RefusedField("a prompt always begins as the model wants it", (True,)),
}

OF_CHAT: Mapping[str, RefusedField] = {
    **OF_BOTH,
    "audio": RefusedField("this server makes text only; leave audio out"),
    "chat_template": RefusedField("the chat template is the model's own; leave chat_template out"),
    "function_call": RefusedField("it was replaced by tool_choice; use that"),
    "functions": RefusedField("they were replaced by tools; use those", ([],)),
    "modalities": RefusedField("this server makes text only", (["text"],)),
    "moderation": RefusedField("this server does not moderate; leave it out"),
    "prediction": harmless("a predicted answer would make the same answer, only sooner"),
    "verbosity": RefusedField("no model here has levels of verbosity; leave it out", ("medium",)),
    "web_search_options": RefusedField("this server does not search the web; leave it out"),
    "prompt": RefusedField("use messages, or /v1/completions"),
    "echo": RefusedField("the messages are not repeated; leave it out", (False,)),
    "documents": RefusedField("put their text into messages", ([],)),
    "add_special_tokens": RefusedField("the chat template writes them; leave it out", (False,)),
}

OF_TOKENIZE: Mapping[str, RefusedField] = {
    "content": RefusedField("the text goes into prompt; use that"),
    "add_special": RefusedField("it is add_special_tokens here; use that"),
    "parse_special": RefusedField("names of control tokens in a prompt are those tokens", (True,)),
    "with_pieces": RefusedField("use /detokenize for the text of tokens", (False,)),
    "return_token_strs": RefusedField("use /detokenize for the text of tokens", (False,)),
}
