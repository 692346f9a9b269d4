"""Lesson 01: bytes of a token, two rates from one time, and a form of MLA that is cheaper than both known ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from minidsv41.course.exercise import Exercise, Mistake
from minidsv41.course.lessons import said01 as said
from minidsv41.course.published import Published
from minidsv41.families import MLA
from minidsv41.ledger.parts import HeadRows


def stored(layers: int, heads: int, kv_heads: int, head_dim: int, size: int) -> int:
    return int(HeadRows(layers=layers, kv_heads=kv_heads, head_dim=head_dim, bytes=size).per_token)


def kv_bytes(layers: int, heads: int, kv_heads: int, head_dim: int, size: int) -> int:
    return layers * 2 * kv_heads * head_dim * size


KV_BYTES = Exercise(
    name="01.kv_bytes",
    inputs=lambda: [
        dict(layers=1, heads=4, kv_heads=1, head_dim=8, size=2),
        dict(layers=3, heads=8, kv_heads=8, head_dim=16, size=4),
        dict(layers=80, heads=64, kv_heads=8, head_dim=128, size=2),
        dict(layers=95, heads=64, kv_heads=8, head_dim=128, size=2),
        dict(layers=61, heads=128, kv_heads=128, head_dim=128, size=1),
    ],
    reference=stored,
    solution=kv_bytes,
    why=said.KV_WHY,
    hints=said.KV_HINTS,
    mistakes=(
        Mistake(
            name="keys only",
            answer=lambda layers, heads, kv_heads, head_dim, size: layers * kv_heads * head_dim * size,
            thought=said.KEYS_ONLY,
        ),
        Mistake(
            name="query heads",
            answer=lambda layers, heads, kv_heads, head_dim, size: layers * 2 * heads * head_dim * size,
            thought=said.QUERY_HEADS,
        ),
        Mistake(
            name="one layer",
            answer=lambda layers, heads, kv_heads, head_dim, size: 2 * kv_heads * head_dim * size,
            thought=said.ONE_LAYER,
        ),
        Mistake(
            name="numbers",
            answer=lambda layers, heads, kv_heads, head_dim, size: layers * 2 * kv_heads * head_dim,
            thought=said.NUMBERS,
        ),
    ),
)


def of_package(batch: int, context: int, heads: int, queries: int, milliseconds: float) -> tuple[float, float]:
    run = Published(
        card="", source="", batch=batch, context=context, heads=heads, queries=queries, milliseconds=milliseconds
    )
    return run.tflops, run.terabytes


def rates(batch: int, context: int, heads: int, queries: int, milliseconds: float) -> tuple[float, float]:
    flops = 2 * batch * queries * heads * context * (512 + 64 + 512)
    read = batch * context * (512 + 64) * 2
    return flops / milliseconds / 1e9, read / milliseconds / 1e9


def otherwise(
    *,
    width: int = 512 + 64 + 512,
    add: int = 2,
    row: int = 512 + 64,
    copies: Callable[[int, int, int], int] = lambda batch, heads, queries: batch,
    requests: Callable[[int], int] = lambda batch: batch,
) -> Callable[..., tuple[float, float]]:
    """`rates` with one thing counted in another way; copies: of batch, heads, queries."""

    def answer(batch: int, context: int, heads: int, queries: int, milliseconds: float) -> tuple[float, float]:
        flops = add * requests(batch) * queries * heads * context * width
        return flops / milliseconds / 1e9, copies(batch, heads, queries) * context * row * 2 / milliseconds / 1e9

    return answer


RATES = Exercise(
    name="01.rates",
    inputs=lambda: [
        dict(batch=32, context=32768, heads=128, queries=1, milliseconds=3.2),
        dict(batch=2, context=1000, heads=4, queries=3, milliseconds=0.5),
        dict(batch=8, context=4096, heads=16, queries=2, milliseconds=0.1),
        dict(batch=1, context=131072, heads=64, queries=5, milliseconds=7.0),
    ],
    reference=of_package,
    solution=rates,
    why=said.RATES_WHY,
    hints=said.RATES_HINTS,
    mistakes=(
        Mistake(name="scores only", answer=otherwise(width=512 + 64), thought=said.SCORES_ONLY),
        Mistake(name="naive widths", answer=otherwise(width=128 + 64 + 128), thought=said.NAIVE_WIDTHS),
        Mistake(name="one operation", answer=otherwise(add=1), thought=said.ONE_OPERATION),
        Mistake(name="value read again", answer=otherwise(row=512 + 64 + 512), thought=said.READ_AGAIN),
        Mistake(
            name="a row a head",
            answer=otherwise(copies=lambda batch, heads, queries: batch * heads),
            thought=said.ROW_A_HEAD,
        ),
        Mistake(
            name="a row a query",
            answer=otherwise(copies=lambda batch, heads, queries: batch * queries),
            thought=said.ROW_A_QUERY,
        ),
        Mistake(name="one query", answer=lambda queries, **given: rates(queries=1, **given), thought=said.ONE_QUERY),
        Mistake(name="the other order", answer=lambda **given: rates(**given)[::-1], thought=said.OTHER_ORDER),
        Mistake(
            name="milliseconds",
            answer=lambda milliseconds, **given: rates(milliseconds=1e3 * milliseconds, **given),
            thought=said.MILLISECONDS,
        ),
        Mistake(
            name="one request",
            answer=otherwise(copies=lambda *_: 1, requests=lambda batch: 1),
            thought=said.ONE_REQUEST,
        ),
    ),
)

QUERIES, ROWS = 36, 128


@cache
def gap() -> tuple[MLA, dict[str, Tensor]]:
    """GLM-5's widths by eight (192, 64, 256 over 512), a cached prefix, and queries that may read all of it."""
    generator = torch.Generator().manual_seed(5)
    layer = MLA(hidden=8, heads=2, q_lora=8, kv_lora=64, nope=24, rope=8, v=32).double().requires_grad_(False)
    sizes = dict(q=(QUERIES, layer.heads, layer.nope + layer.rope), latent=(ROWS, 64), key=(ROWS, layer.rope))
    given = {n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in sizes.items()}
    layer.kv_b_proj.weight.copy_(torch.randn(layer.kv_b_proj.weight.shape, generator=generator) / 8)
    return layer, given


def counted(read: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """What it gives, and millions of FLOP in its matrix products."""
    with FlopCounterMode(display=False) as counter:
        out = read()
    return out, counter.get_total_flops() / 1e6


def forms() -> dict[str, tuple[Tensor, float]]:
    layer, given = gap()
    seen = torch.ones(1, 1, dtype=torch.bool)
    return {n: counted(lambda n=n: getattr(layer, f"read_{n}")(**given, visible=seen)) for n in ("naive", "absorbed")}


def scored(answer: Callable[..., Tensor]) -> float:
    """Millions of FLOP of an answer that reads the same."""
    layer, given = gap()
    up_k, up_v = layer.up()
    out, cost = counted(lambda: answer(**{n: x.clone() for n, x in given.items()}, up_k=up_k, up_v=up_v))
    out, right = (1 * out).double(), forms()["naive"][0]
    if out.shape != right.shape:
        raise ValueError(f"it gives {list(out.shape)}, and the package {list(right.shape)}")
    if not torch.allclose(out, right, atol=1e-9):
        raise ValueError(f"it reads something else: off by up to {(out - right).abs().max():.2g}")
    pairs = 2 * QUERIES * ROWS * layer.heads * (layer.nope + layer.rope + layer.v) / 1e6
    if cost < pairs:
        raise ValueError(f"{cost:.2f} million FLOP counted, the pairs alone take {pairs:.2f}: write einsum or @")
    return cost


def weights(still: Tensor, turned: Tensor) -> Tensor:
    """[T, H, N] from the two parts of the scores."""
    return ((still + turned) * (24 + 8) ** -0.5).softmax(-1)


def read(q: Tensor, latent: Tensor, key: Tensor, up_k: Tensor, up_v: Tensor) -> Tensor:
    still, turned = q.split([up_k.shape[1], key.shape[1]], -1)
    k = torch.einsum("nc,hdc->nhd", latent, up_k)  # keys are expanded, once for all queries
    scores = torch.einsum("thd,nhd->thn", still, k) + torch.einsum("thr,nr->thn", turned, key)
    p = (scores * q.shape[-1] ** -0.5).softmax(-1)
    latents = torch.einsum("thn,nc->thc", p, latent)  # values stay latents until they are summed
    return torch.einsum("thc,hdc->thd", latents, up_v)


def expanded(q: Tensor, latent: Tensor, key: Tensor, up_k: Tensor, up_v: Tensor) -> Tensor:
    still, turned = q.split([24, 8], -1)
    k, v = (torch.einsum("nc,hdc->nhd", latent, up) for up in (up_k, up_v))
    p = weights(torch.einsum("thd,nhd->thn", still, k), torch.einsum("thr,nr->thn", turned, key))
    return torch.einsum("thn,nhd->thd", p, v)


def moved(q: Tensor, latent: Tensor, key: Tensor, up_k: Tensor, up_v: Tensor) -> Tensor:
    still, turned = q.split([24, 8], -1)
    longer = torch.einsum("thd,hdc->thc", still, up_k)
    p = weights(torch.einsum("thc,nc->thn", longer, latent), torch.einsum("thr,nr->thn", turned, key))
    return torch.einsum("thc,hdc->thd", torch.einsum("thn,nc->thc", p, latent), up_v)


def wrong_half(q: Tensor, latent: Tensor, key: Tensor, up_k: Tensor, up_v: Tensor) -> Tensor:
    still, turned = q.split([24, 8], -1)
    longer = torch.einsum("thd,hdc->thc", still, up_k)
    p = weights(torch.einsum("thc,nc->thn", longer, latent), torch.einsum("thr,nr->thn", turned, key))
    return torch.einsum("thn,nhd->thd", p, torch.einsum("nc,hdc->nhd", latent, up_v))


THIRD = Exercise(
    name="01.third_form",
    inputs=lambda: [{}],
    reference=lambda: min(cost for _, cost in forms().values()),
    use=scored,
    accept=lambda cost, best: cost < best,
    versus=said.THIRD_VERSUS,
    solution=read,
    why=said.THIRD_WHY,
    hints=said.THIRD_HINTS,
    mistakes=(
        Mistake(name="expanded", answer=expanded, thought=said.EXPANDED),
        Mistake(name="absorbed", answer=moved, thought=said.MOVED),
        Mistake(name="the wrong half", answer=wrong_half, thought=said.WRONG_HALF),
    ),
)

EXERCISES = (KV_BYTES, RATES, THIRD)
