"""What passes between the engine's process and the backend's: messages as JSON, and no code.

Each message is a list with its kind first; values are lists in a fixed order, bytes are strings
of the characters 0 to 255. Reading checks every shape and type and raises MalformedFrame, so a
damaged or hostile frame is refused and never run. Pure functions, safe on any thread; the frames
themselves are `jitney.backends.process.channel`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar  # Any: parsed JSON, until a reader below has checked it

from jitney import errors
from jitney.core import limits
from jitney.core.backend import Text, Traits, Vocabulary
from jitney.core.batch import (
    Batch,
    Copy,
    Discard,
    Entry,
    MemoryOperation,
    Open,
    Outcome,
    Release,
    Restore,
    Sample,
    Sampling,
    Save,
    TokenLogprob,
    Truncate,
)
from jitney.core.params import Constraint, ConstraintKind
from jitney.sandbox.frames import MalformedFrame as MalformedFrame

Plain = str | int | float | bool | None
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Hello:
    """Build this backend. The first message, from the engine's side."""

    backend: str
    settings: Mapping[str, Plain]


@dataclass(frozen=True, slots=True)
class Ready:
    """The backend is built."""

    traits: Traits
    vocabulary: Vocabulary


@dataclass(frozen=True, slots=True)
class Execute:
    """Carry out a batch; answered by Executed or Failure."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class Executed:
    """What came back for a batch."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Reset:
    """Empty every slot and ticket; answered by Done or Failure."""


@dataclass(frozen=True, slots=True)
class Encode:
    """Tokenise texts, each by itself; answered by Encoded or Failure."""

    texts: tuple[Text, ...]


@dataclass(frozen=True, slots=True)
class Encoded:
    """The tokens of all the texts of one message, in order."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Prepare:
    """Compile a constraint; answered by Done or Failure."""

    constraint: Constraint


@dataclass(frozen=True, slots=True)
class Done:
    """What was asked is done, and there is nothing to tell."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that keeps its class: `kind` is one of `ERROR_KINDS`."""

    kind: str
    text: str
    parameter: str | None = None


Message = Hello | Ready | Execute | Executed | Reset | Encode | Encoded | Prepare | Done | Failure

_REQUEST_ERRORS: Mapping[str, type[errors.RequestError]] = {
    kind.__name__: kind
    for kind in (errors.InvalidRequest, errors.ContextLengthExceeded, errors.UnsupportedField)
}
_OTHER_ERRORS: Mapping[str, type[errors.SetupError] | type[errors.BackendFailed]] = {
    "ConfigError": errors.ConfigError,
    "ModelError": errors.ModelError,
    "MissingDependency": errors.MissingDependency,
    "BackendFailed": errors.BackendFailed,
}
_BUSY = "QueueFull"
ERROR_KINDS = frozenset((*_REQUEST_ERRORS, *_OTHER_ERRORS, _BUSY))


def failure_of(error: Exception) -> Failure:
    """An error as a message; one that jitney does not raise on purpose becomes BackendFailed."""
    kind = type(error).__name__
    if isinstance(error, errors.RequestError) and kind in _REQUEST_ERRORS:
        return Failure(kind, str(error), error.parameter)
    if isinstance(error, errors.JitneyError) and kind in ERROR_KINDS:
        return Failure(kind, str(error))
    return Failure("BackendFailed", f"the backend failed unexpectedly ({kind}: {error}).")


def error_of(failure: Failure) -> errors.JitneyError:
    """The error that a message tells of."""
    if failure.kind == _BUSY:
        return errors.QueueFull(failure.text, limits.CONSTRAINT_COMPILE_S_MAX)
    if failure.kind in _REQUEST_ERRORS:
        return _REQUEST_ERRORS[failure.kind](failure.text, failure.parameter)
    return _OTHER_ERRORS[failure.kind](failure.text)


def encode_message(message: Message) -> bytes:
    """A message as compact JSON."""
    return json.dumps(_plain(message), ensure_ascii=True, separators=(",", ":")).encode("ascii")


def decode_message(frame: bytes) -> Message:
    """The message in a frame. Raises MalformedFrame."""
    try:
        value = json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise MalformedFrame("the frame is not JSON.") from error
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise MalformedFrame("the frame is not a list that begins with a kind of message.")
    reader = _READERS.get(value[0])
    if reader is None:
        raise MalformedFrame(f"there is no message of kind {value[0][:40]!r}.")
    try:
        return reader(value[1:])
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        raise MalformedFrame(f"the {value[0]} message has a wrong shape ({error}).") from error


def _plain(message: Message) -> list[Any]:
    match message:
        case Hello():
            return ["hello", message.backend, dict(message.settings)]
        case Ready():
            return ["ready", _traits_list(message.traits), _vocabulary_list(message.vocabulary)]
        case Execute():
            return ["execute", *_batch_list(message.batch)]
        case Executed(outcome):
            samples = [_sample_list(sample) for sample in outcome.samples]
            return ["executed", outcome.number, samples, outcome.seconds]
        case Encode():
            return ["encode", message.texts]
        case Encoded():
            return ["encoded", message.tokens]
        case Prepare():
            return ["prepare", message.constraint.kind.value, message.constraint.text]
        case Failure():
            return ["failure", message.kind, message.text, message.parameter]
        case Reset() | Done():
            return ["reset" if isinstance(message, Reset) else "done"]


def _traits_list(traits: Traits) -> list[Any]:
    return [getattr(traits, field.name) for field in fields(Traits)]


def _vocabulary_list(vocabulary: Vocabulary) -> list[Any]:
    return [
        [piece.decode("latin-1") for piece in vocabulary.pieces],
        sorted(vocabulary.control),
        vocabulary.eos_tokens,
        vocabulary.bos_token,
        vocabulary.adds_bos,
        vocabulary.chat_template,
    ]


def _batch_list(batch: Batch) -> list[Any]:
    """Entries go by columns: flat lists of integers are read and checked several times faster."""
    entries = batch.entries
    return [
        batch.number,
        [_operation_list(each) for each in batch.operations],
        [entry.slot for entry in entries],
        [entry.start for entry in entries],
        [entry.wants_token + 2 * entry.continues for entry in entries],
        [len(entry.tokens) for entry in entries],
        [token for entry in entries for token in entry.tokens],
    ]


def _operation_list(operation: MemoryOperation) -> list[Any]:
    match operation:
        case Open(slot, sampling):
            return ["open", slot, _sampling_list(sampling)]
        case Copy(source, target, length):
            return ["copy", source, target, length]
        case Truncate(slot, length):
            return ["truncate", slot, length]
        case Save(slot, ticket):
            return ["save", slot, ticket]
        case Restore(ticket, slot):
            return ["restore", ticket, slot]
        case Release(slot):
            return ["release", slot]
        case Discard(ticket):
            return ["discard", ticket]


def _sampling_list(sampling: Sampling) -> list[Any]:
    values = [getattr(sampling, name) for name in _SAMPLING_READERS]
    constraint = sampling.constraint
    return [*values, None if constraint is None else [constraint.kind.value, constraint.text]]


def _sample_list(sample: Sample) -> Any:
    # Most samples are a token and nothing else; a bare value keeps the frame small.
    if sample.logprob is None and not sample.prompt_logprobs and sample.fault is None:
        return sample.token
    return [
        sample.token,
        None if sample.logprob is None else _logprob_list(sample.logprob),
        [_logprob_list(logprob) for logprob in sample.prompt_logprobs],
        sample.fault,
    ]


def _logprob_list(logprob: TokenLogprob) -> list[Any]:
    return [logprob.token, logprob.logprob, logprob.top]


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("a whole number was expected")
    return value


def _number(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise TypeError("a number was expected")
    return float(value)


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError("true or false was expected")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("a text was expected")
    return value


def _listed(value: Any) -> list[Any]:
    if type(value) is not list:
        raise TypeError("a list was expected")
    return value


def _maybe(reader: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else reader(value)


def _integers(value: Any) -> tuple[int, ...]:
    if not set(map(type, _listed(value))) <= {int}:
        raise TypeError("whole numbers were expected")
    return tuple(value)


def _pairs(value: Any) -> tuple[tuple[int, float], ...]:
    return tuple([(_integer(token), _number(number)) for token, number in _listed(value)])


def _constraint(value: Any) -> Constraint:
    kind, text = _listed(value)
    return Constraint(ConstraintKind(_text(kind)), _text(text))


# The order of this table is the order of the values on the wire; the constraint follows them.
_SAMPLING_READERS: Mapping[str, Callable[[Any], Any]] = {
    "seed": _integer,
    "prompt_count": _integer,
    "temperature": _number,
    "top_k": _integer,
    "top_p": _number,
    "min_p": _number,
    "repetition_penalty": _number,
    "frequency_penalty": _number,
    "presence_penalty": _number,
    "logit_bias": _pairs,
    "min_tokens": _integer,
    "end_tokens": _integers,
    "logprobs": lambda value: _maybe(_integer, value),
    "prompt_logprobs": lambda value: _maybe(_integer, value),
}


def _sampling(value: Any) -> Sampling:
    *plain, constraint = _listed(value)
    named = {
        name: reader(each)
        for (name, reader), each in zip(_SAMPLING_READERS.items(), plain, strict=True)
    }
    return Sampling(**named, constraint=_maybe(_constraint, constraint))


def _open(value: list[Any]) -> Open:
    slot, sampling = value
    return Open(_integer(slot), _sampling(sampling))


def _of_integers(kind: Callable[..., MemoryOperation]) -> Callable[[list[Any]], MemoryOperation]:
    return lambda value: kind(*[_integer(each) for each in value])


_OPERATION_READERS: Mapping[str, Callable[[list[Any]], MemoryOperation]] = {
    "open": _open,
    "copy": _of_integers(Copy),
    "truncate": _of_integers(Truncate),
    "save": _of_integers(Save),
    "restore": _of_integers(Restore),
    "release": _of_integers(Release),
    "discard": _of_integers(Discard),
}


def _entries(columns: list[Any]) -> tuple[Entry, ...]:
    slots, starts, flags, lengths, tokens = map(_integers, columns)
    if not set(flags) <= {0, 1, 2, 3}:
        raise ValueError("an entry has unknown flags")
    if sum(lengths) != len(tokens) or min(lengths, default=0) < 0:
        raise ValueError("the lengths of the spans do not add up")
    entries = []
    position = 0
    for slot, start, flag, length in zip(slots, starts, flags, lengths, strict=True):
        end = position + length
        entries.append(Entry(slot, start, tokens[position:end], flag & 1 == 1, flag >= 2))
        position = end
    return tuple(entries)


def _logprob(value: Any) -> TokenLogprob:
    token, logprob, top = _listed(value)
    return TokenLogprob(_integer(token), _number(logprob), _pairs(top))


def _sample(value: Any) -> Sample:
    token, logprob, prompt_logprobs, fault = _listed(value)
    return Sample(
        _maybe(_integer, token),
        _maybe(_logprob, logprob),
        tuple([_logprob(each) for each in _listed(prompt_logprobs)]),
        _maybe(_text, fault),
    )


def _vocabulary(value: Any) -> Vocabulary:
    pieces, control, eos_tokens, bos_token, adds_bos, chat_template = _listed(value)
    return Vocabulary(
        pieces=tuple([_text(piece).encode("latin-1") for piece in _listed(pieces)]),
        control=frozenset(_integers(control)),
        eos_tokens=_integers(eos_tokens),
        bos_token=_maybe(_integer, bos_token),
        adds_bos=_boolean(adds_bos),
        chat_template=_maybe(_text, chat_template),
    )


def _traits(value: Any) -> Traits:
    named = dict(zip((field.name for field in fields(Traits)), _listed(value), strict=True))
    for field in fields(Traits):
        if type(named[field.name]) is not field.type:
            raise TypeError(f"{field.name} has a wrong type")
    return Traits(**named)


def _read_hello(value: list[Any]) -> Hello:
    backend, settings = value
    for key, each in settings.items():
        if not isinstance(each, str | int | float | bool | None):
            raise TypeError(f"the setting {key} is not a plain value")
    return Hello(_text(backend), settings)


def _read_ready(value: list[Any]) -> Ready:
    traits, vocabulary = value
    return Ready(_traits(traits), _vocabulary(vocabulary))


def _read_execute(value: list[Any]) -> Execute:
    number, operations, *columns = value
    read = [_OPERATION_READERS[each[0]](each[1:]) for each in _listed(operations)]
    return Execute(Batch(_integer(number), tuple(read), _entries(columns)))


def _read_executed(value: list[Any]) -> Executed:
    number, samples, seconds = value
    read = [
        Sample(each) if each is None or type(each) is int else _sample(each)
        for each in _listed(samples)
    ]
    return Executed(Outcome(_integer(number), tuple(read), _number(seconds)))


def _read_encode(value: list[Any]) -> Encode:
    (texts,) = value
    read = [(_text(text), _boolean(special)) for text, special in _listed(texts)]
    return Encode(tuple(read))


def _read_failure(value: list[Any]) -> Failure:
    kind, text, parameter = value
    if kind not in ERROR_KINDS:
        raise ValueError("there is no such error")
    return Failure(_text(kind), _text(text), _maybe(_text, parameter))


def _read_encoded(value: list[Any]) -> Encoded:
    (tokens,) = value
    return Encoded(_integers(tokens))


def _nothing(message: Message) -> Callable[[list[Any]], Message]:
    def read(value: list[Any]) -> Message:
        if value:
            raise ValueError("it takes no values")
        return message

    return read


_READERS: Mapping[str, Callable[[list[Any]], Message]] = {
    "hello": _read_hello,
    "ready": _read_ready,
    "execute": _read_execute,
    "executed": _read_executed,
    "reset": _nothing(Reset()),
    "encode": _read_encode,
    "encoded": _read_encoded,
    "prepare": lambda value: Prepare(_constraint(value)),
    "done": _nothing(Done()),
    "failure": _read_failure,
}
