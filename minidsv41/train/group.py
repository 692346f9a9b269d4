"""Members of a group that share one piece of work: threads of this process, or processes over gloo."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Barrier
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class GroupError(RuntimeError):
    """A member of the group failed, died or was not done in time."""


class Group(Protocol):
    """What a member can do with the others; all of them must call the same in the same order."""

    rank: int
    size: int

    def total(self, x: Tensor) -> Tensor:
        """The sum of everybody's `x`, which all have one shape."""

    def exchange(self, parts: list[Tensor]) -> list[Tensor]:
        """Give parts[i] [n_i, ...] to member i -> what each member gave to this one, by rank."""


@dataclass(frozen=True)
class Threads:
    """A member that is a thread."""

    rank: int
    size: int
    table: list
    barrier: Barrier

    def swap(self, given: Any) -> list:
        """Everybody's `given`, by rank."""
        self.table[self.rank] = given
        self.barrier.wait()
        found = list(self.table)
        self.barrier.wait()
        return found

    def total(self, x: Tensor) -> Tensor:
        return torch.stack(self.swap(x)).sum(0)

    def exchange(self, parts: list[Tensor]) -> list[Tensor]:
        return [given[self.rank].clone() for given in self.swap(parts)]


def in_threads(work: Callable[..., Any], *arguments: Any, size: int = 2, timeout: float = 60.0) -> list[Any]:
    """work(group, *arguments) in `size` threads -> their results, by rank. timeout in seconds, for each wait."""
    table, barrier = [None] * size, Barrier(size, timeout=timeout)

    def member(rank: int) -> Any:
        try:
            return work(Threads(rank, size, table, barrier), *arguments)
        except BaseException:
            barrier.abort()  # nobody waits for a member that failed
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(member, range(size)))


@dataclass(frozen=True)
class Gloo:
    """A member that is a process, in the default group of torch.distributed."""

    rank: int
    size: int

    def total(self, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    def exchange(self, parts: list[Tensor]) -> list[Tensor]:
        mine = torch.tensor([len(part) for part in parts])
        theirs = torch.empty_like(mine)
        dist.all_to_all_single(theirs, mine)
        given, counts = torch.cat(parts), theirs.tolist()
        taken = given.new_empty(sum(counts), *given.shape[1:])
        dist.all_to_all_single(taken, given, output_split_sizes=counts, input_split_sizes=mine.tolist())
        return list(taken.split(counts))


def in_processes(work: Callable[..., Any], *arguments: Any, size: int = 2, timeout: float = 90.0) -> list[Any]:
    """work(group, *arguments) in `size` new processes over gloo -> their results, by rank.

    `work` is a function of a module. timeout in seconds, for everything. Raises GroupError; no process outlives it.
    """
    context, job, end = get_context("spawn"), pickle.dumps((work, arguments)), time.monotonic() + timeout
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        meeting, processes, ends = str(Path(folder) / "meeting"), [], []
        try:
            for rank in range(size):
                here, there = context.Pipe(duplex=False)
                process = context.Process(target=member, args=(there, rank, size, meeting, timeout, job), daemon=True)
                process.start()
                there.close()
                processes.append(process)
                ends.append(here)
            return [result(rank, here, end) for rank, here in enumerate(ends)]
        finally:
            for process in processes:
                process.join(max(0.0, min(5.0, end - time.monotonic())))
                process.kill()
                process.join()


def result(rank: int, here: Connection, end: float) -> Any:
    """What a member sends before the clock reads `end`. Raises GroupError."""
    if not here.poll(max(0.0, end - time.monotonic())):
        raise GroupError(f"member {rank} was not done in time")
    try:
        found, error = pickle.loads(here.recv_bytes())
    except EOFError:
        raise GroupError(f"member {rank} died") from None
    if error:
        raise GroupError(f"member {rank} failed: {error}")
    return found


def member(there: Connection, rank: int, size: int, meeting: str, timeout: float, job: bytes) -> None:
    """The main function of a process of the group. Tensors travel as bytes: shared memory would die with it."""
    try:
        torch.set_num_threads(1)
        work, arguments = pickle.loads(job)
        store, wait = dist.FileStore(meeting, size), timedelta(seconds=timeout)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=wait)
        said = work(Gloo(rank, size), *arguments), None
    except Exception as error:
        said = None, f"{type(error).__name__}: {error}"
    there.send_bytes(pickle.dumps(said))
    if dist.is_initialized():
        dist.destroy_process_group()
