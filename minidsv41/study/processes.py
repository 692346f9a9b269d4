"""Pieces of work in many processes at once; a piece may have others that start when it is done."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context


@dataclass
class Piece:
    """run(*arguments), then the pieces of `then`, before any other that waits; error: why it failed."""

    what: str
    run: Callable[..., None]
    arguments: tuple
    then: list[Piece] = field(default_factory=list)
    error: BaseException | None = None


def quiet() -> None:
    """A worker says nothing and works on one thread."""
    import torch

    torch.set_num_threads(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())


def side_by_side(pieces: list[Piece], processes: int) -> Iterator[Piece]:
    """Each piece as it ends. What follows a failed one is never started."""
    queue, running = deque(pieces), {}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=quiet) as pool:
        while queue or running:
            while queue and len(running) < processes:
                piece = queue.popleft()
                running[pool.submit(piece.run, *piece.arguments)] = piece
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                piece = running.pop(future)
                piece.error = future.exception()
                if piece.error is None:
                    queue.extendleft(reversed(piece.then))
                yield piece
