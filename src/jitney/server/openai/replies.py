"""Replies in OpenAI's shapes: whole ones, and the chunks of streams. Pure; event loop.

A whole reply and a stream are made by the same parser of calls, so that what a stream adds up to
is what the whole reply says.
"""

import hashlib
from typing import Any, Protocol

from jitney.core.backend import Vocabulary
from jitney.core.events import FinishReason
from jitney.engine.answer import Answer, Completion, Delta, Usage
from jitney.server.openai.logprobs_reply import LegacyLogprobs, chat_logprobs
from jitney.server.openai.tool_calls import CallParser, CallPiece, ContentPiece, Piece
from jitney.server.openai.tools import Calling
from jitney.server.openai.translate import Asked
from jitney.version import version

Json = dict[str, Any]  # Any: a JSON value

VERSION = version()


def fingerprint(model: str, vocabulary: Vocabulary, *, batch_invariant: bool) -> str:
    """Names the software and the model, so that a caller sees when either changed.

    So does whether the same request gives the same text, whatever else is served.
    """
    facts = f"{model}:{len(vocabulary.pieces)}{'' if batch_invariant else ':varies'}"
    digest = hashlib.sha256(facts.encode()).hexdigest()[:8]
    return f"jitney-{VERSION}-{digest}"


def usage_of(usages: list[Usage]) -> Json:
    """What was counted, over all prompts of a call."""
    prompt_count = sum(each.prompt_count for each in usages)
    completion_count = sum(each.completion_count for each in usages)
    return {
        "prompt_tokens": prompt_count,
        "completion_tokens": completion_count,
        "total_tokens": prompt_count + completion_count,
        "prompt_tokens_details": {"cached_tokens": sum(each.cached_count for each in usages)},
    }


class Shape(Protocol):
    """How one endpoint says things; one per HTTP request, because streams have a state."""

    def whole(self, answers: list[Answer]) -> Json:
        """The reply, all at once."""
        ...

    def chunks(self, place: int, delta: Delta) -> list[Json]:
        """What a delta of the request at this place adds to the stream."""
        ...

    def usage_chunk(self, usages: list[Usage]) -> Json:
        """The last chunk, if usage was asked for."""
        ...


class _Head:
    """The fields that every reply and chunk of one HTTP request begin with."""

    def __init__(self, asked: Asked, vocabulary: Vocabulary, batch_invariant: bool) -> None:
        self._asked = asked
        self._fingerprint = fingerprint(asked.model, vocabulary, batch_invariant=batch_invariant)

    def made(self, kind: str, choices: list[Json]) -> Json:
        """A reply of this kind."""
        return {
            "id": self._asked.id,
            "object": kind,
            "created": self._asked.created,
            "model": self._asked.model,
            "system_fingerprint": self._fingerprint,
            "choices": choices,
        }

    def chunk(self, kind: str, choice: Json) -> Json:
        """A chunk; OpenAI has its usage null where there will be one in the end."""
        made = self.made(kind, [choice])
        if self._asked.wants_usage:
            made["usage"] = None
        return made


class CompletionShape:
    """/v1/completions."""

    def __init__(
        self, asked: Asked, vocabulary: Vocabulary, *, batch_invariant: bool = True
    ) -> None:
        self._asked = asked
        self._vocabulary = vocabulary
        self._head = _Head(asked, vocabulary, batch_invariant)
        self._logprobs: dict[int, LegacyLogprobs] = {}
        self._begun: set[int] = set()

    def whole(self, answers: list[Answer]) -> Json:
        """The reply, all at once."""
        choices = [
            self._choice(place, answer, completion)
            for place, answer in enumerate(answers)
            for completion in answer.completions
        ]
        made = self._head.made("text_completion", choices)
        return {**made, "usage": usage_of([answer.usage for answer in answers])}

    def chunks(self, place: int, delta: Delta) -> list[Json]:
        """What a delta adds; the echo comes with the first one."""
        index = self._index(place, delta.index)
        text = delta.text
        if index not in self._begun:
            self._begun.add(index)
            text = (self._asked.echoes[place] or "") + text
        logprobs = None
        if self._asked.requests[place].params.logprobs is not None:
            logprobs = self._legacy(index, place).shaped(delta.tokens, delta.logprobs)
        choice = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_name(delta.finish_reason),
            "stop_reason": delta.stop_reason,
        }
        return [self._head.chunk("text_completion", choice)]

    def usage_chunk(self, usages: list[Usage]) -> Json:
        """The last chunk, if usage was asked for."""
        return {**self._head.made("text_completion", []), "usage": usage_of(usages)}

    def _choice(self, place: int, answer: Answer, completion: Completion) -> Json:
        index = self._index(place, completion.index)
        logprobs = None
        if completion.logprobs is not None:
            logprobs = self._whole_logprobs(place, answer, completion)
        return {
            "index": index,
            "text": (self._asked.echoes[place] or "") + completion.text,
            "logprobs": logprobs,
            "finish_reason": finish_name(completion.finish_reason),
            "stop_reason": completion.stop_reason,
        }

    def _whole_logprobs(self, place: int, answer: Answer, completion: Completion) -> Json:
        assert completion.logprobs is not None
        legacy = self._legacy(self._index(place, completion.index), place)
        if answer.prompt_logprobs is None:
            return legacy.shaped(completion.tokens, completion.logprobs)
        return legacy.shaped(
            (*answer.request.prompt, *completion.tokens),
            (None, *answer.prompt_logprobs, *completion.logprobs),
        )

    def _legacy(self, index: int, place: int) -> LegacyLogprobs:
        if index not in self._logprobs:
            # With an echo, the names of control tokens are part of the text.
            is_plain = self._asked.echoes[place] is None
            params = self._asked.requests[place].params
            self._logprobs[index] = LegacyLogprobs(
                self._vocabulary,
                params.skip_special_tokens and is_plain,
                silent_count=0 if is_plain else self._asked.silent_counts[place],
            )
        return self._logprobs[index]

    def _index(self, place: int, index: int) -> int:
        return place * self._asked.requests[place].params.n + index


class _ChatTrack:
    """What is known of one choice of a chat."""

    def __init__(self, calling: Calling | None) -> None:
        self._calling = calling
        self._parser: CallParser | None = None if calling is None else calling.parser()
        self.has_begun = False

    @property
    def has_calls(self) -> bool:
        """Whether any tool was called."""
        return self._parser is not None and self._parser.call_count > 0

    def push(self, text: str, *, is_last: bool) -> list[Piece]:
        """New text, in pieces."""
        if self._parser is None:
            return [ContentPiece(text)] if text else []
        pieces = self._parser.push(text)
        return [*pieces, *self._parser.finish()] if is_last else pieces

    def part(self, piece: CallPiece) -> Json:
        """A piece of a call as a delta has it."""
        if piece.name is None:
            return {"index": piece.index, "function": {"arguments": piece.arguments}}
        assert self._calling is not None
        return {
            "index": piece.index,
            "id": self._calling.new_id(),
            "type": "function",
            "function": {"name": piece.name, "arguments": piece.arguments},
        }


class ChatShape:
    """/v1/chat/completions."""

    def __init__(
        self, asked: Asked, vocabulary: Vocabulary, *, batch_invariant: bool = True
    ) -> None:
        self._asked = asked
        self._vocabulary = vocabulary
        self._head = _Head(asked, vocabulary, batch_invariant)
        self._tracks: dict[int, _ChatTrack] = {}

    def whole(self, answers: list[Answer]) -> Json:
        """The reply, all at once."""
        choices = [self._choice(each) for each in answers[0].completions]
        made = self._head.made("chat.completion", choices)
        return {**made, "usage": usage_of([answers[0].usage])}

    def chunks(self, place: int, delta: Delta) -> list[Json]:
        """What a delta adds: the role first, then content and calls, then why it ended."""
        assert place == 0, "a chat has one prompt"
        track = self._tracks.setdefault(delta.index, _ChatTrack(self._asked.calling))
        made: list[Json] = []
        if not track.has_begun:
            track.has_begun = True
            made.append(self._chunk(delta.index, {"role": "assistant", "content": ""}))
        is_last = delta.finish_reason is not None
        deltas: list[Json] = []
        for piece in track.push(delta.text, is_last=is_last):
            if isinstance(piece, ContentPiece):
                deltas.append({"content": piece.text})
            else:
                deltas.append({"tool_calls": [track.part(piece)]})
        wants_logprobs = self._asked.requests[0].params.logprobs is not None
        if delta.logprobs and wants_logprobs and not deltas:
            deltas.append({"content": ""})
        for count, each in enumerate(deltas):
            chunk = self._chunk(delta.index, each)
            if wants_logprobs and count == 0:
                chunk["choices"][0]["logprobs"] = chat_logprobs(delta.logprobs, self._vocabulary)
            made.append(chunk)
        if is_last:
            chunk = self._chunk(delta.index, {})
            choice = chunk["choices"][0]
            choice["finish_reason"] = _chat_finish(delta.finish_reason, track)
            choice["stop_reason"] = delta.stop_reason
            made.append(chunk)
        return made

    def usage_chunk(self, usages: list[Usage]) -> Json:
        """The last chunk, if usage was asked for."""
        return {**self._head.made("chat.completion.chunk", []), "usage": usage_of(usages)}

    def _chunk(self, index: int, delta: Json) -> Json:
        return self._head.chunk(
            "chat.completion.chunk",
            {"index": index, "delta": delta, "logprobs": None, "finish_reason": None},
        )

    def _choice(self, completion: Completion) -> Json:
        track = _ChatTrack(self._asked.calling)
        contents: list[str] = []
        calls: list[Json] = []
        for piece in track.push(completion.text, is_last=True):
            if isinstance(piece, ContentPiece):
                contents.append(piece.text)
            elif piece.name is not None:
                call = track.part(piece)
                del call["index"]
                calls.append(call)
            else:
                calls[piece.index]["function"]["arguments"] += piece.arguments
        content = "".join(contents)
        calling = self._asked.calling
        has_content = bool(content) or not (calls or (calling is not None and calling.is_enforced))
        message: Json = {
            "role": "assistant",
            "content": content if has_content else None,
            "refusal": None,
        }
        if calls:
            message["tool_calls"] = calls
        logprobs = None
        if completion.logprobs is not None:
            logprobs = chat_logprobs(completion.logprobs, self._vocabulary)
        return {
            "index": completion.index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": _chat_finish(completion.finish_reason, track),
            "stop_reason": completion.stop_reason,
        }


def finish_name(reason: FinishReason | None) -> str | None:
    """OpenAI's word for the end of a completion."""
    return None if reason is None else str(reason.value)


def _chat_finish(reason: FinishReason | None, track: _ChatTrack) -> str | None:
    if reason is FinishReason.STOP and track.has_calls:
        return "tool_calls"
    return finish_name(reason)
