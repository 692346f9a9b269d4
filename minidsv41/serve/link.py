"""How the bytes of a hand-over travel: the interface, a stream inside one process, and torch.distributed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Condition
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from minidsv41.serve.manifest import HandoffError


class LinkError(HandoffError):
    """The peer is gone, or is silent for too long, or both sides no longer agree where in the stream they are.

    The link is of no use until it is connected again.
    """


class Link(Protocol):
    """Bytes to and from one peer, in order. Only uint8 tensors travel, never objects."""

    def send(self, data: Tensor) -> None:
        """Deliver data [n] uint8, n > 0. Raises LinkError."""

    def receive(self, size: int) -> Tensor:
        """The next `size` > 0 bytes [size] uint8. Raises LinkError."""


class Stream:
    """Bytes in one direction between two threads."""

    def __init__(self) -> None:
        self.waiting, self.closed, self.changed = bytearray(), False, Condition()

    def put(self, data: bytes) -> None:
        with self.changed:
            self.waiting += data
            self.changed.notify()

    def get(self, size: int, timeout: float) -> bytearray:
        with self.changed:
            self.changed.wait_for(lambda: self.closed or len(self.waiting) >= size, timeout)
            if (there := len(self.waiting)) < size:
                why = "closed the link" if self.closed else f"sent nothing more for {timeout} s"
                raise LinkError(f"the peer {why} after {there} of {size} bytes")
            data, self.waiting = self.waiting[:size], self.waiting[size:]
            return data

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify()


class PipeEnd:
    """One end of a link inside this process."""

    def __init__(self, inward: Stream, outward: Stream, timeout: float) -> None:
        self.inward, self.outward, self.timeout = inward, outward, timeout

    def send(self, data: Tensor) -> None:
        if self.inward.closed:
            raise LinkError("the peer closed the link")
        self.outward.put(data.numpy().tobytes())

    def receive(self, size: int) -> Tensor:
        return torch.frombuffer(self.inward.get(size, self.timeout), dtype=torch.uint8)

    def close(self) -> None:
        self.outward.close()


def pipe(*, timeout: float = 30.0) -> tuple[PipeEnd, PipeEnd]:
    """Both ends of a link; timeout in seconds."""
    a, b = Stream(), Stream()
    return PipeEnd(a, b, timeout), PipeEnd(b, a, timeout)


class GroupLink:
    """Two OS processes as a torch.distributed group over gloo.

    The host keeps the meeting point and outlives its peers: after a LinkError it calls `connect` again and is
    ready for the next one. A process has one such link at a time. GLOO_SOCKET_IFNAME chooses the network.
    """

    HOST, GUEST = 0, 1

    def __init__(self, store: dist.TCPStore, rank: int, timeout: float) -> None:
        self.store, self.rank, self.timeout = store, rank, timedelta(seconds=timeout)
        self.seen = 0  # guests so far

    @classmethod
    def host(cls, address: str = "127.0.0.1", port: int = 0, *, timeout: float = 30.0) -> GroupLink:
        """Open the meeting point (port 0: a free one, see `port`); timeout in seconds, for every wait."""
        with socket.create_server((address, port)) as listener:
            port = listener.getsockname()[1]
            store = dist.TCPStore(
                address,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout),
                master_listen_fd=listener.detach(),
            )
        return cls(store, cls.HOST, timeout)

    @classmethod
    def join(cls, address: str, port: int, *, timeout: float = 30.0) -> GroupLink:
        """Find a host's meeting point. Raises LinkError if there is none."""
        with naming(f"no host at {address}:{port}"):
            store = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=timeout))
        return cls(store, cls.GUEST, timeout)

    @property
    def port(self) -> int:
        return self.store.port

    def connect(self) -> None:
        """Form a group with the next peer, leaving an earlier one. Raises LinkError if none comes."""
        self.close()
        with naming("no peer came"):
            if self.rank == self.GUEST:
                self.seen = self.store.add("guests", 1)
                self.store.set(f"guest {self.seen}", "here")
            else:
                self.store.wait([f"guest {self.seen + 1}"], self.timeout)
                self.seen = self.store.add("guests", 0)  # the latest; those before it have given up
            meeting = dist.PrefixStore(f"group {self.seen}", self.store)
            dist.init_process_group("gloo", store=meeting, rank=self.rank, world_size=2, timeout=self.timeout)

    def send(self, data: Tensor) -> None:
        with naming(f"the peer is gone: {len(data)} bytes not delivered"):
            dist.send(torch.tensor([len(data)]).view(torch.uint8), 1 - self.rank)
            dist.send(data, 1 - self.rank)

    def receive(self, size: int) -> Tensor:
        announced, lost = torch.empty(8, dtype=torch.uint8), f"the peer is gone: {size} bytes did not come"
        with naming(lost):
            dist.recv(announced, 1 - self.rank)
        if (found := int(announced.view(torch.int64))) != size:
            raise LinkError(f"the peer sends {found} bytes where {size} are due")
        data = torch.empty(size, dtype=torch.uint8)
        with naming(lost):
            dist.recv(data, 1 - self.rank)
        return data

    def close(self) -> None:
        """Leave the group; the meeting point stays."""
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Every error of torch.distributed as a LinkError that begins with `what`."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        source, _, why = str(error).partition("] ")  # gloo's begin with [file:line]
        raise LinkError(f"{what} ({(why if source.startswith('[') else str(error)).partition('. ')[0]})") from None
