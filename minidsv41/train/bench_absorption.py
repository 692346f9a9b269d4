"""MLA read naively and absorbed: seconds by the number of new queries behind a cached prefix."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import psutil
import torch

from minidsv41.families import MLA
from minidsv41.families.softmax import causal


@dataclass(frozen=True, kw_only=True)
class AbsorptionConfig:
    """V3's widths; fewer heads, since both forms cost in proportion to them. prefix: cached tokens.

    device: "cpu" in float32, "cuda" in bfloat16.
    """

    heads: int = 4
    kv_lora: int = 512
    nope: int = 128
    rope: int = 64
    v: int = 128
    prefix: int = 4096
    queries: tuple[int, ...] = (1, 16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384)
    repeats: int = 7
    seed: int = 0
    threads: int = 1
    device: str = "cpu"

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device == "cuda" else torch.float32

    def layer(self) -> MLA:
        """Its projections from and to the hidden state are not timed, so they are small."""
        widths = dict(kv_lora=self.kv_lora, nope=self.nope, rope=self.rope, v=self.v)
        return MLA(hidden=8, heads=self.heads, q_lora=8, **widths).to(self.device, self.dtype)

    def flops(self, queries: int) -> tuple[int, int]:
        """Products of the two forms as the package computes them: pairs that causality hides are multiplied too."""
        rows = self.prefix + queries
        project = 2 * self.heads * self.kv_lora * (self.nope + self.v)  # one row expanded, or one query absorbed
        naive = 2 * self.heads * (self.nope + self.rope + self.v)
        absorbed = 2 * self.heads * (2 * self.kv_lora + self.rope)
        return rows * (project + queries * naive), queries * (project + rows * absorbed)


@torch.no_grad()
def measure(c: AbsorptionConfig, *, clock: Callable[[], float] | None = None) -> dict[str, object]:
    """Rows of queries, and seconds of each form to read the prefix and the new tokens; and where they cross.

    Medians over rounds, each of which visits every cell once. The clock counts this process alone, or waits for
    the GPU; `busy` is the system's load over the cores.
    """
    torch.set_num_threads(c.threads)
    clock = clock or (waited if c.device == "cuda" else time.process_time)
    generator, layer = torch.Generator().manual_seed(c.seed), c.layer()

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(c.device, c.dtype)

    latent = draw(c.prefix + max(c.queries), c.kv_lora)
    key, q = draw(len(latent), c.rope), draw(max(c.queries), c.heads, c.nope + c.rope)

    def seconds(form: Callable, n: int) -> float:
        positions = torch.arange(c.prefix, c.prefix + n, device=c.device)
        visible, rows = causal(positions, c.prefix + n), slice(c.prefix + n)
        began = clock()
        form(q[:n], latent[rows], key[rows], visible)
        return clock() - began

    forms = {"naive": layer.read_naive, "absorbed": layer.read_absorbed}
    for form in forms.values():
        for n in c.queries:
            seconds(form, n)  # warm
    rounds = [{(name, n): seconds(forms[name], n) for n in c.queries for name in forms} for _ in range(c.repeats)]
    rows = [{"queries": n} | {name: median(found[name, n] for found in rounds) for name in forms} for n in c.queries]
    return {"busy": round(psutil.getloadavg()[0] / psutil.cpu_count(), 1), "seconds": rows, "crossing": crossing(rows)}


def waited() -> float:
    """The time when all that was asked of the GPU is done."""
    torch.cuda.synchronize()
    return time.perf_counter()


def crossing(rows: Sequence[dict[str, float]]) -> float | None:
    """Queries from which the naive form is the quicker one, linear between rows; None if it never is."""
    for a, b in pairwise(rows):
        before, after = (row["naive"] - row["absorbed"] for row in (a, b))
        if before > 0 >= after:
            return a["queries"] + (b["queries"] - a["queries"]) * before / (before - after)
    return None


def lines(results: dict) -> Iterator[str]:
    """The results of `measure`, to be read."""
    for row in results["seconds"]:
        both = "  ".join(f"{name} {1000 * row[name]:8.1f} ms" for name in ("naive", "absorbed"))
        yield f"{row['queries']:4} queries: {both}"
    yield f"crossing: {results['crossing']} queries"
