"""Constraints: compiled ahead of use, kept, and followed token by token.

`ConstraintCompiler` may be called from any thread; a `Matcher` belongs to the thread that runs
batches. A constraint is text from a stranger: it is compiled in a process with limits first, and
only what passed there is compiled here, so that nothing is left at work behind a refusal. What
cannot be enforced to the letter is refused, never loosened.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitney.core import limits
from jitney.core.backend import Vocabulary
from jitney.core.params import Constraint
from jitney.errors import InvalidRequest, QueueFull
from jitney.guarded import Bounds, Busy, Gone, Guarded, GuardedError, TooLong, TooMuchMemory
from jitney.sampling.grammar import (
    STACK_BYTES,
    build_tokenizer,
    compile_grammar,
    reason_in,
    refusal,
    set_up,
    to_set_up,
)

_CACHED_MAX = 256
_CACHED_CHARACTERS_MAX = 1_000_000
"""Compiled constraints kept, the least recently used leaving first. One takes up to a hundred times
the memory of its text."""
_HEAP_BYTES = 2**27
"""Addresses that a thread sets aside for its memory, used or not."""
_TURNS_MAX = 10
"""A caller waits for the constraints of so many others that take as long as they may."""


class Matcher:
    """One completion's place in its constraint. Rebuilt from the tokens alone if it is lost."""

    def __init__(self, state: Any, vocabulary_size: int) -> None:  # Any: an LLMatcher
        self._state = state
        self._vocabulary_size = vocabulary_size
        self._consumed = 0

    def advance_to(self, completion_tokens: Sequence[int]) -> None:
        """Take in what is new of the completion; start over if some of it was taken back."""
        if len(completion_tokens) < self._consumed:
            self._state.reset()
            self._consumed = 0
        fresh = list(completion_tokens[self._consumed :])
        self._consumed = len(completion_tokens)
        if fresh and not self._state.consume_tokens(fresh):
            raise refusal(f"the completion left it ({reason_in(self._state.get_error())})")

    def mask(self) -> NDArray[np.bool_]:
        """True for each token that may follow; the end tokens too when the text may end here."""
        bits = np.frombuffer(self._state.compute_bitmask(), dtype=np.uint8)
        if self._state.is_error():
            raise refusal(f"it cannot go on ({reason_in(self._state.get_error())})")
        return np.unpackbits(bits, count=self._vocabulary_size, bitorder="little").view(np.bool_)


class ConstraintCompiler:
    """Compiles constraints for one vocabulary and keeps the latest ones."""

    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int]]) -> None:
        self._vocabulary = vocabulary
        self._encode = encode
        self._lock = threading.Lock()
        self._tokenizer_lock = threading.Lock()
        self._starts = threading.Lock()
        self._tokenizer: Any = None  # Any: an LLTokenizer, built when first needed (a second)
        self._compiled: OrderedDict[Constraint, Any] = OrderedDict()  # Any: LLMatcher
        self._guarded = Guarded(
            set_up,
            lambda: to_set_up(vocabulary),
            Bounds(
                seconds=limits.CONSTRAINT_COMPILE_S_MAX,
                memory_bytes=limits.CONSTRAINT_COMPILE_BYTES_MAX + _HEAP_BYTES,
                stack_bytes=STACK_BYTES,
                wait_s=_TURNS_MAX * limits.CONSTRAINT_COMPILE_S_MAX,
            ),
        )

    @property
    def guarded(self) -> Guarded:
        """The process in which constraints are tried."""
        return self._guarded

    def prepare(self, constraint: Constraint) -> None:
        """Try a stranger's constraint within limits, and compile it if it passes.

        Raises InvalidRequest, or QueueFull when it is not the constraint's fault.
        """
        if self._cached(constraint) is None:
            self._check(constraint)
            self.compile(constraint)

    def compile(self, constraint: Constraint) -> Matcher:
        """A matcher at the start of a completion, for a constraint that was prepared.

        It is compiled here if it is not kept any more, or was prepared in an earlier process.
        """
        state = self._cached(constraint)
        if state is None:
            tokenizer = self._built_tokenizer()
            try:
                state = self._on_deep_stack(lambda: compile_grammar(tokenizer, constraint))
            except (RuntimeError, MemoryError):
                raise QueueFull(
                    "there is no memory to compile a constraint; try again later.",
                    limits.CONSTRAINT_COMPILE_S_MAX,
                ) from None
            with self._lock:
                self._compiled[constraint] = state
                self._forget()
        return Matcher(state.deep_copy(), len(self._vocabulary.pieces))

    def _on_deep_stack(self, work: Callable[[], Any]) -> Any:  # Any: LLMatcher
        """Run something where it may go down deep. Raises RuntimeError for want of memory."""
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        thread = threading.Thread(target=run, name="constraint-compile")
        with self._starts:
            # The size is that of all threads to come, whoever starts them.
            usual = threading.stack_size(STACK_BYTES)
            try:
                thread.start()
            finally:
                threading.stack_size(usual)
        thread.join()
        return done.result()

    def close(self) -> None:
        """End the process in which constraints are tried; idempotent."""
        self._guarded.close()

    def _check(self, constraint: Constraint) -> None:
        limit_s = limits.CONSTRAINT_COMPILE_S_MAX
        # A model that takes no constraint says so before there is a process.
        self._built_tokenizer()
        try:
            refused = self._guarded.run([constraint.kind.value, constraint.text])
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
                "other constraints are being compiled; try again later.", limit_s
            ) from None
        except Gone as error:
            raise QueueFull(
                f"constraints cannot be compiled now ({error}); try again later.", limit_s
            ) from None
        except GuardedError as error:
            raise refusal(f"the compiler failed ({error}); make it simpler") from None
        if refused is not None:
            raise InvalidRequest(refused, "structured_outputs")

    def _cached(self, constraint: Constraint) -> Any:  # Any: LLMatcher
        with self._lock:
            state = self._compiled.get(constraint)
            if state is not None:
                self._compiled.move_to_end(constraint)
            return state

    def _forget(self) -> None:
        """Keep to the bounds; the newest one stays whatever its size. Called with the lock held."""
        size = sum(len(constraint.text) for constraint in self._compiled)
        while len(self._compiled) > _CACHED_MAX or (
            len(self._compiled) > 1 and size > _CACHED_CHARACTERS_MAX
        ):
            oldest, _ = self._compiled.popitem(last=False)
            size -= len(oldest.text)

    def _built_tokenizer(self) -> Any:  # Any: LLTokenizer
        with self._tokenizer_lock:
            if self._tokenizer is None:
                self._tokenizer = build_tokenizer(self._vocabulary, self._encode)
            return self._tokenizer
