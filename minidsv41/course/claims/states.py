"""What is computed for article 2: bytes, FLOPs and norms of the families."""

from __future__ import annotations

import torch

from minidsv41.course.claims.claim import Found
from minidsv41.families import delta
from minidsv41.ledger.deployed import MODELS, model, qwen35
from minidsv41.ledger.machines import machine
from minidsv41.ledger.parts import Compressed, LatentRows

LAYERS, HEADS, LATENT, ROPE, NOPE, V = 61, 128, 512, 64, 128, 128  # DeepSeek-V3
NAIVE = 2 * HEADS * (NOPE + ROPE + V)  # FLOP of one query on one cached token
ABSORBED = 2 * HEADS * (2 * LATENT + ROPE)
EXPAND = 2 * LATENT * HEADS * (NOPE + V)  # FLOP to make keys and values of one latent
H20_B, H20_S, H20_HEADS, H20_MS = 32, 32 * 1024, 128, 3.2  # the article's measurement of one layer


def rows(name: str, expected: int, part: int = 0) -> Found:
    per_token = model(name).parts[part].per_token.value
    return Found(f"{float(per_token):,.0f} B/token = {float(per_token) / 1024:.1f} KiB", per_token == expected)


def kimi() -> Found:
    k2, k3 = model("Kimi K2"), model("Kimi K3")
    state = int(k3.parts[1].matrices)
    text = f"K2 {k2.per_token.value:,} B; K3 {k3.per_token.value:,} B and a state of {state / 1e6:.0f} MB"
    return Found(text, (k2.per_token.value, k3.per_token.value) == (70_272, 27_648))


def glm() -> Found:
    plain = LatentRows(layers=78, row=576 * 2).per_token.value
    return Found(
        f"{plain:,} B = {plain / 1024:.2f} KiB, with its index {model('GLM-5').per_token.value:,}", plain == 89_856
    )


def ten_kilobytes() -> Found:
    pro = Compressed(layers=30, rate=4, row=1024, key=256, topk=1024).per_token
    pro = pro + Compressed(layers=31, rate=128, row=1024).per_token
    flash = float(model("DeepSeek-V4-Flash").per_token.value)
    return Found(f"V4-Pro in BF16 {pro.value:,} B; V4-Flash as deployed {flash:,.0f} B", pro.value == 9_848)


def mla_ratio() -> Found:
    keys, both, wide = (x / (LATENT + ROPE) for x in (HEADS * 128, 2 * HEADS * 128, HEADS * (192 + 128)))
    found = [round(x, 1) for x in (keys, both, wide)]
    return Found(
        f"keys alone {found[0]}, keys and values {found[1]} (128) or {found[2]} (192 and 128)",
        found[1:] == [56.9, 71.1],
    )


def no_absorption() -> Found:
    layer = EXPAND * 131_072
    whole = layer * LAYERS / 74e9
    return Found(
        f"{layer / 1e9:,.0f} GFLOP a layer, {whole:,.0f} times the weights' in {LAYERS} layers", round(whole) == 3_625
    )


def prefill_pays() -> Found:
    even = EXPAND / (ABSORBED - NAIVE)
    text = f"{NAIVE:,} against {ABSORBED:,} FLOP = {ABSORBED / NAIVE:.2f} times; even at {even:.1f} queries"
    return Found(text, round(even, 1) == 170.7)


def intensity(heads: int) -> float:
    """FLOP a byte of absorbed MLA over BF16 rows."""
    return 2 * heads * (2 * LATENT + ROPE) / ((LATENT + ROPE) * 2)


def intensities() -> Found:
    found, ridge = [intensity(h) for h in (128, 16)], float(machine("H20").ridge.value)
    text = f"{found[0]:.1f} and {found[1]:.1f} FLOP/B; an H20's ridge {ridge:.0f}"
    return Found(text, [round(x, 1) for x in found] == [241.8, 30.2] and found[1] < ridge < found[0])


def no_split() -> Found:
    stuck = [m.name for m in MODELS if m.name != "Kimi K3" and "not by head" in m.parts[0].split]
    return Found(
        f"rows without a head axis: {len(stuck)} of {len(MODELS)} models; requests or tokens can be divided",
        bool(stuck),
    )


def states() -> Found:
    text, right = [], []
    for size in (2, 4):
        full, state = qwen35(size).parts
        text.append(
            f"{int(state.matrices) / 1e6:.1f} MB, {float(state.matrices.value / full.per_token.value):,.0f} tokens"
        )
        right.append((int(state.matrices), state.matrices.value / full.per_token.value))
    return Found("BF16 " + "; FP32 ".join(text), right == [(94_371_840, 3_072), (188_743_680, 6_144)])


def misplaced_decay() -> Found:
    """70 steps of the rule as printed (the prediction from the undecayed state) against the rule as it is."""
    g = torch.Generator().manual_seed(0)
    T, H, D = 70, 4, 32
    k, v = (torch.randn(T, H, D, generator=g, dtype=torch.float64) for _ in range(2))
    k = k / k.norm(dim=-1, keepdim=True)
    a, beta = (torch.rand(T, H, generator=g, dtype=torch.float64) for _ in range(2))
    log_a = (0.9 + 0.1 * a).log()
    S = torch.zeros(H, D, D, dtype=torch.float64)
    right, printed = delta.recurrent(k, k, v, log_a, beta, S)[1], S
    for t in range(T):
        error = v[t] - torch.einsum("hk,hkv->hv", k[t], printed)
        printed = printed * log_a[t].exp()[:, None, None] + torch.einsum("hk,hv->hkv", k[t], beta[t][:, None] * error)
    fast = delta.chunked(k, k, v, log_a, beta, S)[1]
    off, same = float((printed - right).norm() / right.norm()), torch.allclose(fast, right, rtol=0, atol=1e-10)
    return Found(f"as printed off by {off:.1%} of the state; recurrent = chunked: {same}", same and off > 0.01)


def repeated(draws: int, *, alpha: float, beta: float | None) -> torch.Tensor:
    """Norms of the state after one unit key was stored 12 times with fresh values, d = 32; beta None: no delta rule."""
    g = torch.Generator().manual_seed(0)
    v = torch.randn(draws, 12, 32, generator=g, dtype=torch.float64)
    row = torch.zeros(draws, 32, dtype=torch.float64)  # what the key reads: the state is the key times this row
    for t in range(12):
        row = alpha * row
        row = row + (v[:, t] if beta is None else beta * (v[:, t] - row))
    return row.norm(dim=-1)


def repeated_key() -> Found:
    linear, rule = (repeated(400, alpha=0.99, beta=b) for b in (None, 0.5))
    near = ((linear - 18.5).abs() < 0.05) & ((rule - 3.2).abs() < 0.05)
    means = float(linear.mean()), float(rule.mean())
    text = (
        f"means {means[0]:.1f} and {means[1]:.2f} over 400 draws; the very pair in {near.double().mean():.1%} of them"
    )
    return Found(text, abs(means[0] - 18.5) < 1.5 and abs(means[1] - 3.2) < 0.1)


def gating_alone() -> Found:
    norms = [float(repeated(400, alpha=a, beta=None).mean()) for a in (1.0, 0.99, 0.95, 0.9)]
    text = "without the delta rule: " + ", ".join(
        f"α = {a}: {n:.1f}" for a, n in zip((1, 0.99, 0.95, 0.9), norms, strict=True)
    )
    return Found(text, abs(norms[-1] - 12.5) < 0.3 and norms == sorted(norms, reverse=True))


def h20() -> Found:
    flop = H20_B * H20_S * ABSORBED
    read = H20_B * H20_S * (LATENT + ROPE) * 2
    rate, bandwidth = flop / H20_MS / 1e9, read / H20_MS / 1e9
    quarter = f"a tile filled to 16 of 64 rows gives {85 / 4:.1f} to {106 / 4:.1f}"
    text = f"3.2 ms are {rate:.1f} TFLOP/s and {bandwidth:.3f} TB/s; {quarter}"
    return Found(text, round(rate, 1) == 91.3 and round(bandwidth, 3) == 0.377 and 85 < rate < 106)
