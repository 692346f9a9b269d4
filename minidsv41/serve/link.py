"""How the bytes of a hand-over travel: the interface, a stream inside one process, and torch.distributed."""

from __future__ import annotations

import os
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

WATCHDOG = {  # that of NCCL; when a peer is lost,
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # this process goes on,
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",  # no traces are written,
    "TORCH_FR_BUFFER_SIZE": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",  # and nobody waits for them: four times this, a minute if not set
}


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
    """Two OS processes as a torch.distributed group: over gloo, or, if `device` is a GPU of this process, over NCCL.

    The host keeps the meeting point and outlives its peers: after a LinkError it calls `connect` again and is
    ready for the next one. A process has one such link at a time. GLOO_SOCKET_IFNAME chooses the network. NCCL sees
    no tensor of the CPU, so bytes pass through a buffer on the device; and it does not notice a peer's death: what
    waits for it fails when its time is over.
    """

    HOST, GUEST = 0, 1

    def __init__(self, store: dist.TCPStore, rank: int, timeout: float, device: torch.device | str) -> None:
        self.store, self.rank, self.timeout = store, rank, timedelta(seconds=timeout)
        self.device = torch.device(device)
        self.seen = 0  # guests so far

    @classmethod
    def host(
        cls,
        address: str = "127.0.0.1",
        port: int = 0,
        *,
        timeout: float = 30.0,
        device: torch.device | str = "cpu",
    ) -> GroupLink:
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
        return cls(store, cls.HOST, timeout, device)

    @classmethod
    def join(cls, address: str, port: int, *, timeout: float = 30.0, device: torch.device | str = "cpu") -> GroupLink:
        """Find a host's meeting point. Raises LinkError if there is none."""
        with naming(f"no host at {address}:{port}"):
            store = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=timeout))
        return cls(store, cls.GUEST, timeout, device)

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
            self._form(meeting)

    def _form(self, meeting: dist.Store) -> None:
        how = dict(store=meeting, rank=self.rank, world_size=2, timeout=self.timeout)
        if self.device.type == "cpu":
            dist.init_process_group("gloo", **how)
            return
        os.environ.update(WATCHDOG)
        torch.cuda.set_device(self.device)
        dist.init_process_group("nccl", device_id=self.device, **how)

    def send(self, data: Tensor) -> None:
        with naming(f"the peer is gone: {len(data)} bytes not delivered"):
            for frame in (torch.tensor([len(data)]).view(torch.uint8), data):
                dist.isend(frame.to(self.device), 1 - self.rank).wait(self.timeout)

    def receive(self, size: int) -> Tensor:
        with naming(f"the peer is gone: {size} bytes did not come"):
            if (found := int(self._frame(8).view(torch.int64))) != size:
                raise LinkError(f"the peer sends {found} bytes where {size} are due")
            return self._frame(size)

    def _frame(self, size: int) -> Tensor:
        """The next `size` bytes that the peer sends at once, on the CPU."""
        data = torch.empty(size, dtype=torch.uint8, device=self.device)
        dist.irecv(data, 1 - self.rank).wait(self.timeout)
        return data.cpu()

    def close(self) -> None:
        """Leave the group; the meeting point stays."""
        if dist.is_initialized():
            if self.device.type != "cpu":
                dist.group.WORLD.abort()  # what still waits for a peer that is gone would never end
            dist.destroy_process_group()


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Every error of torch.distributed as a LinkError that begins with `what`."""
    try:
        yield
    except LinkError:
        raise
    except (RuntimeError, ValueError) as error:
        source, _, why = str(error).partition("] ")  # gloo's begin with [file:line]
        raise LinkError(f"{what} ({(why if source.startswith('[') else str(error)).partition('. ')[0]})") from None
