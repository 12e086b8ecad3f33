"""Reads the text files of an exported folder, with size limits. Any thread.

Tests: tests/unit/backends/openvino/test_families.py.
"""

import json
from pathlib import Path
from typing import Any  # Any: whatever the files say

from jitney.errors import ModelError

CONFIG_BYTES_MAX = 1 << 20


def is_hub_folder(path: Path) -> bool:
    """Whether a folder has a model as the hub publishes it, and not one exported for OpenVINO."""
    return (path / "config.json").is_file() and not is_exported(path)


def is_exported(path: Path) -> bool:
    """Whether a folder has files of a model exported for OpenVINO, all of them or some."""
    return any(path.glob("openvino_model.*"))


def read_json(path: Path, bytes_max: int = CONFIG_BYTES_MAX) -> dict[str, Any]:
    """A JSON object of an exported folder. Raises ModelError."""
    try:
        value = json.loads(read_text(path, bytes_max))
    except (ValueError, RecursionError):
        raise ModelError(f"{path} is not JSON; export the model again.") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object; export the model again.")
    return value  # Any: whatever the file says


def read_text(path: Path, bytes_max: int) -> str:
    """A text file of an exported folder. Raises ModelError."""
    try:
        with path.open("rb") as file:
            content = file.read(bytes_max + 1)
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError)
        advice = "; a folder of a model has it, so fetch or export the model again"
        raise ModelError(
            f"{path} cannot be read: {error.strerror}{advice if is_missing else ''}."
        ) from None
    if len(content) > bytes_max:
        raise ModelError(f"{path} is larger than {bytes_max} bytes.")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ModelError(f"{path} is not text; export the model again.") from None
