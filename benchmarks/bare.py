"""The floor: the engine's own batches, replayed through `llama_decode` with nothing around it.

Arrays are filled before the clock starts; what is timed is memory operations and forward passes.
The engine can only approach this.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from jitney.backends.llamacpp.bindings import Context, LlamaCppSettings, Model
from jitney.backends.machine.cores import usable_cores
from jitney.core.backend import Backend, Segment, Traits, Vocabulary
from jitney.core.batch import Batch, Copy, MemoryOperation, Outcome, Release, Truncate
from jitney.core.params import Constraint


class Recorder:
    """A backend that writes down the batches it passes on."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.batches: list[Batch] = []

    @property
    def traits(self) -> Traits:
        """Those of the backend."""
        return self._backend.traits

    @property
    def vocabulary(self) -> Vocabulary:
        """That of the backend."""
        return self._backend.vocabulary

    def execute(self, batch: Batch) -> Outcome:
        """Write the batch down and pass it on."""
        self.batches.append(batch)
        return self._backend.execute(batch)

    def reset(self) -> None:
        """Pass it on."""
        self._backend.reset()

    def check(self) -> None:
        """Pass it on."""
        self._backend.check()

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        """Pass it on."""
        return self._backend.encode(texts)

    def prepare(self, constraint: Constraint) -> None:
        """Pass it on."""
        self._backend.prepare(constraint)

    def close(self) -> None:
        """Pass it on."""
        self._backend.close()


@dataclass(frozen=True, slots=True)
class Pass:
    """One batch, ready to be fed."""

    operations: tuple[MemoryOperation, ...]
    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    slots: npt.NDArray[np.int32]
    wanted: npt.NDArray[np.int8]


class BareLoop:
    """A context of its own, of the same shape as the engine's."""

    def __init__(self, path: Path, *, slots: int, slot_tokens: int) -> None:
        model = Model(path, gpu_layers=0, extra_kernels=True)
        settings = LlamaCppSettings(
            model=str(path),
            kv_tokens=slots * slot_tokens,
            slots=slots,
            max_num_batched_tokens=2048,
            threads=usable_cores(),
            flash_attention=False,
            slot_tokens_max=slot_tokens,
        )
        self._context = Context(model, settings)

    def run(self, batches: list[Batch]) -> float:
        """Seconds for all batches."""
        self._context.clear()
        passes = [_pass(batch) for batch in batches]
        started = time.perf_counter()
        for each in passes:
            for operation in each.operations:
                self._operate(operation)
            count = len(each.tokens)
            self._context.tokens[:count] = each.tokens
            self._context.positions[:count] = each.positions
            self._context.slots[:count] = each.slots
            self._context.needs_logits[:count] = each.wanted
            status = self._context.decode(count)
            if status != 0:
                raise RuntimeError(f"llama_decode answered {status}")
        return time.perf_counter() - started

    def close(self) -> None:
        """Give the memory back."""
        self._context.close()

    def _operate(self, operation: MemoryOperation) -> None:
        if isinstance(operation, Copy):
            self._context.copy(operation.source, operation.target, operation.length)
        elif isinstance(operation, Truncate):
            self._context.truncate(operation.slot, operation.length)
        elif isinstance(operation, Release):
            self._context.truncate(operation.slot, 0)


def _pass(batch: Batch) -> Pass:
    # The library computes neighbouring slots together, so they are fed in order.
    entries = sorted(batch.entries, key=lambda entry: entry.slot)
    tokens = [token for entry in entries for token in entry.tokens]
    wanted = np.zeros(len(tokens), np.int8)
    end = 0
    for entry in entries:
        end += entry.length
        wanted[end - 1] = entry.wants_token
    return Pass(
        batch.operations,
        np.array(tokens, np.int32),
        np.array([p for entry in entries for p in range(entry.start, entry.end)], np.int32),
        np.repeat([e.slot for e in entries], [e.length for e in entries]).astype(np.int32),
        wanted,
    )
