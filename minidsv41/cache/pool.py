"""Physical storage: pages of rows, shared by many sequences."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from minidsv41.formats import Format
from minidsv41.ops import Rows

PAGE = 64  # tokens


class Pool:
    """The rows of one kind and layer, in pages that an `Allocator` hands out.

    Packed pools hold codes and scales of `format`; others hold values of `dtype`, rounded through
    `format` if it is given.
    """

    def __init__(
        self, width: int, page: int, *, format: Format | None, packed: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.page, self.format, self.packed, self.dtype = page, format, packed, dtype
        if packed:
            codes = format.row_bytes(width) - width // format.group
            self.data = torch.zeros(0, codes, dtype=torch.uint8, device=device)
            self.scales = torch.zeros(0, width // format.group, dtype=torch.uint8, device=device)
        else:
            self.data, self.scales = torch.zeros(0, width, dtype=dtype, device=device), None

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row, from the tensors themselves."""
        tensors = [self.data] if self.scales is None else [self.data, self.scales]
        return sum(t.shape[1] * t.element_size() for t in tensors)

    def grow(self, pages: int) -> None:
        """Make room for `pages` pages in all."""
        if pages * self.page > len(self.data):
            self.data = grown(self.data, pages * self.page)
            self.scales = None if self.scales is None else grown(self.scales, pages * self.page)

    def write(self, at: Tensor, values: Tensor) -> None:
        """Store values [n, D] at physical rows at [n]."""
        if self.packed:
            self.data[at], self.scales[at] = self.format.encode(values)
        else:
            self.data[at] = self.format.fake_quant(values) if self.format else values

    def like(self, *, page: int) -> Pool:
        """An empty pool that stores rows the same way, in pages of `page` rows."""
        new = copy(self)
        new.page, new.data = page, self.data[:0]
        new.scales = None if self.scales is None else self.scales[:0]
        return new

    def copy_rows(self, at: Tensor, other: Pool, source: Tensor) -> None:
        """Store the rows source [n] of a pool like this one at physical rows at [n], as they are."""
        self.data[at] = other.data[source]
        if self.scales is not None:
            self.scales[at] = other.scales[source]

    def rows(self, table: Tensor) -> Rows:
        """The pool as seen through a page table [S, P]."""
        if self.packed:
            return Rows(self.data, table, self.page, self.scales, self.format, self.dtype)
        return Rows(self.data, table, self.page)


def grown(rows: Tensor, count: int) -> Tensor:
    """[count, ...] the rows, and zeros behind them."""
    out = rows.new_zeros(count, *rows.shape[1:])
    out[: len(rows)] = rows
    return out


class CacheFull(RuntimeError):
    """No page is free and the cache may not grow."""


class Allocator:
    """Page numbers for a group of pools that share their tables; grows by doubling, up to `limit` pages.

    Page 0 stays zero and is never handed out: it is read in place of rows that do not exist, whatever a
    sequence that is gone has left in the other pages.
    """

    def __init__(self, pools: list[Pool], *, limit: int | None = None) -> None:
        self.pools, self.limit = pools, limit
        self.free: list[int] = []
        self.pages = 0

    def take(self) -> int:
        """A free page. Raises CacheFull at the limit."""
        if not self.free:
            if self.limit is not None and self.pages >= self.limit:
                raise CacheFull(
                    f"all {self.limit} pages of {PAGE} tokens are in use: release a sequence or raise the limit"
                )
            self.reserve(max(8, 2 * self.pages))
        return self.free.pop()

    def reserve(self, pages: int) -> None:
        """Make room for `pages` pages in all, or for as many as the limit allows."""
        more = pages if self.limit is None else min(pages, self.limit)
        for pool in self.pools:
            pool.grow(1 + more)
        self.free[:0] = range(more, self.pages, -1)
        self.pages = max(self.pages, more)

    def give(self, page: int) -> None:
        self.free.append(page)
