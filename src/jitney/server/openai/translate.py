"""From a checked body to requests of the engine and the form of their reply: `Reply`.

On a worker thread: it tokenises.

Rules that tie fields together, and those that need the model, are checked here; the others are
in the bodies. Raises a RequestError that names the wrong field.
"""

import hashlib
from dataclasses import replace
from typing import Any

from jitney.config import Key
from jitney.core.limits import CONSTRAINT_COMPILE_S_MAX
from jitney.core.params import SamplingParams, StructuredOutputsParams
from jitney.core.request import Priority, RequestId, Share, read_priority
from jitney.engine.request_factory import GivenUp, RequestOptions, Wanted
from jitney.errors import InvalidRequest, ModelError, RequestError
from jitney.server import limits
from jitney.server.admission.calls import Call
from jitney.server.admission.text_steps import Steps
from jitney.server.error_object import Refusal
from jitney.server.formats.answer_families import ModelFormat
from jitney.server.formats.answer_forms import AnswerForm, Calling
from jitney.server.formats.thinking import after_reasoning
from jitney.server.openai.bodies import (
    NO_LIMIT,
    PASSED_ON,
    CompletionBody,
    SamplingFields,
    StreamOptions,
)
from jitney.server.openai.chat_body import ChatBody, ObjectFormat, SchemaFormat, Tool
from jitney.server.openai.conversation import (
    answer_form,
    chat_of,
    enforced,
    read_calling,
    switches_of,
)
from jitney.server.openai.replies import (
    ChatChoices,
    CompletionChoices,
    EncodedPrompt,
    Reply,
    fingerprint,
)
from jitney.server.service import Service, now_s
from jitney.text.detokenizer import Detokenizer

COMPLETION_TOKENS_DEFAULT = 16
"""As OpenAI has it for /v1/completions."""


def check_model(service: Service, name: str | None) -> None:
    """Refuse the name of a model that is not served here."""
    if name is not None and name not in service.settings.served_model_name:
        raise Refusal(
            "model_not_found",
            f"The model {name[:80]!r} does not exist here; "
            f"{service.model_name!r} does. See /v1/models.",
            param="model",
        )


def reply_steps(service: Service, body: ChatBody | CompletionBody, call: Call) -> Steps[Reply]:
    """The work for the requests of a body, and the form of their reply."""
    if isinstance(body, ChatBody):
        return _prepare_chat(service, body, call)
    return _prepare_completion(service, body, call)


def _prepare_completion(service: Service, body: CompletionBody, call: Call) -> Steps[Reply]:
    """The requests of a body of /v1/completions."""
    echoes = bool(body.echo)
    if echoes and body.stream and body.logprobs is not None:
        raise InvalidRequest(
            "echo with logprobs is not given as a stream; leave one of the three out.", "echo"
        )
    params = _params(
        body,
        max_tokens=_room(body.max_tokens or COMPLETION_TOKENS_DEFAULT),
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if echoes else None,
        structured_outputs=_structured(body),
    )
    is_scored = params.prompt_logprobs is not None and params.max_tokens == 1
    if is_scored and params.structured_outputs is None:
        # Programs that score the prompt leave the last logprob out. An end token has none, unless
        # it is one like the others.
        params = replace(params, ignore_eos=True)
    if body.best_of not in (None, params.n):
        raise InvalidRequest(
            "best_of must be equal to n: completions are not ranked here.", "best_of"
        )
    prompts = []
    for each in _listed(body.prompt):
        prompts.append((yield from _encode(service, each, echoes, call.still_wanted)))
    choices = CompletionChoices(prompts, params, service.vocabulary)
    return _prepare(service, body, call, prompts, params, choices)


def _prepare_chat(service: Service, body: ChatBody, call: Call) -> Steps[Reply]:
    """The request of a body of /v1/chat/completions."""
    model = service.format
    if model is None:
        raise ModelError("The model has no chat template.")
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true.", "top_logprobs")
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise InvalidRequest(
            "max_tokens and max_completion_tokens are one thing; give one of them.", "max_tokens"
        )
    calling = read_calling(body, model)
    if calling is None or not calling.is_enforced:
        _check_tools(service, body.tools or [], call.still_wanted)
    renamed: dict[str | None, str] = {
        "prompt": "messages",
        "structured_outputs": _form_field(body, calling),
    }
    try:
        params = _params(
            body,
            max_tokens=_room(body.max_completion_tokens or body.max_tokens),
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            structured_outputs=_chat_structured(body, calling),
        )
        offered = body.tools if body.tool_choice != "none" else None
        segments = yield chat_of(service, body, offered, switches_of(body))
        form = answer_form(body, model, calling, segments)
        params = _with_reasoning(service, body, model, form, params)
        is_enforced = calling is not None and calling.is_enforced
        if body.reasoning_format == "none" and not is_enforced:
            form = AnswerForm(calling=calling)
        if not form.is_plain and model.shows_control(form.marks):
            params = replace(params, skip_special_tokens=False)
        tokens = yield segments
        choices = ChatChoices(form, params, service.vocabulary)
        return _prepare(service, body, call, [EncodedPrompt(tokens)], params, choices)
    except RequestError as error:
        # The same error, with the field's name in this interface.
        error.parameter = renamed.get(error.parameter, error.parameter)
        raise


def _with_reasoning(
    service: Service, body: ChatBody, model: ModelFormat, form: AnswerForm, params: SamplingParams
) -> SamplingParams:
    """A constraint holds after the reasoning, and that keeps to its budget. A model that does not
    reason keeps to every one."""
    if form.reasoning is None or switches_of(body).get("enable_thinking") is False:
        return params
    budget, vocabulary = body.thinking_token_budget, service.vocabulary
    answer = after_reasoning(params.structured_outputs, model, form, vocabulary, budget)
    return replace(params, structured_outputs=answer)


def _prepare(
    service: Service,
    body: SamplingFields,
    call: Call,
    prompts: list[EncodedPrompt],
    params: SamplingParams,
    choices: ChatChoices | CompletionChoices,
) -> Reply:
    """What completions and chat have in common."""
    fresh = service.fresh_ids.take()
    is_chat = isinstance(body, ChatBody)
    base = f"{'chatcmpl' if is_chat else 'cmpl'}-{body.request_id or fresh}"
    # The engine's ids contain a part that no caller can guess: a caller that knows the id of
    # another's request could cancel it by leaving.
    inner = base if body.request_id is None else f"{base}-{fresh[:12]}"
    _check_count(service, prompts, params, call.caller.share)
    params = _with_room_for_logprobs(service, prompts, params)
    _check_logprob_values(service, prompts, params)
    key = call.caller.key
    is_line = call.window_s is not None
    options = RequestOptions(
        # What people see of a line; the scheduler looks at `is_background`.
        priority=Priority.LOW if is_line else allowed_priority(service, body.priority, key),
        tenant=key.name if key is not None else body.user or "",
        share=call.caller.share,
        scope=cache_scope("" if key is None else key.cache_scope, _salt(service, body)),
        is_stored=body.cache_prompt is not False,
        reply_id=base,
        is_chat=is_chat,
        queue_timeout_s=call.window_s,
        request_timeout_s=call.window_s or call.left_s(service.clock.now()),
    )
    requests = []
    for index, prompt in enumerate(prompts):
        name = RequestId(inner if len(prompts) == 1 else f"{inner}-{index}")
        named = replace(options, id=name)
        request = service.request_factory.make(prompt.tokens, params, named, call.still_wanted)
        requests.append(replace(request, is_background=True) if call.is_background else request)
    stream_options = body.stream_options or StreamOptions()
    is_invariant = service.engine.backend.traits.batch_invariant
    return Reply(
        id=base,
        model=service.model_name,
        created=now_s(),
        fingerprint=fingerprint(
            service.model_name, service.vocabulary, batch_invariant=is_invariant
        ),
        requests=tuple(requests),
        choices=choices,
        streams=bool(body.stream),
        wants_usage=bool(stream_options.include_usage),
        counts_along=bool(stream_options.continuous_usage_stats),
    )


def cache_scope(key_scope: str, salt: str) -> str:
    """One scope from two. No other pair gives the same scope."""
    if not key_scope and not salt:
        return ""
    return hashlib.sha256(f"{len(key_scope)}:{key_scope}{salt}".encode()).hexdigest()


def _salt(service: Service, body: SamplingFields) -> str:
    """The caller's salt; a new one if it wants no cached prefixes."""
    return service.fresh_ids.take() if body.cache_prompt is False else body.cache_salt or ""


def _room(max_tokens: int | None) -> int | None:
    """For the engine, None is all the room there is."""
    return None if max_tokens == NO_LIMIT else max_tokens


def allowed_priority(service: Service, value: str | int | None, key: Key | None) -> Priority:
    """The class that a caller asks for, by name or by number.

    Refuses one above the highest class of the key, and a number that has two meanings.
    """
    highest = Priority.CRITICAL if key is None else key.priority_max
    if value is None:
        return min(Priority.NORMAL, highest)
    priority = read_priority(value) if isinstance(value, str) else _numbered(service, value)
    if priority > highest:
        raise InvalidRequest(
            f"priority: this key may ask for {highest.name.lower()} at most.", "priority"
        )
    return priority


def _numbered(service: Service, value: int) -> Priority:
    """The class of a number. In vLLM lower numbers are served first, and levels count up."""
    numbers, has_effect = service.settings.priority_numbers, service.engine.settings.uses_priorities
    if numbers == "levels":
        return read_priority(value)
    priority = Priority(min(max(Priority.NORMAL - value, Priority.LOW), Priority.CRITICAL))
    # Without an effect, no client of vLLM needs to be sent away.
    if numbers is None and has_effect and value in set(Priority):
        raise InvalidRequest(
            f"priority: {value} is {priority.name.lower()} in vLLM, where lower numbers are served "
            f"first, and {Priority(value).name.lower()} among levels from 0 (low) to 3 (critical); "
            "send a name (low, normal, high or critical), or start the server with "
            "--priority-numbers vllm or levels.",
            "priority",
        )
    return priority


def _params(body: SamplingFields, **own: Any) -> SamplingParams:  # Any: of each field's own type
    """The sampling parameters of a body; `own` are those that differ between endpoints."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream to be true.", "stream_options")
    values = {name: getattr(body, name) for name in PASSED_ON if getattr(body, name) is not None}
    if body.repeat_penalty is not None:
        if "repetition_penalty" in values:
            raise InvalidRequest(
                "repeat_penalty and repetition_penalty are one thing; give one of them.",
                "repeat_penalty",
            )
        values["repetition_penalty"] = body.repeat_penalty
    if body.logit_bias is not None:
        values["logit_bias"] = {int(token): bias for token, bias in body.logit_bias.items()}
    return SamplingParams(**values, **own)


def _structured(body: SamplingFields) -> StructuredOutputsParams | None:
    fields = body.structured_outputs
    return None if fields is None else StructuredOutputsParams(**fields.model_dump(by_alias=True))


def _form_field(body: ChatBody, calling: Calling | None) -> str:
    """The field that decides the form of the answer."""
    chosen = {
        "structured_outputs": body.structured_outputs is not None,
        "response_format": isinstance(body.response_format, ObjectFormat | SchemaFormat),
        "tools": calling is not None and calling.is_enforced,
    }
    names = [name for name, is_chosen in chosen.items() if is_chosen]
    if len(names) > 1:
        raise InvalidRequest(
            f"{' and '.join(names)} each decide the form of the answer; give one of them.", names[0]
        )
    is_budget = body.thinking_token_budget is not None
    return names[0] if names else "thinking_token_budget" if is_budget else "structured_outputs"


def _chat_structured(body: ChatBody, calling: Calling | None) -> StructuredOutputsParams | None:
    if calling is not None and calling.is_enforced:
        return enforced(calling, body.tools or [])
    match body.response_format:
        case SchemaFormat(json_schema=named) if named.schema_ is not None:
            return StructuredOutputsParams(json=named.schema_)
        case SchemaFormat() | ObjectFormat():
            return StructuredOutputsParams(json={"type": "object"})
        case _:
            return _structured(body)


def _check_tools(service: Service, offered: list[Tool], is_wanted: Wanted) -> None:
    """Refuse schemas that cannot be enforced, even if this request does not enforce them.

    A conversation that works with `auto` must also work with `required`. Agents offer dozens of
    tools: what is not looked at within the time is looked at when it is enforced.
    """
    started_at = service.clock.now()
    for tool in offered:
        function = tool.function
        if not function.parameters:
            continue
        try:
            params = StructuredOutputsParams(json=function.parameters)
            service.request_factory.prepare(params.constraint(), is_wanted)
        except InvalidRequest as error:
            raise InvalidRequest(f"The function {function.name}: {error}", "tools") from None
        if service.clock.now() - started_at > CONSTRAINT_COMPILE_S_MAX:
            return


def _check_count(
    service: Service, prompts: list[EncodedPrompt], params: SamplingParams, share: Share | None
) -> None:
    """Refuse several prompts that can never wait together. One prompt always can."""
    if len(prompts) == 1:
        return
    settings = service.engine.settings
    requests_max, tokens_max = settings.max_num_queued_reqs, settings.max_num_queued_tokens
    if share is not None:
        requests_max, tokens_max = share.waiting_max, share.waiting_tokens_max
    counts = (
        (len(prompts), requests_max, "completions"),
        (sum(len(each.tokens) for each in prompts), tokens_max, "tokens"),
    )
    for count, count_max, what in counts:
        if count * params.n > count_max:
            raise InvalidRequest(
                f"The {len(prompts)} prompts of this call make {count * params.n} {what}, and "
                f"{count_max} of several prompts may wait here"
                f"{'' if share is None else ' for this key'}; send them in several calls.",
                "prompt",
            )


def _with_room_for_logprobs(
    service: Service, prompts: list[EncodedPrompt], params: SamplingParams
) -> SamplingParams:
    """Without `max_tokens`, completions are as long as their logprobs may be."""
    if params.logprobs is None or params.max_tokens is not None:
        return params
    scored = 0 if params.prompt_logprobs is None else params.prompt_logprobs + 1
    left = limits.LOGPROB_VALUES_MAX - scored * sum(len(prompt.tokens) for prompt in prompts)
    positions = left // (len(prompts) * params.n * (params.logprobs + 1))
    shortest = min(len(prompt.tokens) for prompt in prompts)
    if positions >= service.model_len_max - shortest:
        return params
    return replace(params, max_tokens=max(positions, params.min_tokens, 1))


def _check_logprob_values(
    service: Service, prompts: list[EncodedPrompt], params: SamplingParams
) -> None:
    """Bound the memory that logprobs take until they are sent."""
    if params.logprobs is None and params.prompt_logprobs is None:
        return
    count = 0
    for prompt in prompts:
        room = max(service.model_len_max - len(prompt.tokens), 1)
        positions = params.n * min(params.max_tokens or room, room)
        count += positions * ((params.logprobs or 0) + 1)
        if params.prompt_logprobs is not None:
            count += len(prompt.tokens) * (params.prompt_logprobs + 1)
    if count > limits.LOGPROB_VALUES_MAX:
        raise InvalidRequest(
            f"logprobs for all tokens of all completions would be {count} numbers; the limit is "
            f"{limits.LOGPROB_VALUES_MAX}. Lower logprobs, max_tokens or n.",
            "logprobs",
        )


def _listed(prompt: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """One entry for each prompt."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [[each for each in prompt if isinstance(each, int)]]
    return [each for each in prompt if not isinstance(each, int)]


def _encode(
    service: Service, prompt: str | list[int], echoes: bool, is_wanted: Wanted
) -> Steps[EncodedPrompt]:
    if isinstance(prompt, str):
        # Names of control tokens in it become those tokens.
        tokens = yield ((prompt, True),)
        silent_count = _silent_count(service, prompt, tokens)
        return EncodedPrompt(tokens, prompt if echoes else None, silent_count)
    tokens = tuple(prompt)
    return EncodedPrompt(tokens, decode(service, tokens, is_wanted) if echoes else None)


def _silent_count(service: Service, text: str, tokens: tuple[int, ...]) -> int:
    """1 if the server added the token that begins every text."""
    vocabulary = service.vocabulary
    first = vocabulary.bos_token
    if not vocabulary.adds_bos or first is None or tokens[:1] != (first,):
        return 0
    return 0 if text.startswith(vocabulary.text(first) or "") else 1


def decode(service: Service, tokens: tuple[int, ...], is_wanted: Wanted) -> str:
    """The text of tokens, names of control tokens included. Raises GivenUp."""
    detokenizer = Detokenizer(service.vocabulary, skip_special=False)
    parts: list[str] = []
    for start in range(0, len(tokens), limits.DECODE_SLICE):
        if not is_wanted():
            raise GivenUp
        parts.append(detokenizer.push_all(tokens[start : start + limits.DECODE_SLICE]))
    return "".join([*parts, detokenizer.flush()])
