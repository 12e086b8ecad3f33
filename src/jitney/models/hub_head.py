"""Fetches the head of a GGUF on the hub: what is known of a model before its weights are fetched.

The head is a file as long as the model, so that it is read as the model is, with nothing behind the
names of its tensors. On most file systems it takes no more room than what was fetched. Any thread.

Tests: tests/e2e/test_hub_mistakes.py.
"""

from collections.abc import Callable
from pathlib import Path

from httpx2 import HTTPError
from huggingface_hub import errors, get_session
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

from jitney.errors import ModelError
from jitney.models.gguf import head_bytes

FIRST_BYTES = 2**20
BYTES_MAX = 2**24
"""The largest vocabularies take 15 MB."""
READ_S_MAX = 60.0

Check = Callable[[Path, str], None]
"""Called with the head of a model and its name. Raises ModelError if it cannot run here."""


def fetch_head(url: str, size: int, target: Path) -> bool:
    """Write the head of the model at this address. False where that fails: then the whole file says
    what is wrong. Raises an error of the hub's library for a model that is gated or gone."""
    try:
        return _fetch_head(url, size, target)
    except errors.HfHubHTTPError as error:
        if error.response.status_code in (401, 403, 404):
            raise
        return False
    except (HTTPError, OSError):
        return False


def _fetch_head(url: str, size: int, target: Path) -> bool:
    fetched, wanted = 0, FIRST_BYTES
    while wanted <= BYTES_MAX:
        fetched += _append(url, target, fetched, min(wanted, size))
        with target.open("r+b") as file:
            file.truncate(size)
        try:
            # Behind what was fetched stand zeros, which may read as empty texts.
            if head_bytes(target) <= fetched:
                return True
        except ModelError:
            pass  # it may be cut in the middle
        if fetched < wanted:
            return False
        wanted *= 4
    return False


def _append(url: str, target: Path, start: int, end: int) -> int:
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
        get_session().stream("GET", url, headers=headers, timeout=READ_S_MAX) as answer,
    ):
        hf_raise_for_status(answer)
        if answer.status_code != 206:
            return 0  # it would send all of it
        file.seek(start)
        for piece in answer.iter_bytes():
            file.write(piece[: end - start - count])
            count += min(len(piece), end - start - count)
            if count == end - start:
                break
    return count
