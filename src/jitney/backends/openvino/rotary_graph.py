"""Puts a rotary embedding into a converted graph. Called by the child of `convert` only.

The library's reader computes the angles once for all layers, from one constant. Each layer turns
its queries and keys with them. This module replaces the constant, and changes layers where needed.

Tests: tests/e2e/test_families.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as operations

from jitney.backends.openvino.rotary import Rotary

_CORRECTED = "corrected.xml"

Node = Any  # Any: the library's nodes have no types
Port = Any  # Any: nor have their inputs and outputs


def correct_rotary(path: Path, rotary: Rotary) -> None:
    """Write a converted model again with this rotary embedding. Raises RuntimeError."""
    corrected = path.with_name(_CORRECTED)
    model = ov.Core().read_model(path)
    put_rotary(model, rotary)
    ov.save_model(model, corrected, compress_to_fp16=False)
    # The old model keeps its weights mapped into memory as long as it lives.
    del model
    for suffix in (".bin", ".xml"):
        corrected.with_suffix(suffix).replace(path.with_suffix(suffix))


def put_rotary(model: ov.Model, rotary: Rotary) -> None:
    """Correct the graph in place. Raises RuntimeError where the graph is not as expected."""
    ordered = model.get_ordered_ops()
    turns = [node for node in ordered if node.get_type_name() == "Cos"]
    layers = sum(node.get_type_name() == "ScaledDotProductAttention" for node in ordered)
    if len(turns) != 1:
        raise RuntimeError(f"its graph has {len(turns)} rotary embeddings")
    _replace_frequencies(turns[0], rotary)
    places = {node.get_friendly_name(): place for place, node in enumerate(ordered)}
    rotations = [
        (product, _only_consumer(product))
        for unsqueezed in _consumers(turns[0])
        for product in _consumers(unsqueezed)
    ]
    # Every layer needs the one before, so the order of computation is the order of layers.
    rotations.sort(key=lambda pair: places[pair[1].get_friendly_name()])
    if len(rotations) != 2 * layers or any(
        added.get_type_name() != "Add" for _, added in rotations
    ):
        raise RuntimeError(f"its graph has {len(rotations)} rotations in {layers} layers")
    for place, (product, added) in enumerate(rotations):
        if place // 2 in rotary.bare_layers:
            _redirect(added.output(0), product.input_value(0))
        elif not np.all(rotary.gains == 1.0):
            _enlarge(added.output(0), rotary)
    model.validate_nodes_and_infer_types()


def _replace_frequencies(turn: Node, rotary: Rotary) -> None:
    node = turn
    while node.input_value(0).get_node().get_type_name() not in ("Constant", "Convert"):
        node = node.input_value(0).get_node()
    shape = list(node.input_value(0).get_shape())
    if shape != [1, len(rotary.frequencies), 1]:
        raise RuntimeError(f"its graph has rotary frequencies of shape {shape}")
    frequencies = operations.constant(rotary.frequencies.reshape(shape), np.float32)
    node.input(0).replace_source_output(frequencies.output(0))


def _enlarge(port: Port, rotary: Rotary) -> None:
    """Multiply by the gains. Each gain is for a pair, which is in both halves of a head."""
    readers = list(port.get_target_inputs())
    gains = operations.constant(np.tile(rotary.gains, 2).reshape(1, 1, 1, -1), np.float32)
    enlarged = operations.multiply(port, gains)
    for reader in readers:
        reader.replace_source_output(enlarged.output(0))


def _redirect(port: Port, other: Port) -> None:
    for reader in list(port.get_target_inputs()):
        reader.replace_source_output(other)


def _consumers(node: Node) -> list[Node]:
    return [reader.get_node() for reader in node.output(0).get_target_inputs()]


def _only_consumer(node: Node) -> Node:
    consumers = _consumers(node)
    if len(consumers) != 1:
        raise RuntimeError(f"its graph uses a part of a rotation {len(consumers)} times")
    return consumers[0]
