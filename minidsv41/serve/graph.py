"""One decode step of fixed sequences, captured in a CUDA graph."""

from __future__ import annotations

import torch
from torch import Tensor

from minidsv41.cache import Cache, State
from minidsv41.model import Model
from minidsv41.ops import Batch


class DecodeGraph:
    """A step of `rows` tokens for each of S sequences at the place where they stand: captured once, replayed at will.

    The positions are part of the graph: each replay writes the same rows again, as a measurement wants it. `commit`
    keeps the last replay's rows; then the sequences have moved on, and the next step needs a graph of its own.
    rows: 1 decodes; a draft's block and its anchor verify, with rows that go straight into the sequences' pages.
    Where `captured` is False, a replay runs the step as it is: a CPU has no graphs, and only in bfloat16 do the
    experts' products get by without a look at their sizes.
    """

    def __init__(self, model: Model, cache: Cache, states: list[State], *, rows: int = 1, capture: bool = True) -> None:
        self.model = model
        self.tokens = torch.zeros(len(states) * rows, dtype=torch.int64, device=model.device)
        self.batch = Batch(self.tokens, tuple(s.length for s in states), (rows,) * len(states))
        self.keys = cache.keys(states, self.batch)
        self.logits: Tensor | None = None
        self.captured = capture and model.device.type == "cuda" and model.dtype == torch.bfloat16
        if self.captured:
            self._capture()

    @torch.no_grad()
    def run(self) -> Tensor:
        """The step itself -> logits [S * rows, V]; the draft's window rows are written too."""
        out = self.model(self.batch, self.keys)
        self.model.mtp.remember(out.features, self.batch, self.keys)
        return self.model.logits(out.hidden)

    def _capture(self) -> None:
        """Kernels compile, and the batch's tensors reach the device, in two runs before."""
        before, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(before)
        with torch.cuda.stream(side):
            for _ in range(2):
                self.run()
        before.wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.logits = self.run()

    def replay(self, tokens: Tensor | None = None) -> Tensor:
        """Feed tokens [S * rows], sequence after sequence, or the last ones again -> logits [S * rows, V].

        The next replay overwrites them.
        """
        if tokens is not None:
            self.tokens.copy_(tokens)
        if self.captured:
            self.graph.replay()
        else:
            self.logits = self.run()
        return self.logits

    def commit(self) -> None:
        """Let the sequences hold the tokens of the last replay."""
        self.keys.commit()
