"""A paged model in OpenVINO: loads a converted folder, and runs one forward pass per call.

All code for the library's graphs at run time is here, and the one private name that it needs. A
`PagedModel` belongs to the thread that runs batches. Its inputs are packed: the tokens of all
sequences one after the other, with tables that say which blocks each sequence has.

Tests: tests/conformance/test_sampling.py and tests/e2e/test_openvino_folder.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import openvino.opset13 as operations
from openvino._offline_transformations import paged_attention_transformation

from jitney.backends.machine.cores import allowed_cores
from jitney.errors import BackendFailed, ConfigError, ModelError

ROWS = "rows"
"""The input with the rows whose logits are wanted."""

Inputs = Mapping[str, npt.NDArray[Any]]
"""The inputs of one forward pass, by the library's names. `*_begins` have an element per sequence,
and one more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphShape:
    """How the library compiles the model."""

    threads: int
    inference_precision: str = "f32"
    kv_precision: str = "f32"
    activation_group: int = 0
    """How many activations are rounded to 8 bits together; 0 means no rounding."""


def _zeros(dimensions: list[int], dtype: str) -> npt.NDArray[np.generic]:
    try:
        return np.zeros(dimensions, dtype)
    except MemoryError:
        blocks = dimensions[0]
        raise ModelError(
            f"kv_tokens: there is no memory for {blocks} blocks of keys and values; lower it."
        ) from None


class PagedModel:
    """A compiled model and the memory of its keys and values."""

    def __init__(self, folder: Path, shape: GraphShape, blocks: int) -> None:
        self._compiled = _compile(_read(folder), shape)
        self._request = self._compiled.create_infer_request()
        self.caches: dict[str, npt.NDArray[np.uint8]] = {}
        """The bytes of each layer's keys or values, with a row per block."""
        for port in self._compiled.inputs:
            name, kind = port.any_name, port.element_type
            if name.startswith(("key_cache.", "value_cache.")):
                dimensions = [blocks, *(each.get_length() for each in list(port.partial_shape)[1:])]
                # Numbers of the right width: numpy lacks some of the library's types.
                cache = _zeros(dimensions, f"u{kind.size}")
                self._request.set_tensor(name, ov.Tensor(cache, dimensions, kind))
                self.caches[name] = cache.reshape(blocks, -1).view(np.uint8)

    @property
    def block_bytes(self) -> int:
        """The memory of one block over all layers."""
        return sum(cache.shape[1] for cache in self.caches.values())

    @property
    def vocabulary_count(self) -> int:
        """Columns of the logits."""
        return int(self._compiled.output(0).partial_shape[-1].get_length())

    def forward(self, inputs: Inputs) -> npt.NDArray[np.float32]:
        """The logits of the wanted rows, in order. The next call overwrites them."""
        request = self._request
        # The tensors share the arrays' memory, and the arrays live until the pass is over.
        for name, array in inputs.items():
            request.set_tensor(name, ov.Tensor(array, shared_memory=True))
        try:
            request.infer()
        except RuntimeError as error:
            raise BackendFailed(f"OpenVINO failed: {_reason(error)}.") from error
        logits: npt.NDArray[np.float32] = request.get_output_tensor(0).data
        return logits.reshape(len(inputs[ROWS]), -1)


def _read(folder: Path) -> ov.Model:
    try:
        model = ov.Core().read_model(folder / "openvino_model.xml")
        paged_attention_transformation(model, False, False)
        _gather_rows(model)
    except RuntimeError as error:
        raise ModelError(
            f"{folder} has no model that OpenVINO can page ({_reason(error)}); "
            "convert it again, or use the llama.cpp backend."
        ) from error
    return model


def _gather_rows(model: ov.Model) -> None:
    """Compute logits for the wanted rows only: a prompt's other tokens need none."""
    head = model.get_results()[0].input_value(0).get_node()
    while head.get_type_name() in ("Convert", "Reshape", "Squeeze", "Unsqueeze"):
        head = head.input_value(0).get_node()
    if head.get_type_name() != "MatMul":
        raise RuntimeError(f"its output comes from a {head.get_type_name()}")
    rows = operations.parameter([-1], np.int64, name=ROWS)
    rows.output(0).get_tensor().set_names({ROWS})
    gathered = operations.gather(head.input_value(0), rows, operations.constant(0, np.int64))
    head.input(0).replace_source_output(gathered.output(0))
    model.add_parameters([rows])
    model.validate_nodes_and_infer_types()


def _compile(model: ov.Model, shape: GraphShape) -> ov.CompiledModel:
    properties: dict[str, Any] = {
        # The library would take every physical core, whatever the quota is.
        "INFERENCE_NUM_THREADS": shape.threads,
        # Threads are pinned where they have all cores. Threads that are not pinned sometimes share
        # one core, with another idle, when a thread of HTTP wakes up. With fewer threads than
        # cores they are not pinned: two servers would pin theirs to the same cores.
        "ENABLE_CPU_PINNING": shape.threads >= allowed_cores(),
        # One batch runs at a time, with all threads.
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "KV_CACHE_PRECISION": shape.kv_precision,
        "INFERENCE_PRECISION_HINT": shape.inference_precision,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": shape.activation_group,
    }
    try:
        compiled = ov.Core().compile_model(model, "CPU", properties)
    except RuntimeError as error:
        raise ModelError(f"OpenVINO cannot compile the model: {_reason(error)}.") from error
    # Where the processor lacks a type, the library takes another one without an error.
    taken = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if taken != shape.inference_precision:
        raise ConfigError(
            f"dtype is {shape.inference_precision}, and this processor computes with {taken}; "
            "leave dtype out."
        )
    return compiled


def _reason(error: RuntimeError) -> str:
    """The last line of the library's error. Lines before it name places in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else "no reason given").rstrip(".")
