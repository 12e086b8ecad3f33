"""Replies in OpenAI's form: whole ones, and the chunks of streams. Pure; one thread at a time.

A whole reply is the sum of the chunks of a stream: both come from the same choices.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jitney.core.backend import Vocabulary
from jitney.core.batch import TokenLogprob
from jitney.core.events import FinishReason
from jitney.core.params import SamplingParams
from jitney.core.request import Request
from jitney.engine.answer import Answer, Completion, Delta, Usage
from jitney.server.formats.answer_forms import AnswerForm
from jitney.server.formats.answer_parser import AnswerParser
from jitney.server.formats.text_reader import CONTENT, REASONING
from jitney.server.openai.logprobs_reply import LegacyLogprobs, chat_logprobs
from jitney.version import version

Json = dict[str, Any]  # Any: a JSON value

VERSION = version()

SLICE_ITEMS = 32
_DONE = b"data: [DONE]\n\n"

_MARK = "\N{OBJECT REPLACEMENT CHARACTER}\0text"
"""Stands for the text in an event. No name of a model or a call has a control character."""

_LINE_ENDS = {"\u0085": r"\u0085", "\u2028": r"\u2028", "\u2029": r"\u2029"}
"""What JSON may hold as it is, and what many programs take for the end of a line."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def dump_json(value: Any) -> str:
    """The value as JSON, on one line for every reader, and in one step: no other thread runs
    meanwhile."""
    text = _encode(value)
    if not text.isascii():
        for character, escaped in _LINE_ENDS.items():
            text = text.replace(character, escaped)
    return text


def dump_slices(value: Any) -> str:
    """The same, with long lists a few dozen items at a time. For any thread but the event loop's.

    In one step, a million logprobs would take a second.
    """
    return "".join(_pieces(value))


def event(value: Json) -> bytes:
    """One server-sent event with a JSON object in it."""
    return b"data: " + dump_json(value).encode() + b"\n\n"


def _pieces(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for number, (key, part) in enumerate(value.items()):
            yield ("," if number else "{") + dump_json(key) + ":"
            yield from _pieces(part)
        yield "}"
    elif isinstance(value, list) and len(value) > SLICE_ITEMS:
        # The items of long lists are small.
        for start in range(0, len(value), SLICE_ITEMS):
            yield ("," if start else "[") + dump_json(value[start : start + SLICE_ITEMS])[1:-1]
        yield "]"
    elif isinstance(value, list) and value:
        for number, part in enumerate(value):
            yield "," if number else "["
            yield from _pieces(part)
        yield "]"
    else:
        yield dump_json(value)


def fingerprint(model: str, vocabulary: Vocabulary, *, batch_invariant: bool) -> str:
    """Identifies the software and the model, so that a caller sees when either changed.

    It also differs if other requests can change the text of a request.
    """
    facts = f"{model}:{len(vocabulary.pieces)}{'' if batch_invariant else ':varies'}"
    digest = hashlib.sha256(facts.encode()).hexdigest()[:8]
    return f"jitney-{VERSION}-{digest}"


def usage_of(usages: list[Usage], reasoning_count: int | None = None) -> Json:
    """What was counted, over all prompts of a call; with the tokens of reasoning, if it is known
    how many there were."""
    prompt_count = sum(each.prompt_count for each in usages)
    completion_count = sum(each.completion_count for each in usages)
    cached_count = sum(each.cached_count for each in usages)
    usage: Json = {
        **_counted(prompt_count, completion_count),
        "prompt_tokens_details": {"cached_tokens": cached_count},
    }
    if reasoning_count is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": reasoning_count}
    return usage


def _counted(prompt_count: int, completion_count: int) -> Json:
    return {
        "prompt_tokens": prompt_count,
        "completion_tokens": completion_count,
        "total_tokens": prompt_count + completion_count,
    }


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """The tokens of one prompt, and its text if the reply repeats it.

    The first `silent_count` tokens are not in that text: the server added them.
    """

    tokens: tuple[int, ...]
    echo: str | None = None
    silent_count: int = 0


PlainText = tuple[int, str]
"""The index of a choice, and the field that a delta only adds text to."""


class CompletionChoices:
    """Of /v1/completions; one for each call, because streams have a state.

    The echo comes with the first part of a choice.
    """

    whole_object = chunk_object = "text_completion"

    def __init__(
        self, prompts: Sequence[EncodedPrompt], params: SamplingParams, vocabulary: Vocabulary
    ) -> None:
        self._prompts = prompts
        self._params = params
        self._vocabulary = vocabulary
        self._logprobs: dict[int, LegacyLogprobs] = {}
        self._begun: set[int] = set()

    def whole(self, place: int, answer: Answer, completion: Completion) -> Json:
        """A finished completion; with an echo, logprobs begin with those of the prompt."""
        tokens = completion.tokens
        logprobs: tuple[TokenLogprob | None, ...] = completion.logprobs or ()
        if answer.prompt_logprobs is not None:
            tokens = (*answer.request.prompt, *tokens)
            logprobs = (None, *answer.prompt_logprobs, *logprobs)
        return self._choice(place, completion, tokens, logprobs)

    def parts(self, place: int, delta: Delta) -> list[Json]:
        """What a delta adds: one chunk."""
        return [self._choice(place, delta, delta.tokens, delta.logprobs)]

    @property
    def reasoning_count(self) -> int | None:
        """None: a plain completion has no reasoning."""
        return None

    def plain(self, place: int, delta: Delta) -> PlainText | None:
        """What the delta adds, if that is only text."""
        index = place * self._params.n + delta.index
        is_plain = self._params.logprobs is None and delta.finish_reason is None
        return (index, "text") if is_plain and index in self._begun else None

    def count_plain(self, delta: Delta) -> None:
        """Nothing is counted."""

    def _choice(
        self,
        place: int,
        part: Completion | Delta,
        tokens: tuple[int, ...],
        logprobs: Sequence[TokenLogprob | None],
    ) -> Json:
        params = self._params
        index = place * params.n + part.index
        text = part.text
        if index not in self._begun:
            self._begun.add(index)
            text = (self._prompts[place].echo or "") + text
        shaped = None
        if params.logprobs is not None:
            shaped = self._legacy(index, place).shaped(tokens, logprobs)
        return {
            "index": index,
            "text": text,
            "logprobs": shaped,
            "finish_reason": finish_name(part.finish_reason),
            "stop_reason": part.stop_reason,
        }

    def _legacy(self, index: int, place: int) -> LegacyLogprobs:
        if index not in self._logprobs:
            # With an echo, the names of control tokens are part of the text.
            is_plain = self._prompts[place].echo is None
            self._logprobs[index] = LegacyLogprobs(
                self._vocabulary,
                self._params.skip_special_tokens and is_plain,
                silent_count=0 if is_plain else self._prompts[place].silent_count,
            )
        return self._logprobs[index]


class _ChatText:
    """The text of one choice of a chat, as deltas of OpenAI's form."""

    def __init__(self, form: AnswerForm) -> None:
        calling = form.calling
        self._is_enforced = calling is not None and calling.is_enforced
        self._parser = None if form.is_plain else AnswerParser(form)
        self._closing_token = form.closing_token
        self._has_closed = False
        self._token_count = 0
        """Tokens up to the end of the reasoning."""

    def plain_field(self, delta: Delta) -> str | None:
        """The field that the text of a delta only adds to, if so."""
        return CONTENT if self._parser is None else self._parser.plain_field(delta.text)

    def deltas(self, part: Delta | Completion, *, is_last: bool) -> list[Json]:
        """What new text adds: reasoning, content and parts of calls."""
        text = part.text
        if self._parser is None:
            return [{CONTENT: text}] if text else []
        self.count(part.tokens)
        deltas = self._parser.push(text)
        if is_last:
            deltas += self._parser.finish()
        return deltas

    def count(self, tokens: tuple[int, ...]) -> None:
        """Count the tokens up to the end of the reasoning."""
        if self._closing_token is None or self._has_closed:
            return
        self._has_closed = self._closing_token in tokens
        end = tokens.index(self._closing_token) + 1 if self._has_closed else len(tokens)
        self._token_count += end

    @property
    def reasoning_count(self) -> int:
        """Tokens of reasoning, with the mark that ends it."""
        has_any = self._parser is not None and self._parser.has_reasoning
        return self._token_count if has_any else 0

    def message(self, completion: Completion) -> Json:
        """The message with the whole text."""
        texts = {CONTENT: "", REASONING: ""}
        calls: list[Json] = []
        for delta in self.deltas(completion, is_last=True):
            for name in texts.keys() & delta.keys():
                texts[name] += delta[name]
            for part in delta.get("tool_calls", ()):
                index = part.pop("index")
                if index == len(calls):
                    calls.append(part)
                else:
                    calls[index]["function"]["arguments"] += part["function"]["arguments"]
        content, reasoning = texts[CONTENT], texts[REASONING]
        has_content = bool(content) or not (calls or self._is_enforced)
        message: Json = {
            "role": "assistant",
            "content": content if has_content else None,
            "refusal": None,
        }
        if reasoning:
            message[REASONING] = reasoning
        return {**message, "tool_calls": calls} if calls else message

    def finish_name(self, reason: FinishReason | None) -> str | None:
        """Why it ended: calls have their own reason."""
        has_calls = self._parser is not None and self._parser.call_count > 0
        if reason is FinishReason.STOP and has_calls:
            return "tool_calls"
        return finish_name(reason)


class ChatChoices:
    """Of /v1/chat/completions; one for each call."""

    whole_object, chunk_object = "chat.completion", "chat.completion.chunk"

    def __init__(self, form: AnswerForm, params: SamplingParams, vocabulary: Vocabulary) -> None:
        self._form = form
        self._vocabulary = vocabulary
        self._wants_logprobs = params.logprobs is not None
        self._texts: dict[int, _ChatText] = {}

    @property
    def reasoning_count(self) -> int | None:
        """Tokens of reasoning so far; None if it is not known."""
        if self._form.closing_token is None:
            return None
        return sum(each.reasoning_count for each in self._texts.values())

    def whole(self, place: int, answer: Answer, completion: Completion) -> Json:
        """A finished completion."""
        text, logprobs = _ChatText(self._form), None
        self._texts[completion.index] = text
        if completion.logprobs is not None:
            logprobs = chat_logprobs(completion.logprobs, self._vocabulary)
        return {
            "index": completion.index,
            "message": text.message(completion),
            "logprobs": logprobs,
            "finish_reason": text.finish_name(completion.finish_reason),
            "stop_reason": completion.stop_reason,
        }

    def plain(self, place: int, delta: Delta) -> PlainText | None:
        """What the delta adds, if that is only text. Its parts need not be asked for then."""
        if self._wants_logprobs or delta.finish_reason is not None or not delta.text:
            return None
        text = self._texts.get(delta.index)
        field = None if text is None else text.plain_field(delta)
        return None if field is None else (delta.index, field)

    def count_plain(self, delta: Delta) -> None:
        """Count the tokens of a delta that is not asked for its parts."""
        self._texts[delta.index].count(delta.tokens)

    def parts(self, place: int, delta: Delta) -> list[Json]:
        """What a delta adds: the role first, then content and calls, then why it ended."""
        assert place == 0, "A chat has one prompt"
        is_last = delta.finish_reason is not None
        first: list[Json] = []
        text = self._texts.get(delta.index)
        if text is None:
            text = self._texts[delta.index] = _ChatText(self._form)
            first = [{"role": "assistant", "content": ""}]
        deltas = text.deltas(delta, is_last=is_last)
        if self._wants_logprobs and delta.logprobs and not deltas:
            deltas = [{"content": ""}]
        chunks = [_chunk(delta.index, each) for each in (*first, *deltas)]
        if self._wants_logprobs and deltas:
            chunks[len(first)]["logprobs"] = chat_logprobs(delta.logprobs, self._vocabulary)
        if is_last:
            ending = {
                "finish_reason": text.finish_name(delta.finish_reason),
                "stop_reason": delta.stop_reason,
            }
            chunks.append({**_chunk(delta.index, {}), **ending})
        return chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The reply to one call: the requests that it is made of, one for each prompt, and its form."""

    id: str
    model: str
    created: int
    fingerprint: str
    requests: tuple[Request, ...]
    choices: CompletionChoices | ChatChoices
    streams: bool
    wants_usage: bool
    counts_along: bool = False
    """Whether every chunk of a stream has the usage so far."""
    _around: dict[PlainText, list[bytes]] = field(default_factory=dict, repr=False)
    """What stands before and after the text in an event that only adds text."""

    def whole(self, answers: list[Answer]) -> Json:
        """The reply, all at once."""
        choices = [
            self.choices.whole(place, answer, completion)
            for place, answer in enumerate(answers)
            for completion in answer.completions
        ]
        parts = self._object(self.choices.whole_object, choices)
        usages = [answer.usage for answer in answers]
        return {**parts, "usage": usage_of(usages, self.choices.reasoning_count)}

    def chunks(self, place: int, delta: Delta, completion_count: int) -> list[Json]:
        """What a delta of the request at this place adds to the stream. The count is that of the
        tokens in all deltas of the call up to this one."""
        parts = [
            self._object(self.choices.chunk_object, [choice])
            for choice in self.choices.parts(place, delta)
        ]
        # As OpenAI does it: null, when the last chunk will have the usage.
        usage = None
        if self.counts_along:
            usage = _counted(sum(len(each.prompt) for each in self.requests), completion_count)
        if self.wants_usage or self.counts_along:
            for chunk in parts:
                chunk["usage"] = usage
        return parts

    def events(self, place: int, delta: Delta, completion_count: int) -> bytes:
        """The same as server-sent events. Almost all of them differ in their text alone."""
        plain = None if self.counts_along else self.choices.plain(place, delta)
        if plain is None:
            return b"".join(map(event, self.chunks(place, delta, completion_count)))
        self.choices.count_plain(delta)
        around = self._around.get(plain)
        if around is None:
            # Its tokens were counted already.
            example = replace(delta, text=_MARK, tokens=())
            marked = self.chunks(place, example, completion_count)
            around = event(marked[0]).split(dump_json(_MARK).encode())
            assert len(marked) == 1, "it adds a text and nothing else"
            assert len(around) == 2, "no other part of an event is the mark"
            self._around[plain] = around
        return around[0] + dump_json(delta.text).encode() + around[1]

    def closing(self, usages: list[Usage]) -> bytes:
        """What ends a stream, after the events of all requests."""
        if not self.wants_usage:
            return _DONE
        chunk = self._object(self.choices.chunk_object, [])
        chunk["usage"] = usage_of(usages, self.choices.reasoning_count)
        return event(chunk) + _DONE

    def failed(self, body: Json) -> bytes:
        """What ends a stream that failed, with OpenAI's error object."""
        return event(body)

    def _object(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


def _chunk(index: int, delta: Json) -> Json:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def finish_name(reason: FinishReason | None) -> str | None:
    """OpenAI's word for the end of a completion."""
    return None if reason is None else str(reason.value)
