"""Adds the library of a backend: for `--add`, and at a start that cannot do without it.

At a start it asks first, on a terminal. Without a terminal nothing is fetched, and the error of the
start names the command that adds the library. Main thread.
"""

import sys

from jitney.backends.kinds import all_kinds
from jitney.cli.terminal import agrees
from jitney.config import Settings
from jitney.errors import ConfigError, SetupError
from jitney.loading import missing_backend
from jitney.text.printable import printable

SIZES = "about 10 MB; where there is no npm, 60 MB more for the moment"


def add_if_missing(settings: Settings, *, yes: bool = False) -> None:
    """Add what these settings cannot do without, if the user agrees. The model is located."""
    kind = missing_backend(settings)
    if kind is None:
        return
    question = (
        f"{kind.title} is not installed, and nothing else here can run this. Add it to this "
        f"environment, prebuilt ({SIZES})?"
    )
    if yes or (sys.stdin.isatty() and sys.stderr.isatty() and agrees(question)):
        add_backend(kind.name, settings)


def add_backend(name: str, settings: Settings) -> None:
    """Install the library of a backend in this environment. Raises a SetupError."""
    named, _, gpu = name.partition("-")
    known = {kind.name: kind for kind in all_kinds() if kind.add is not None}
    if named not in known:
        others = [each for each in all_kinds() if each.extra and each.name not in known]
        extras = "; ".join(f"{each.title} comes with the extra `{each.extra}`" for each in others)
        raise ConfigError(
            f"--add takes {' or '.join(known)}, and got {printable(name)!r}; {extras} of jitney."
        )
    kind = known[named]
    assert kind.add is not None, "The kind can be added"
    sys.stderr.write(f"jitney: adding {kind.title}, prebuilt\n")
    try:
        version = kind.add(settings.cache_dir, gpu)
    except SetupError as error:
        raise SetupError(
            f"{kind.title} could not be added: {str(error).rstrip('.')}; the extra `{kind.extra}` "
            "of jitney compiles it instead."
        ) from error
    sys.stderr.write(f"jitney: {kind.title} {version} was added\n")
