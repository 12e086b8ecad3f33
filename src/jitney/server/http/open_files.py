"""The limit on open files, and the number of connections that it allows.

Every connection is an open file, and shells and service managers often allow a process 1,024.
`allow_files` is called once, at the start; `connections_max` may be called at any time.
"""

import logging
import resource

from jitney.server import limits

_log = logging.getLogger("jitney.server")


def allow_files() -> None:
    """Raise this process's own limit to what the connections need, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = limits.CONNECTIONS_MAX + limits.FILES_KEPT
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    # The real bound may be lower than the reported one: macOS reports none.
    while soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            _log.debug("The limit on open files cannot be %d", wanted)
            wanted //= 2
        else:
            break
    if connections_max() < limits.CONNECTIONS_MAX:
        _log.warning(
            "At most %d connections at once: the limit on open files allows no more",
            connections_max(),
        )


def connections_max() -> int:
    """Connections at once, idle ones included, under the limit on open files as it is now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits.CONNECTIONS_MAX
    # Under a tiny limit, half of the files are for connections.
    return max(1, min(limits.CONNECTIONS_MAX, max(soft - limits.FILES_KEPT, soft // 2)))
