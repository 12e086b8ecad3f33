"""Fetches the head of a model on the hub: what is known of it before its weights are fetched.

The head of a GGUF is a file as long as the model, so that it is read as the model is, with nothing
behind the names of its tensors; of one in parts it is such a file for each. The head of a folder is
its config.json, beside files of weights with nothing in them. On most file systems it takes no more
room than what was fetched: at most `BYTES_MAX`, whatever a file says of itself. Any thread.

Tests: tests/e2e/test_hub_heads.py.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from httpx2 import HTTPError
from huggingface_hub import errors, get_session
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

from jitney.errors import ModelError
from jitney.models.files import disk_errors
from jitney.models.folder import CONFIG_BYTES_MAX
from jitney.models.gguf import head_bytes
from jitney.models.hub_reference import CONFIG

FIRST_BYTES = 2**20
PART_BYTES = 2**16
"""What is fetched first of each later part, which has no vocabulary."""
BYTES_MAX = 16_000_000
"""For all files of a model. The largest vocabularies take 15 MB."""
READ_S_MAX = 60.0
HEAD_S_MAX = 3600.0
_PREFIX = "head-"
_WEIGHTS, _INDEX = ".safetensors", "model.safetensors.index.json"

Check = Callable[[Path, str], None]
"""Called with the head of a model and its name. Raises ModelError if it cannot run here."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a model on the hub."""

    name: str
    url: str
    size: int


class _NoHead(Exception):
    """Why there is no head, as a clause."""


@contextmanager
def folder_for_head(cache: Path) -> Iterator[Path]:
    """A folder until the end of the block, and none that killed processes left. Raises ModelError.

    Another process may remove those at the same time.
    """
    with disk_errors(f"{cache} could not be used"):
        cache.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=cache, prefix=_PREFIX)
        made_before = Path(folder.name).stat().st_mtime - HEAD_S_MAX
        for left in cache.glob(f"{_PREFIX}*"):
            with suppress(FileNotFoundError):
                if left.stat().st_mtime < made_before:
                    shutil.rmtree(left, ignore_errors=True)
    with folder as name:
        yield Path(name)


def fetch_head(files: Sequence[RemoteFile], folder: Path) -> str | None:
    """Write the head of the model with these files into the folder. Returns why there is none, as a
    clause. Raises an error of the hub's library for a model that is gated or gone."""
    try:
        if files[0].name == CONFIG:
            _fetch_config(files, folder)
        else:
            _fetch_headers(files, folder)
    except _NoHead as error:
        return str(error)
    except errors.HfHubHTTPError as error:
        if error.response.status_code in (401, 403, 404):
            raise
        return f"the hub answers with status {error.response.status_code}"
    except (HTTPError, OSError):
        return "its first bytes did not arrive"
    return None


def _fetch_config(files: Sequence[RemoteFile], folder: Path) -> None:
    """The configuration, and empty weights under the names of an index of our own."""
    config, *others = files
    if config.size > CONFIG_BYTES_MAX:
        raise _NoHead(f"its {CONFIG} has more than {CONFIG_BYTES_MAX} bytes")
    if _append(config, folder / CONFIG, 0, config.size) < config.size:
        raise _NoHead(f"its {CONFIG} did not arrive")
    weights = [each for each in others if each.name.endswith(_WEIGHTS)]
    for each in weights:
        _extend(folder / each.name, each.size)
    if len(weights) > 1:
        listed = {"weight_map": {each.name: each.name for each in weights}}
        (folder / _INDEX).write_text(json.dumps(listed), encoding="utf-8")


def _fetch_headers(files: Sequence[RemoteFile], folder: Path) -> None:
    bytes_left = BYTES_MAX
    for number, file in enumerate(files):
        target = folder / Path(file.name).name
        first = PART_BYTES if number else FIRST_BYTES
        bytes_left -= _fetch_header(file, target, first, bytes_left)


def _fetch_header(file: RemoteFile, target: Path, first: int, bytes_max: int) -> int:
    """Fetch the header of a GGUF, in at most so many bytes; how many came."""
    most, fetched, wanted = min(bytes_max, file.size), 0, first
    while fetched < most:
        wanted = min(wanted, most)
        fetched += _append(file, target, fetched, wanted)
        _extend(target, file.size)
        # Behind what was fetched stand zeros, which may read as empty texts. And the header may be
        # cut in the middle.
        with suppress(ModelError):
            if head_bytes(target) <= fetched:
                return fetched
        if fetched < wanted:
            raise _NoHead("its first bytes did not arrive")
        wanted *= 4
    if fetched == file.size:
        raise _NoHead(f"{target.name} is not a whole GGUF")
    raise _NoHead(f"its headers take more than {BYTES_MAX // 10**6} MB")


def _extend(target: Path, size: int) -> None:
    with target.open("ab") as file:
        file.truncate(size)


def _append(remote: RemoteFile, target: Path, start: int, end: int) -> int:
    """Fetch these bytes of a file, and write them to their place; how many came."""
    headers = {
        **build_hf_headers(),
        "Accept-Encoding": "identity",
        "Range": f"bytes={start}-{end - 1}",
    }
    count = 0
    target.touch()
    with (
        target.open("r+b") as file,
        get_session().stream("GET", remote.url, headers=headers, timeout=READ_S_MAX) as answer,
    ):
        hf_raise_for_status(answer)
        # The hub does not cut small files of text.
        is_wanted_whole = (start, end) == (0, remote.size)
        if answer.status_code != 206 and not is_wanted_whole:
            return 0  # it would send all of it
        file.seek(start)
        for piece in answer.iter_bytes():
            file.write(piece[: end - start - count])
            count += min(len(piece), end - start - count)
            if count == end - start:
                break
    return count
