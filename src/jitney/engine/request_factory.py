"""`RequestFactory`: makes a checked `Request` from a caller's input.

Called by the Python API and the server on the caller's thread, never on the engine's: it takes time
to tokenise a long text and to compile a constraint. Everything that needs the model's vocabulary is
checked here, before it reaches native code (invariant 9).
"""

import os
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable  # Any: tokens that may be none

from jitney.core import limits
from jitney.core.backend import Segment, TextBackend, Vocabulary
from jitney.core.params import Constraint, SamplingParams
from jitney.core.request import Priority, Request, RequestId, Share, utf8_bytes
from jitney.core.sequence import check_prompt_length
from jitney.errors import ContextLengthExceeded, InvalidRequest, RequestError

_ID_DIGITS = 32
_RANDOM_BYTES = 4096

Wanted = Callable[[], bool]
"""Whether a caller still waits for the result."""


class GivenUp(Exception):
    """No caller waits for the result any more, so the work stopped."""


@runtime_checkable
class SeparatingBackend(Protocol):
    """A backend that tokenises several texts in one step, and keeps their tokens apart."""

    def encode_each(self, texts: Sequence[Segment]) -> Sequence[Sequence[int]]:
        """The tokens of each text."""


@runtime_checkable
class RemoteBackend(Protocol):
    """A backend on other machines, which may let a caller wait for long."""

    def while_wanted(self, is_wanted: Wanted) -> TextBackend:
        """The same for one caller. It raises GivenUp while it waits, if that one waits no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """Options of a request beside its prompt and its sampling."""

    id: RequestId | None = None
    priority: Priority = Priority.NORMAL
    tenant: str = ""
    reply_id: str = ""
    is_chat: bool = False
    scope: str = ""
    is_stored: bool = True
    share: Share | None = None
    queue_timeout_s: float | None = None
    request_timeout_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("tenant", "scope"):
            text = getattr(self, name)
            if not isinstance(text, str) or len(text) > limits.TENANT_CHARACTERS_MAX:
                raise InvalidRequest(
                    f"{name} takes a text of at most {limits.TENANT_CHARACTERS_MAX} characters.",
                    name,
                )
        for name in ("queue_timeout_s", "request_timeout_s"):
            seconds = getattr(self, name)
            is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
            if seconds is not None and not (is_number and seconds > 0):
                raise InvalidRequest(f"{name} must be above 0, and got {seconds!r}.", name)


_PASSED_ON = {each.name for each in fields(RequestOptions)} - {"id"}
"""Options that are fields of a request, unchanged."""


class RequestFactory:
    """Makes requests for one backend. Any thread may call."""

    def __init__(
        self, backend: TextBackend, model_len_max: int, draw_seed: Callable[[], int]
    ) -> None:
        self._backend = backend
        self.is_remote = isinstance(backend, RemoteBackend)
        """Whether a caller may have to wait for long."""
        self._vocabulary = backend.vocabulary
        self._model_len_max = model_len_max
        self._draw_seed = draw_seed
        # The most bytes of a prompt that fits.
        control = self._vocabulary.control
        pieces = enumerate(self._vocabulary.pieces)
        longest = max((len(piece) for token, piece in pieces if token not in control), default=1)
        self._prompt_bytes_max = model_len_max * max(longest, 1)

    def encode(
        self, segments: tuple[Segment, ...], is_wanted: Wanted = lambda: True
    ) -> tuple[int, ...]:
        """Tokens of a prompt. Adds the model's first token if the model wants it.

        It works in slices. A backend in another process gets one message per slice. Before each
        slice it checks that the prompt is still wanted. Raises GivenUp if it is not.
        """
        self._check_size(segments)
        backend = self._backend_of(is_wanted)
        tokens: list[int] = []
        for texts in _slices(segments):
            if not is_wanted():
                raise GivenUp
            tokens.extend(backend.encode(texts))
        return self._begun(tokens)

    def encode_together(
        self, prompts: Sequence[tuple[Segment, ...]]
    ) -> list[tuple[int, ...] | RequestError]:
        """The tokens of short prompts, or their errors. A backend in another process gets one
        message per slice. An error that this raises may come from any of them."""
        errors = [self._size_error(segments) for segments in prompts]
        texts = (
            text
            for segments, error in zip(prompts, errors, strict=True)
            for text in segments
            if error is None
        )
        found = iter([tokens for part in _slices(texts) for tokens in self._encode_each(part)])
        return [
            error or self._begun([token for text, _ in each if text for token in next(found)])
            for each, error in zip(prompts, errors, strict=True)
        ]

    def _encode_each(self, texts: list[Segment]) -> Sequence[Sequence[int]]:
        backend = self._backend
        if isinstance(backend, SeparatingBackend):
            return backend.encode_each(texts)
        return [backend.encode((each,)) for each in texts]

    def _size_error(self, segments: tuple[Segment, ...]) -> RequestError | None:
        try:
            self._check_size(segments)
        except RequestError as error:
            return error
        return None

    def _begun(self, tokens: list[int]) -> tuple[int, ...]:
        """The tokens of a prompt, with the model's first token if the model wants it."""
        bos_token = self._vocabulary.bos_token
        if self._vocabulary.adds_bos and bos_token is not None and tokens[:1] != [bos_token]:
            tokens.insert(0, bos_token)
        return tuple(tokens)

    def encode_text(self, text: str, is_wanted: Wanted = lambda: True) -> tuple[int, ...]:
        """Tokens of a text prompt. Names of control tokens in it become those tokens."""
        if not isinstance(text, str):
            raise InvalidRequest(f"prompt is a text or tokens, and got {text!r:.80}.", "prompt")
        return self.encode(((text, True),), is_wanted)

    def make(
        self,
        prompt: tuple[int, ...],
        params: SamplingParams,
        options: RequestOptions | None = None,
        is_wanted: Wanted = lambda: True,
    ) -> Request:
        """A request with these prompt tokens. Raises a RequestError that says what to change.

        If the caller has left before a constraint is compiled, raises GivenUp.
        """
        options = options or RequestOptions()
        check_prompt_length(len(prompt), self._model_len_max)
        check_tokens(self._vocabulary, "prompt", prompt)
        check_tokens(self._vocabulary, "stop_token_ids", params.stop_token_ids or ())
        check_tokens(self._vocabulary, "logit_bias", params.logit_bias or ())
        if params.constraint is not None:
            self.prepare(params.constraint, is_wanted)
        return Request(
            id=options.id or RequestId(uuid.uuid4().hex),
            prompt=prompt,
            params=params,
            seed=self._draw_seed() if params.seed is None else params.seed,
            **{name: getattr(options, name) for name in _PASSED_ON},
        )

    def prepare(self, constraint: Constraint, is_wanted: Wanted = lambda: True) -> None:
        """Compile a constraint if it is still wanted. Raises GivenUp or a RequestError."""
        if not is_wanted():
            raise GivenUp
        self._backend_of(is_wanted).prepare(constraint)

    def _backend_of(self, is_wanted: Wanted) -> TextBackend:
        backend = self._backend
        return backend.while_wanted(is_wanted) if isinstance(backend, RemoteBackend) else backend

    def _check_size(self, segments: tuple[Segment, ...]) -> None:
        """Refuse a prompt that is too large before time is spent to tokenise it."""
        character_count = sum(len(text) for text, _ in segments)
        if character_count > limits.PROMPT_CHARACTERS_MAX:
            raise InvalidRequest(
                f"The prompt has {character_count} characters; "
                f"the limit is {limits.PROMPT_CHARACTERS_MAX}.",
                "prompt",
            )
        byte_count = sum(len(utf8_bytes(text, "the prompt", "prompt")) for text, _ in segments)
        if byte_count > self._prompt_bytes_max:
            raise ContextLengthExceeded(
                f"The prompt has {byte_count} bytes, which is more than the {self._model_len_max} "
                "tokens of the context can hold; shorten the prompt.",
                "prompt",
            )
        segment_count = sum(bool(text) for text, _ in segments)
        if segment_count > self._model_len_max:
            raise ContextLengthExceeded(
                f"The prompt has {segment_count} parts between names of control tokens. Each part "
                f"needs at least one token, and the context holds {self._model_len_max} tokens; "
                "shorten the prompt.",
                "prompt",
            )


def check_tokens(vocabulary: Vocabulary, name: str, tokens: Iterable[Any]) -> None:
    """Raise InvalidRequest where one of them is no token of the model."""
    count = len(vocabulary.pieces)
    for token in tokens:
        # In Python a bool is an int, but it is not a token.
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < count:
            raise InvalidRequest(
                f"{name} has {token!r:.80}, and the model's tokens are 0 to {count - 1}.", name
            )


def _slices(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    """The segments with text, in slices that are tokenised in one step."""
    part: list[Segment] = []
    character_count = 0
    for text, is_special in segments:
        if not text:
            continue
        character_count += len(text)
        is_full = len(part) == limits.SLICE_TEXTS or character_count > limits.SLICE_CHARACTERS
        if part and is_full:
            yield part
            part, character_count = [], len(text)
        part.append((text, is_special))
    if part:
        yield part


class FreshIds:
    """A supply of ids of 32 hexadecimal digits that nobody can guess. Any thread.

    Each system call lets another thread of Python run first, which may take milliseconds. So random
    bytes are taken from the system in blocks.
    """

    def __init__(self) -> None:
        self._unused: list[str] = []

    def take(self) -> str:
        """An id that nobody else has."""
        while True:
            try:
                return self._unused.pop()
            except IndexError:
                digits, size = os.urandom(_RANDOM_BYTES).hex(), _ID_DIGITS
                self._unused += [digits[at : at + size] for at in range(0, len(digits), size)]


def seed_source(seed: int | None) -> Callable[[], int]:
    """Makes seeds for requests without one: at random, or from the setting `seed`."""
    if seed is None:
        fresh = FreshIds()
        return lambda: int(fresh.take(), 16) >> 65
    source = random.Random(seed)
    return lambda: source.getrandbits(63)
