"""What an attention of any family keeps of one sequence, and the interface that all of them share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn


@dataclass
class State:
    """`rows` grow with the sequence, `fixed` do not; `length` tokens were taken in so far."""

    length: int = 0
    rows: dict[str, Tensor] = field(default_factory=dict)
    fixed: dict[str, Tensor] = field(default_factory=dict)

    def append(self, name: str, new: Tensor) -> Tensor:
        """All rows of that name, `new` [n, ...] behind those that were there."""
        self.rows[name] = behind(self.rows.get(name), new)
        return self.rows[name]

    def slide(self, name: str, new: Tensor, keep: int) -> Tensor:
        """What was held and `new` [n, ...] behind it; the last `keep` of them stay."""
        both = behind(self.fixed.get(name), new)
        self.fixed[name] = both[max(0, len(both) - keep) :]
        return both

    def nbytes(self) -> tuple[int, int]:
        """Bytes that grow with the sequence, and bytes that do not."""
        return sum(t.nbytes for t in self.rows.values()), sum(t.nbytes for t in self.fixed.values())

    def copy(self) -> State:
        """The same sequence, to be continued otherwise. No tensor is ever changed in place."""
        return replace(self, rows=dict(self.rows), fixed=dict(self.fixed))


def behind(held: Tensor | None, new: Tensor) -> Tensor:
    return new if held is None else torch.cat([held, new])


class Family(nn.Module):
    """One attention layer: `layer(x, state)` takes in x [T, C], moves `state` on, and gives [T, C].

    Prefill, a prompt in pieces, and decode (T = 1) are the same call.
    """

    def new(self) -> State:
        """The state of an empty sequence."""
        return State()

    def forward(self, x: Tensor, state: State) -> Tensor:
        positions = torch.arange(state.length, state.length + len(x), device=x.device)
        out = self.attend(x, positions, state)
        state.length += len(x)
        return out

    def attend(self, x: Tensor, positions: Tensor, state: State) -> Tensor:
        """x [T, C] at positions [T], behind what `state` holds -> [T, C]."""
        raise NotImplementedError
