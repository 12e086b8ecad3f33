"""Constraints: compiled before use, cached, and applied token by token.

Any thread may call `ConstraintCompiler`; a `Matcher` belongs to the thread that runs batches. A
constraint is untrusted text. So it is first compiled in a process with limits, and only compiled
here if it passed: after a refusal no work goes on. A constraint that cannot be enforced exactly is
refused, never weakened.
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
    failure,
    refusal,
    set_up,
    set_up_input,
)
from jitney.sandbox.sandbox import (
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
"""The size of the cache of compiled constraints; the least recently used leave first."""
_SET_UP_S_MAX = 15.0
"""An idle machine needs a second or two. Two set-ups and two tasks together take less than the
longest wait for an answer of a backend's process (`QUESTION_S_MAX`)."""
_BYTES_PER_CHARACTER = 100
"""The assumed memory of a constraint, where it was not measured."""
_HEAP_BYTES = 2**27
"""Addresses that a thread reserves for its memory, used or not."""
_GROWTH_BYTES_MAX = 6 * 2**20
"""The memory of a constraint can only be measured in a fresh process, because later ones reuse what
earlier ones freed. A fresh process grows by 4 MB for any constraint, so at most the rest of this is
reused and not measured."""
_NO_MEMORY = ": there is no memory to compile it"
_TURNS_MAX = 10
"""A caller waits for at most this many other constraints that use their whole time limit."""


class FollowTime:
    """The processor time for constraints, shared by all completions of one process.

    Every request in a batch waits for all constraints. Each token adds a little time. Unused time
    is not saved for one long wait. `spent` gives the processor time of the calling thread.
    """

    def __init__(self, spent: Callable[[], float] = thread_time) -> None:
        self.spent = spent
        self._left_s = limits.CONSTRAINT_EXTRA_S_MAX

    @property
    def is_over(self) -> bool:
        """Whether slow constraints must end."""
        return self._left_s < 0

    def take(self, seconds: float, token_count: int) -> None:
        """Record the time that these tokens took."""
        left_s = self._left_s + token_count * limits.CONSTRAINT_TOKEN_S_MAX - seconds
        self._left_s = min(left_s, limits.CONSTRAINT_EXTRA_S_MAX)


@dataclass(slots=True)
class Compiled:
    """A constraint at its start, and the latest time of a token, for all its completions."""

    state: Any  # Any: LLMatcher
    memory_bytes: int
    token_s: float = 0.0


class Matcher:
    """The state of one completion in its constraint. It can be rebuilt from the tokens.

    When all constraints together take too much time, those that are slow at a token are ended.
    """

    def __init__(self, compiled: Compiled, vocabulary_size: int, time: FollowTime) -> None:
        self._compiled = compiled
        self._state = compiled.state.deep_copy()
        self._vocabulary_size = vocabulary_size
        self._time = time
        self._consumed = 0
        self._token_s = 0.0

    def advance_to(self, completion_tokens: Sequence[int]) -> None:
        """Read the new tokens of the completion. Start again if some tokens were taken back."""
        if self._time.is_over and self._compiled.token_s > limits.CONSTRAINT_TOKEN_S_MAX:
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
            raise failure(self._state.get_error(), "the completion left it")

    def mask(self) -> NDArray[np.bool_]:
        """True for each token that may follow, including the end tokens if the text may end."""
        with self._timed(0):
            bits = np.frombuffer(self._state.compute_bitmask(), dtype=np.uint8)
        if self._state.is_error():
            raise failure(self._state.get_error(), "it cannot go on")
        return np.unpackbits(bits, count=self._vocabulary_size, bitorder="little").view(np.bool_)

    @contextlib.contextmanager
    def _timed(self, token_count: int) -> Iterator[None]:
        started_at = self._time.spent()
        yield
        seconds = self._time.spent() - started_at
        self._time.take(seconds, token_count)
        self._token_s += seconds / max(token_count, 1)
        self._compiled.token_s = self._token_s


class ConstraintCompiler:
    """Compiles constraints for one vocabulary and caches the latest ones."""

    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int]]) -> None:
        self._vocabulary = vocabulary
        self._encode = encode
        self._lock = threading.Lock()
        self._tokenizer_lock = threading.Lock()
        self._starts = threading.Lock()
        self._tokenizer: Any = None  # Any: an LLTokenizer, built when first needed (a second)
        self._compiled: OrderedDict[Constraint, Compiled] = OrderedDict()
        self._compiling: dict[Constraint, Future[Compiled]] = {}
        # The time left in this batch to compile constraints again, and the latest such work.
        self._recompile_left_s = limits.CONSTRAINTS_LOST_S_MAX
        self._is_first_batch = True
        self._recompiling: Future[Compiled] | None = None
        self._time = FollowTime()
        self.sandbox = Sandbox(
            set_up,
            lambda: set_up_input(vocabulary),
            Bounds(
                seconds=limits.CONSTRAINT_COMPILE_S_MAX,
                memory_bytes=limits.CONSTRAINT_COMPILE_BYTES_MAX + _HEAP_BYTES,
                stack_bytes=STACK_BYTES,
                growth_bytes_max=_GROWTH_BYTES_MAX,
                set_up_s=_SET_UP_S_MAX,
                wait_s=_TURNS_MAX * limits.CONSTRAINT_COMPILE_S_MAX,
            ),
        )

    def prepare(self, constraint: Constraint) -> None:
        """Try an untrusted constraint within limits, and compile it if it passes.

        Raises InvalidRequest, or QueueFull if the constraint is not the cause.
        """
        if self._cached(constraint) is None:
            self._compile_in_thread(constraint, self._try_in_sandbox(constraint)).result()

    def begin_batch(self) -> None:
        """Renew the time to compile constraints, unless earlier work is still running."""
        is_ready = self._recompiling is None or self._recompiling.done()
        if is_ready and not self._is_first_batch:
            self._recompile_left_s = limits.CONSTRAINT_AGAIN_S_MAX
        self._is_first_batch = False

    def compile(self, constraint: Constraint) -> Matcher:
        """A matcher at the start of a completion, for a constraint that was prepared.

        The constraint is compiled again if it left the cache, or was prepared in an earlier
        process. Raises QueueFull when the batch has no time left for that. Called on the thread
        that runs batches.
        """
        compiled = self._cached(constraint) or self._recompiled(constraint)
        return Matcher(compiled, len(self._vocabulary.pieces), self._time)

    def close(self) -> None:
        """End the process that tries constraints; idempotent."""
        self.sandbox.close()

    def _try_in_sandbox(self, constraint: Constraint) -> int:
        """Compile it in the process with limits. Returns the memory that it took."""
        # A model that cannot have constraints is refused before a process starts.
        self._ready_tokenizer()
        try:
            refused, taken_bytes = self.sandbox.run([constraint.kind.value, constraint.text])
        except TooLong:
            most = f"longer than {limits.CONSTRAINT_COMPILE_S_MAX:g} s"
            raise refusal(f"it took {most} to compile; make it simpler") from None
        except TooMuchMemory:
            most = f"more than {limits.CONSTRAINT_COMPILE_BYTES_MAX // 2**20} MiB of memory"
            raise refusal(f"it took {most} to compile; make it simpler") from None
        except (Busy, Gone) as error:
            raise QueueFull(
                f"Constraints cannot be compiled now ({error}); try again later.",
                limits.CONSTRAINT_COMPILE_S_MAX,
            ) from None
        except SandboxError as error:
            raise refusal(f"the compiler failed ({error}); make it simpler") from None
        if refused is not None:
            raise InvalidRequest(refused, "structured_outputs")
        return int(taken_bytes)

    def _recompiled(self, constraint: Constraint) -> Compiled:
        # Built before the clock starts: this is not the constraint's time.
        self._ready_tokenizer()
        if self._recompile_left_s <= 0.0:
            raise _dropped()
        started_at = perf_counter()
        self._recompiling = self._compile_in_thread(
            constraint, _BYTES_PER_CHARACTER * len(constraint.text)
        )
        try:
            return self._recompiling.result(self._recompile_left_s)
        except TimeoutError:
            raise _dropped() from None
        finally:
            self._recompile_left_s -= perf_counter() - started_at

    def _compile_in_thread(self, constraint: Constraint, memory_bytes: int) -> Future[Compiled]:
        """Compile it in a thread and cache it. Callers at the same time share one thread."""
        tokenizer = self._ready_tokenizer()
        with self._lock:
            done = self._compiling.get(constraint)
            if done is not None:
                return done
            done = self._compiling[constraint] = Future()
        done.add_done_callback(lambda _: self._compiling.pop(constraint))

        def work() -> None:
            try:
                state = compile_grammar(tokenizer, constraint)
                compiled = Compiled(state, memory_bytes)
                with self._lock:
                    self._compiled[constraint] = compiled
                    self._evict()
                done.set_result(compiled)
            except MemoryError:
                done.set_exception(_dropped(_NO_MEMORY))
            except BaseException as error:
                done.set_exception(error)

        try:
            self._start(threading.Thread(target=work, name="constraint-compile"))
        except RuntimeError:
            done.set_exception(_dropped(_NO_MEMORY))
        return done

    def _start(self, thread: threading.Thread) -> None:
        """Start a thread with a deep stack. Raises RuntimeError for lack of memory."""
        with self._starts:
            # This sets the size for every thread that starts from now on.
            usual = threading.stack_size(STACK_BYTES)
            try:
                thread.start()
            finally:
                threading.stack_size(usual)

    def _cached(self, constraint: Constraint) -> Compiled | None:
        with self._lock:
            compiled = self._compiled.get(constraint)
            if compiled is not None:
                self._compiled.move_to_end(constraint)
            return compiled

    def _evict(self) -> None:
        """Keep the cache within its limits, but keep the newest. Called with the lock held."""
        size = sum(each.memory_bytes for each in self._compiled.values())
        while len(self._compiled) > _CACHED_MAX or (
            len(self._compiled) > 1 and size > _CACHED_BYTES_MAX
        ):
            _, oldest = self._compiled.popitem(last=False)
            size -= oldest.memory_bytes

    def _ready_tokenizer(self) -> Any:  # Any: LLTokenizer
        with self._tokenizer_lock:
            if self._tokenizer is None:
                self._tokenizer = build_tokenizer(self._vocabulary, self._encode)
            return self._tokenizer


def _dropped(why: str = "") -> QueueFull:
    return QueueFull(
        f"The compiled constraint was dropped to make room for others{why}; try again later.",
        limits.CONSTRAINT_COMPILE_S_MAX,
    )
