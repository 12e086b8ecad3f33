"""`jitney models prune`: removes what is of no use, and says how much that was. Main thread."""

import sys
from contextlib import suppress

from jitney.backends.trials import probes
from jitney.cli.flags import Given, resolved
from jitney.cli.models import bytes_text
from jitney.cli.verbs_models import PruneOptions
from jitney.errors import MissingDependency
from jitney.loading import CONVERSIONS, hub_module
from jitney.models import inventory
from jitney.models.files import disk_errors


def call(options: PruneOptions, given: Given) -> int:
    """Carry out the command; the exit code."""
    del options
    cache = resolved(given).settings.cache_dir
    with disk_errors(f"{cache} could not be pruned"):
        freed = 0
        with suppress(MissingDependency):
            for path in hub_module("hub_cache").beginnings():
                lock = cache / "hub" / f"{path.name.partition('.')[0]}.lock"
                lock.parent.mkdir(parents=True, exist_ok=True)
                freed += inventory.remove_if_free(lock, path)
        freed += inventory.prune(cache, CONVERSIONS) + probes.forget(cache)
    exactly = f" ({freed} bytes)" if freed >= 2**10 else ""
    sys.stdout.write(f"{bytes_text(freed)} freed{exactly}\n")
    return 0
