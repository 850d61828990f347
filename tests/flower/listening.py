"""Where a process and its descendants listen, as Linux tells in /proc."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

LISTEN, UNCONNECTED = "0A", "07"  # states of a TCP socket that listens, and of a UDP socket that takes from anyone
SOCKETS = {"tcp": LISTEN, "tcp6": LISTEN, "udp": UNCONNECTED, "udp6": UNCONNECTED}


class Listener(NamedTuple):
    command: str
    host: str
    port: int

    @property
    def local(self) -> bool:
        """On the loopback alone. 0.0.0.0 and :: are every interface."""
        address = ip_address(self.host)
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (mapped or address).is_loopback


def listeners(root: int) -> list[Listener]:
    open_sockets = {
        link.removeprefix("socket:[").removesuffix("]"): command_of(pid) for pid in family(root) for link in links(pid)
    }
    found = []
    for kind, state in SOCKETS.items():
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == state and fields[9] in open_sockets:
                host, port = fields[1].split(":")
                found.append(Listener(open_sockets[fields[9]], address_of(host), int(port, 16)))
    return found


def address_of(digits: str) -> str:
    """Words of four bytes, each as this machine has them."""
    words = [bytes.fromhex(digits[k : k + 8])[::-1] for k in range(0, len(digits), 8)]
    return str(ip_address(b"".join(words)))


def family(root: int) -> Iterator[int]:
    yield root
    for task in Path(f"/proc/{root}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from family(int(child))


def links(pid: int) -> Iterator[str]:
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            yield target


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:100]
