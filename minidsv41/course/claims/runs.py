"""Article 1: claims that a run of the model or of one of its operations settles. All in float64, on the shipped toy."""

from __future__ import annotations

from functools import cache
from math import log2

import torch
from torch import Tensor

from minidsv41 import ops, paths
from minidsv41.checkpoint import load
from minidsv41.config import ModelConfig
from minidsv41.course.claims.claim import Claim, Found
from minidsv41.course.sabotage import sabotage, trace_by_token
from minidsv41.formats import E2M1, E4M3, INDEX, MAIN
from minidsv41.model import Model
from minidsv41.model.rope import Rotation, frequencies, rotate
from minidsv41.ops import Batch, PoolSize
from minidsv41.ops.seam import sinkhorn
from minidsv41.tokens import load_tokenizer

FLASH = ModelConfig.preset("flash")
SCALES = 9  # 2**-9 is the smallest scale that a main entry stores


@cache
def traced() -> tuple[Model, Tensor, dict[str, Tensor]]:
    """The toy, 80 tokens of Hamlet, and their trace."""
    model = load(paths.checkpoint_dir("toy"), dtype=torch.float64)
    hamlet = (paths.text_dir() / "plays" / "hamlet.txt").read_text(encoding="utf-8")
    speech = hamlet[hamlet.index("To be, or not to be") :][:600]
    ids = torch.tensor(load_tokenizer().encode(speech).ids[:80])
    return model, ids, model.trace(ids)


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=1e-9)


@torch.no_grad()
def compressor() -> Found:
    """Entries of layers 1 (pairs) and 4 (single tokens) by hand from their inputs."""
    model, ids, trace = traced()
    c, same = model.config, []
    for layer in c.kv_source_layer_ids:
        part, x, m = model.layers[layer].attn.compressor, trace[f"L{layer}.attn.x"], c.ratio(layer)
        content = part.wkv(x)[: len(ids) // m * m].unflatten(0, (-1, m))
        gate = part.wgate(x)[: len(ids) // m * m].unflatten(0, (-1, m)) if m == 2 else torch.zeros_like(content)
        latent = part.norm((content * gate.softmax(1)).sum(1))
        turn = Rotation.at(m * torch.arange(len(latent)), frequencies(c, compressed=True), latent.dtype)
        same.append(close(MAIN.fake_quant(rotate(latent, turn)), trace[f"L{layer}.cmp.entry"]))
    theta = FLASH.compress_rope_theta
    return Found(f"by hand the same in {sum(same)} of {len(same)} owners; θ = {theta:,.0f}", all(same))


@torch.no_grad()
def index_key() -> Found:
    """Layer 4's index keys from its latents before their rotation, and from the rotated ones."""
    model, _, trace = traced()
    indexer, latent = model.layers[4].attn.indexer, trace["L4.cmp.latent"]
    turn = Rotation.at(torch.arange(len(latent)), frequencies(model.config, compressed=True), latent.dtype)
    raw = (indexer.k_norm(indexer.wk(x)) for x in (latent, rotate(latent, turn)))
    before, after = (INDEX.fake_quant(rotate(x, turn)) for x in raw)
    found = [float((keys - trace["L4.idx.k"]).abs().max()) for keys in (before, after)]
    text = f"equal from the latent before its rotation, off by {found[1]:.2f} from the rotated one"
    return Found(text, found[0] < 1e-9 < found[1])


def funnel() -> Found:
    """Random scores at the released sizes: are a layer's best 512 in its own pool, and another layer's?"""
    c, n, g = FLASH, 65_536, torch.Generator().manual_seed(0)
    own, other = torch.randn(2, 8, n, generator=g, dtype=torch.float64)
    block, count = c.candidate_block_size, c.candidate_topk_blocks
    best = own.unflatten(1, (-1, block)).amax(-1)
    best[:, -1] = torch.inf  # the newest block is always in
    pool = torch.zeros(8, n // block, dtype=torch.bool).scatter(1, best.topk(count).indices, True)
    inside = [float(pool.gather(1, s.topk(c.index_topk).indices // block).double().mean()) for s in (own, other)]
    text = f"{inside[0]:.0%} of a layer's own 512, {inside[1]:.0%} of a layer's with unrelated scores"
    return Found(text, inside[0] == 1.0 and inside[1] < 1)


def newest() -> Found:
    """One query over 65 entries whose keys make the newest the worst: is it in the pool, is it selected?"""
    g = torch.Generator().manual_seed(0)
    q = torch.randn(1, 2, 16, generator=g, dtype=torch.float64)
    w = torch.ones(1, 2, dtype=torch.float64)
    keys = torch.randn(65, 16, generator=g, dtype=torch.float64)
    keys[-1] = -q[0].sum(0)
    batch = Batch.ragged([torch.zeros(1, dtype=torch.int64)], [64])
    rows = ops.Rows(keys, torch.zeros(1, 1, dtype=torch.int64), len(keys))
    topk, pool = ops.index_select(q, w, rows, batch.visible(1), 8, PoolSize(3, 8), batch=batch, n=65)
    pooled, chosen = bool(pool.mask(65)[0, 64]), 64 in topk[0].tolist()
    return Found(f"newest entry in the pool: {pooled}, among the selected: {chosen}", pooled and not chosen)


@torch.no_grad()
def delay() -> Found:
    """The FFN of layer 2 takes its input by the mix that the attention before it computed, not by its own."""
    model, _, trace = traced()
    X, norm = trace["L2.stream_after_attn"], model.layers[2].ffn_norm
    by = {name: norm((trace[f"L2.{name}.pre"][..., None] * X).sum(1)) for name in ("attn", "ffn")}
    off = {name: float((x - trace["L2.ffn.x"]).abs().max()) for name, x in by.items()}
    text = f"equal with the attention's mix, off by {off['ffn']:.2f} with its own"
    return Found(text, off["attn"] < 1e-9 < off["ffn"])


def doubly_stochastic() -> Found:
    g = torch.Generator().manual_seed(0)
    mixes = sinkhorn(8 * torch.randn(1_000, 4, 4, generator=g, dtype=torch.float64), FLASH.hc_sinkhorn_iters, 1e-6)
    last, other = (float((mixes.sum(axis) - 1).abs().max()) for axis in (-2, -1))
    text = f"1,000 draws: one side within {last:.0e}, the other off by up to {other:.1e}"
    return Found(text, last < 1e-5 and 1e-2 < other < 8.6e-2)


def bounds() -> Found:
    """The largest value that a main entry holds, against the norm of a normalised latent, before and after RoPE."""
    model, _, trace = traced()
    largest = float(E2M1.largest * E4M3.largest)
    latent = trace["L4.cmp.latent"]
    turn = Rotation.at(torch.arange(len(latent)), frequencies(model.config, compressed=True), latent.dtype)
    kept = close(rotate(latent, turn).norm(dim=-1), latent.norm(dim=-1))
    zero = MAIN.encode(torch.zeros(1, 16, dtype=torch.float64))[1]
    floor = float(E4M3.decode(zero, torch.float64))
    text = f"{largest:,.0f} against √512 = {512**0.5:.1f}; RoPE keeps norms: {kept}; least scale 2^{log2(floor):.0f}"
    return Found(text, largest == 2_688 and kept and floor == 2.0**-SCALES)


def stale_keys() -> Found:
    """Decode token by token with index keys of whichever layer wrote last."""
    model, ids, trace = traced()
    with sabotage("00.stale_index_key"):
        steps = trace_by_token(model, ids, after=70)
    changed = [(steps["L1.idx.topk"][t] != trace["L1.idx.topk"][t]).any() for t in range(70, 80)]
    text = "".join("✗" if c else "·" for c in changed) + " for ten decode steps"
    return Found(text, [bool(c) for c in changed] == [True, False] * 5)


CLAIMS = (
    Claim(
        number="1.8",
        said="the compressor: softmax in each channel over m, RMSNorm, RoPE with θ = 160,000, FP4",
        verdict="right",
        instead="RoPE at the group's first token; m = 1 has no gate",
        proof="tests/test_parity.py",
        compute=compressor,
    ),
    Claim(
        number="1.9",
        said="the index key is projected from the main entry",
        verdict="right",
        instead="from its latent before RoPE",
        proof="tests/test_parity.py",
        compute=index_key,
    ),
    Claim(
        number="1.10",
        said="block maxima bound their blocks from above, so the pool misses nothing",
        verdict="imprecise",
        instead="right for layer 20; layers 24 to 36 have other queries",
        proof="lesson 05",
        compute=funnel,
    ),
    Claim(
        number="1.11",
        said="the recent window bypasses the funnel",
        verdict="imprecise",
        instead="only the newest block is pinned in the pool, and its entry may still not be selected",
        proof="lesson 05, tests/test_ops.py",
        compute=newest,
    ),
    Claim(
        number="1.17",
        said="the input mix of mHC comes from one block before",
        verdict="imprecise",
        instead="from one sublayer before",
        proof="lesson 07",
        compute=delay,
    ),
    Claim(
        number="1.19",
        said="20 rounds of Sinkhorn make a doubly stochastic matrix",
        verdict="imprecise",
        instead="exact on one side only",
        proof="lesson 07",
        compute=doubly_stochastic,
    ),
    Claim(
        number="1.24",
        said="FP4 cannot overflow: 448 × 6 = 2,688, norms are at most √512, RoPE keeps them",
        verdict="right",
        instead="and the scale has a floor of 2⁻⁹",
        proof="lesson 06",
        compute=bounds,
    ),
    Claim(
        number="1.27",
        said="(not said) the official code reads stale index keys while decoding",
        verdict="right",
        instead="on every other step",
        proof="lessons 00 and 04",
        compute=stale_keys,
    ),
)
