"""A table whose rows are split over the members of a group: ids travel before the forward, gradients after it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minidsv41.train.group import Group


def share(rows: int, size: int) -> int:
    """Rows of each member but the last, which has what remains."""
    return -(-rows // size)


def owner(row: int, rows: int, size: int) -> tuple[int, int]:
    """(member, its own number for the row)."""
    return divmod(row, share(rows, size))


@dataclass(frozen=True)
class Fetched:
    """The rows that one batch needs, each once.

    rows [U, width], a leaf that collects gradients; index [...] leads from each id to its row; counts: how many of
    the rows came from each member; asked: the owner's numbers of the rows that each member was given.
    """

    rows: Tensor
    index: Tensor
    counts: list[int]
    asked: list[Tensor]


class Shard:
    """One member's part of a table [rows, width]: rows rank * share to (rank + 1) * share - 1."""

    def __init__(self, table: Tensor, group: Group) -> None:
        self.group, self.share = group, share(len(table), group.size)
        first = group.rank * self.share
        self.weight = nn.Parameter(table[first : first + self.share].clone())

    def fetch(self, ids: Tensor) -> Fetched:
        """Ask the owners for the rows of this member's batch, ids [...] of the whole table."""
        wanted, index = ids.unique(return_inverse=True)  # sorted, hence by owner
        counts = torch.bincount(wanted // self.share, minlength=self.group.size).tolist()
        asked = self.group.exchange(list((wanted % self.share).split(counts)))
        given = self.group.exchange([self.weight.detach()[own] for own in asked])
        return Fetched(torch.cat(given).requires_grad_(), index, counts, asked)

    def give_back(self, fetched: Fetched) -> None:
        """Send the gradients of fetched rows to their owners; here, add what arrives to `weight.grad`."""
        arrived = self.group.exchange(list(fetched.rows.grad.split(fetched.counts)))
        if self.weight.grad is None:
            self.weight.grad = torch.zeros_like(self.weight)
        for own, gradient in zip(fetched.asked, arrived, strict=True):
            self.weight.grad.index_add_(0, own, gradient)
