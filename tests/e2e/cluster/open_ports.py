"""Where the processes of a tree listen, and what they were started with: from /proc."""

import contextlib
import ipaddress
from pathlib import Path

from tests.e2e.server.processes import PROC, children

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
LISTENS = "0A"


def tree(pid: int) -> list[int]:
    """A process and all that it started, directly or not."""
    return [pid, *(each for child in children(pid) for each in tree(child))]


def listening(pids: list[int]) -> list[tuple[Address, int]]:
    """The addresses and ports on which these processes accept connections."""
    own = {link for pid in pids for link in _links(PROC / str(pid) / "fd")}
    found = []
    for table in ("tcp", "tcp6"):
        for line in (PROC / "net" / table).read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTENS and f"socket:[{inode}]" in own:
                address, _, port = local.partition(":")
                found.append((_address(address), int(port, 16)))
    return found


def started_with(pid: int, name: str) -> list[str]:
    """What a process got at its start: the parts of its `cmdline` or of its `environ`."""
    with contextlib.suppress(OSError):  # it has ended since
        return (PROC / str(pid) / name).read_text(errors="replace").split("\0")
    return []


def _links(folder: Path) -> list[str]:
    found = []
    with contextlib.suppress(OSError):  # it has ended since
        for each in folder.iterdir():
            with contextlib.suppress(OSError):
                found.append(str(each.readlink()))
    return found


def _address(text: str) -> Address:
    """An address as the kernel writes it: words of four bytes, each as the machine has them."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    return getattr(address, "ipv4_mapped", None) or address
