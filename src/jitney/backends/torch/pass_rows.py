"""The rows of one pass, as tensors: `PassRows`, and `pack`, which makes them of spans.

Called by `backend` on the thread that runs batches.

Tests: tests/unit/backends/torch/test_pass_rows.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Span:
    """A part of one sequence that a pass computes."""

    tokens: Sequence[int]
    start: int
    """The position of the first token."""
    blocks: Sequence[int]
    """The blocks of the sequence, up to the last of these tokens."""
    wanted: int
    """The logits of so many rows are wanted: the last ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRows:
    """What a pass computes: r rows of s sequences, on the device of the model.

    The rows of a sequence are next to each other. The first `decodes` sequences have one row each.
    Rows after those of the last sequence only fill the pass up: nobody reads what they become.
    """

    tokens: Tensor  # [r]
    positions: Tensor  # [r]
    cells: Tensor  # [r]: where the keys and values of a row go; block * cells of a block + place
    blocks: Tensor  # [s, n]: the blocks of each sequence; the rest of a line is the spare block
    starts: Tensor  # [s]: the position of the first row
    counts: Tensor  # [s]: how many rows
    wanted: Tensor  # [l]: rows whose logits are wanted, in order
    decodes: int


def pack(
    spans: Sequence[Span],
    *,
    decodes: int,
    row_count: int,
    block_tokens: int,
    spare_block: int,
    device: torch.device,
) -> PassRows:
    """The rows of these spans, filled up to `row_count`. The first `decodes` have a token each."""
    tokens: list[int] = []
    positions: list[int] = []
    cells: list[int] = []
    wanted: list[int] = []
    for span in spans:
        end = span.start + len(span.tokens)
        tokens += span.tokens
        positions += range(span.start, end)
        cells += [
            span.blocks[at // block_tokens] * block_tokens + at % block_tokens
            for at in range(span.start, end)
        ]
        wanted += range(len(tokens) - span.wanted, len(tokens))
    missing = row_count - len(tokens)
    widest = max((len(span.blocks) for span in spans), default=0)

    def tensor(values: Sequence[int] | Sequence[list[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    return PassRows(
        tokens=tensor(tokens + [0] * missing),
        positions=tensor(positions + [0] * missing),
        cells=tensor(cells + [spare_block * block_tokens] * missing),
        blocks=tensor(
            [[*span.blocks, *[spare_block] * (widest - len(span.blocks))] for span in spans]
        ),
        starts=tensor([span.start for span in spans]),
        counts=tensor([len(span.tokens) for span in spans]),
        wanted=tensor(wanted),
        decodes=decodes,
    )
