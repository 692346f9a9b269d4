"""Refuses every connection and look-up that leaves this machine."""

from __future__ import annotations

import ipaddress
import socket
import sys

ADDRESSED = {"socket.connect", "socket.sendto", "socket.sendmsg"}
LOOKED_UP = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"}
LOCAL_NAMES = {None, "", "localhost", socket.gethostname()}


class NetworkBlocked(RuntimeError):
    """A test or a lesson tried to reach another machine. Not an OSError, so that no retry swallows it."""


def hook(event: str, args: tuple) -> None:
    """Audit hook: Python asks it before each of these calls, whoever makes them."""
    if event in ADDRESSED:
        sock, address = args
        if address is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            require_local(address[0], look_up=False)
    elif event in LOOKED_UP:
        require_local(args[0], look_up=True)


def require_local(host: str | bytes | None, *, look_up: bool) -> None:
    name = host.decode("ascii") if isinstance(host, bytes) else host
    if name in LOCAL_NAMES:
        return
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        address = None
    # Looking up a number asks nobody: servers do it for 0.0.0.0.
    if address is None or not (look_up or address.is_loopback):
        raise NetworkBlocked(f"{name}: only loopback may be reached; the course works without a network")


def install() -> None:
    sys.addaudithook(hook)
