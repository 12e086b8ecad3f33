"""Constraints: compiled ahead of use, kept, and followed token by token.

`ConstraintCompiler` may be called from any thread; a `Matcher` belongs to the thread that runs
batches. A constraint is text from a stranger: it is compiled in a process with limits first, and
only what passed there is compiled here, so that nothing is left at work behind a refusal. What
cannot be enforced to the letter is refused, never loosened.
"""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitney.core import limits
from jitney.core.backend import Vocabulary
from jitney.core.params import Constraint
from jitney.errors import InvalidRequest, QueueFull
from jitney.sampling.grammar import (
    STACK_BYTES,
    build_tokenizer,
    compile_grammar,
    refusal,
    set_up,
    stopped,
    to_set_up,
)
from jitney.sandbox.owner import (
    Bounds,
    Busy,
    Gone,
    Sandbox,
    SandboxError,
    TooLong,
    TooMuchMemory,
)

_CACHED_MAX = 256
_CACHED_BYTES_MAX = 2**28
"""Compiled constraints kept, the least recently used leaving first."""
_SET_UP_S_MAX = 15.0
"""A second or two on a machine with nothing else to do. Two attempts of it and of a task are less
than whoever asks a backend's process waits before it ends that process."""
_BYTES_PER_CHARACTER = 100
"""What a constraint is taken to need whose memory was not measured."""
_HEAP_BYTES = 2**27
"""Addresses that a thread sets aside for its memory, used or not."""
_GROWTH_BYTES_MAX = 6 * 2**20
"""The memory of a constraint can be told in a fresh process only, of which any takes 4 MB: what the
others gave back, and it may have instead, is less than the rest."""
_TURNS_MAX = 10
"""A caller waits for the constraints of so many others that take as long as they may."""


class FollowTime:
    """The processor's time for constraints, shared by all that are followed in one process.

    Everybody in a batch waits for all of them. Each token adds a little, and what was not needed is
    not saved up for one long wait. `spent` is the time that the thread which asks has taken.
    """

    def __init__(self, spent: Callable[[], float] = thread_time) -> None:
        self.spent = spent
        self._left_s = limits.CONSTRAINT_EXTRA_S_MAX

    @property
    def is_over(self) -> bool:
        """Whether those who take much must end."""
        return self._left_s < 0

    def take(self, seconds: float, token_count: int) -> None:
        """So many tokens took so long."""
        left_s = self._left_s + token_count * limits.CONSTRAINT_TOKEN_S_MAX - seconds
        self._left_s = min(left_s, limits.CONSTRAINT_EXTRA_S_MAX)


@dataclass(slots=True)
class Pace:
    """What a token took lately, of all completions that follow one constraint."""

    token_s: float = 0.0


class Matcher:
    """One completion's place in its constraint. Rebuilt from the tokens alone if it is lost.

    When constraints take too much time together, those that take much at a token are ended.
    """

    def __init__(self, state: Any, vocabulary_size: int, time: FollowTime, pace: Pace) -> None:
        # Any: an LLMatcher
        self._state = state
        self._vocabulary_size = vocabulary_size
        self._time = time
        self._pace = pace
        self._consumed = 0
        self._token_s = 0.0

    def advance_to(self, completion_tokens: Sequence[int]) -> None:
        """Take in what is new of the completion; start over if some of it was taken back."""
        if self._time.is_over and self._pace.token_s > limits.CONSTRAINT_TOKEN_S_MAX:
            raise refusal("it takes too long to follow; make it simpler, or less ambiguous")
        if len(completion_tokens) < self._consumed:
            self._state.reset()
            self._consumed = 0
        fresh = list(completion_tokens[self._consumed :])
        self._consumed = len(completion_tokens)
        self._token_s = 0.0
        with self._timed(max(len(fresh), 1)):
            is_taken = not fresh or self._state.consume_tokens(fresh)
        if not is_taken:
            raise stopped(self._state.get_error(), "the completion left it")

    def mask(self) -> NDArray[np.bool_]:
        """True for each token that may follow; the end tokens too when the text may end here."""
        with self._timed(0):
            bits = np.frombuffer(self._state.compute_bitmask(), dtype=np.uint8)
        if self._state.is_error():
            raise stopped(self._state.get_error(), "it cannot go on")
        return np.unpackbits(bits, count=self._vocabulary_size, bitorder="little").view(np.bool_)

    @contextlib.contextmanager
    def _timed(self, token_count: int) -> Iterator[None]:
        started_at = self._time.spent()
        yield
        seconds = self._time.spent() - started_at
        self._time.take(seconds, token_count)
        self._token_s += seconds / max(token_count, 1)
        self._pace.token_s = self._token_s


@dataclass(frozen=True, slots=True)
class _Kept:
    state: Any  # Any: LLMatcher
    memory_bytes: int
    pace: Pace


class ConstraintCompiler:
    """Compiles constraints for one vocabulary and keeps the latest ones."""

    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int]]) -> None:
        self._vocabulary = vocabulary
        self._encode = encode
        self._lock = threading.Lock()
        self._tokenizer_lock = threading.Lock()
        self._starts = threading.Lock()
        self._tokenizer: Any = None  # Any: an LLTokenizer, built when first needed (a second)
        self._compiled: OrderedDict[Constraint, _Kept] = OrderedDict()
        self._under_way: dict[Constraint, Future[_Kept]] = {}
        # What is left of the batch's time to compile again, and what was last waited for.
        self._again_left_s = limits.CONSTRAINTS_LOST_S_MAX
        self._is_first_batch = True
        self._again: Future[_Kept] | None = None
        self._time = FollowTime()
        self._sandbox = Sandbox(
            set_up,
            lambda: to_set_up(vocabulary),
            Bounds(
                seconds=limits.CONSTRAINT_COMPILE_S_MAX,
                memory_bytes=limits.CONSTRAINT_COMPILE_BYTES_MAX + _HEAP_BYTES,
                stack_bytes=STACK_BYTES,
                growth_bytes_max=_GROWTH_BYTES_MAX,
                set_up_s=_SET_UP_S_MAX,
                wait_s=_TURNS_MAX * limits.CONSTRAINT_COMPILE_S_MAX,
            ),
        )

    @property
    def sandbox(self) -> Sandbox:
        """The process in which constraints are tried."""
        return self._sandbox

    def prepare(self, constraint: Constraint) -> None:
        """Try a stranger's constraint within limits, and compile it if it passes.

        Raises InvalidRequest, or QueueFull when it is not the constraint's fault.
        """
        if self._cached(constraint) is None:
            self._begin(constraint, self._tried_bytes(constraint)).result()

    def begin_batch(self) -> None:
        """There is time again to compile, unless what took too long is at work still."""
        is_ready = self._again is None or self._again.done()
        if is_ready and not self._is_first_batch:
            self._again_left_s = limits.CONSTRAINT_AGAIN_S_MAX
        self._is_first_batch = False

    def compile(self, constraint: Constraint) -> Matcher:
        """A matcher at the start of a completion, for a constraint that was prepared.

        It is compiled again if it is not kept any more, or was prepared in an earlier process.
        Raises QueueFull when the time that a batch has for all of these is over. Called on the
        thread that runs batches.
        """
        kept = self._cached(constraint) or self._compiled_again(constraint)
        size = len(self._vocabulary.pieces)
        return Matcher(kept.state.deep_copy(), size, self._time, kept.pace)

    def close(self) -> None:
        """End the process in which constraints are tried; idempotent."""
        self._sandbox.close()

    def _tried_bytes(self, constraint: Constraint) -> int:
        """Compile it in the process with limits; the value is the memory that it took."""
        limit_s = limits.CONSTRAINT_COMPILE_S_MAX
        # A model that takes no constraint says so before there is a process.
        self._built_tokenizer()
        try:
            refused, taken_bytes = self._sandbox.run([constraint.kind.value, constraint.text])
        except TooLong:
            raise refusal(
                f"it took longer than {limit_s:g} s to compile; make it simpler"
            ) from None
        except TooMuchMemory:
            most = limits.CONSTRAINT_COMPILE_BYTES_MAX // 2**20
            raise refusal(
                f"it took more than {most} MiB of memory to compile; make it simpler"
            ) from None
        except Busy:
            raise QueueFull(
                "Other constraints are being compiled; try again later.", limit_s
            ) from None
        except Gone as error:
            raise QueueFull(
                f"Constraints cannot be compiled now ({error}); try again later.", limit_s
            ) from None
        except SandboxError as error:
            raise refusal(f"the compiler failed ({error}); make it simpler") from None
        if refused is not None:
            raise InvalidRequest(refused, "structured_outputs")
        return int(taken_bytes)

    def _compiled_again(self, constraint: Constraint) -> _Kept:
        # Built once in a process, and not this constraint's time.
        self._built_tokenizer()
        if self._again_left_s <= 0.0:
            raise _given_up()
        started_at = perf_counter()
        self._again = self._begin(constraint, _BYTES_PER_CHARACTER * len(constraint.text))
        try:
            return self._again.result(self._again_left_s)
        except TimeoutError:
            raise _given_up() from None
        finally:
            self._again_left_s -= perf_counter() - started_at

    def _begin(self, constraint: Constraint, memory_bytes: int) -> Future[_Kept]:
        """Compile it in a thread, and keep it; one thread for all who want it at once."""
        tokenizer = self._built_tokenizer()
        with self._lock:
            done = self._under_way.get(constraint)
            if done is not None:
                return done
            done = self._under_way[constraint] = Future()

        def work() -> None:
            try:
                kept = _Kept(compile_grammar(tokenizer, constraint), memory_bytes, Pace())
                with self._lock:
                    self._compiled[constraint] = kept
                    self._forget()
                done.set_result(kept)
            except MemoryError:
                done.set_exception(_no_memory())
            except BaseException as error:
                done.set_exception(error)
            finally:
                with self._lock:
                    del self._under_way[constraint]

        try:
            self._start(threading.Thread(target=work, name="constraint-compile"))
        except RuntimeError:
            with self._lock:
                del self._under_way[constraint]
            done.set_exception(_no_memory())
        return done

    def _start(self, thread: threading.Thread) -> None:
        """Start a thread that may go down deep. Raises RuntimeError for want of memory."""
        with self._starts:
            # The size is that of all threads to come, whoever starts them.
            usual = threading.stack_size(STACK_BYTES)
            try:
                thread.start()
            finally:
                threading.stack_size(usual)

    def _cached(self, constraint: Constraint) -> _Kept | None:
        with self._lock:
            kept = self._compiled.get(constraint)
            if kept is None:
                return None
            self._compiled.move_to_end(constraint)
            return kept

    def _forget(self) -> None:
        """Keep to the bounds; the newest one stays whatever its size. Called with the lock held."""
        size = sum(kept.memory_bytes for kept in self._compiled.values())
        while len(self._compiled) > _CACHED_MAX or (
            len(self._compiled) > 1 and size > _CACHED_BYTES_MAX
        ):
            _, oldest = self._compiled.popitem(last=False)
            size -= oldest.memory_bytes

    def _built_tokenizer(self) -> Any:  # Any: LLTokenizer
        with self._tokenizer_lock:
            if self._tokenizer is None:
                self._tokenizer = build_tokenizer(self._vocabulary, self._encode)
            return self._tokenizer


def _given_up(why: str = "") -> QueueFull:
    return QueueFull(
        f"The compiled constraint was given up for others{why}; try again later.",
        limits.CONSTRAINT_COMPILE_S_MAX,
    )


def _no_memory() -> QueueFull:
    return _given_up(": there is no memory to compile it")
