"""How kernels are launched: those on a GPU may start while the one before them ends.

A kernel that was launched so waits (`gdc_wait`) before it reads what an earlier kernel wrote. All
of ours do that first, except that a product asks for its weights before. Each then lets the next
kernel start at once. Triton's interpreter knows neither, so kernels are told by the constant
`OVERLAPS`.

Tests: tests/unit/backends/torch/kernels.
"""

from typing import Any  # Any: options of a launch

import torch

OVERLAP_CAPABILITY = (9, 0)
"""The first GPUs that can start a kernel before the last one has ended."""


def launch_options(tensor: torch.Tensor) -> dict[str, Any]:
    """Options for every launch on the device of this tensor."""
    overlaps = tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= (
        OVERLAP_CAPABILITY
    )
    return {"OVERLAPS": True, "launch_pdl": True} if overlaps else {"OVERLAPS": False}
