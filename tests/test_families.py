"""Each family gives what a reference implementation gave, and the same however its input is cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from minidsv41.config import RopeScaling
from minidsv41.course.kinship import as_hca
from minidsv41.families import CSA, DSA, HCA, KDA, MLA, Family, GatedDeltaNet, GatedHeads, Heads, Hybrid, delta
from minidsv41.families.compressed import Compressed
from tests.tiny import tiny

GOLDEN = Path(__file__).parent / "golden"
LENGTH = 140


def filled(layer: Family, seed: int = 0) -> Family:
    """Random parameters of a size at which everything matters, in float64."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in layer.parameters():
            spread = p.shape[-1] ** -0.5 if p.dim() > 1 else 0.3
            p.copy_(spread * torch.randn(p.shape, generator=generator) + (p.dim() == 1))
    return layer.double().requires_grad_(False)


V4 = dict(hidden=32, heads=4, head_dim=16, rope=8, q_lora=16, o_groups=2, o_lora=8, window=8, theta=160000.0)
LATENT = dict(hidden=32, heads=4, q_lora=16, kv_lora=24, nope=16, rope=8, v=12)
FAMILIES = {
    "MHA": lambda: Heads(hidden=32, heads=4, kv_heads=4, head_dim=8, rope=8),
    "GQA": lambda: Heads(hidden=32, heads=4, kv_heads=2, head_dim=8, rope=4),
    "MQA": lambda: Heads(hidden=32, heads=4, kv_heads=1, head_dim=8, rope=8),
    "gated GQA": lambda: GatedHeads(hidden=32, heads=4, kv_heads=2, head_dim=8, rope=4),
    "MLA absorbed": lambda: MLA(**LATENT),
    "MLA naive": lambda: MLA(**LATENT, absorbed=False),
    "DSA": lambda: DSA(**LATENT, index_heads=4, index_dim=12, index_topk=6),
    "window": lambda: Compressed(**V4),
    "CSA": lambda: CSA(**V4, rate=4, index_heads=4, index_dim=12, index_topk=5),
    "HCA": lambda: HCA(**V4, rate=16),
    "GDN": lambda: GatedDeltaNet(hidden=32, key_heads=2, heads=4, key_dim=8, value_dim=8),
    "hybrid": lambda: Hybrid(
        hidden=32,
        heads=dict(heads=4, kv_heads=2, head_dim=8, rope=4),
        delta=dict(key_heads=2, heads=4, key_dim=8, value_dim=8),
    ),
    "KDA": lambda: KDA(hidden=32, heads=3, head_dim=8),
}
each_family = pytest.mark.parametrize("name", FAMILIES)


def tokens(count: int = LENGTH, hidden: int = 32) -> torch.Tensor:
    return torch.randn(count, hidden, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def in_pieces(layer: Family, x: torch.Tensor, cuts: list[int]) -> torch.Tensor:
    state, ends = layer.new(), sorted({*cuts, len(x)} - {0})
    parts = [layer(x[a:b], state) for a, b in zip([0, *ends], ends, strict=False)]
    assert state.length == len(x)
    return torch.cat(parts)


@each_family
@pytest.mark.parametrize("first", [1, 3, 4, 5, 127, 128, 129])
def test_any_first_piece_gives_the_same(name: str, first: int):
    layer, x = filled(FAMILIES[name]()), tokens()
    torch.testing.assert_close(in_pieces(layer, x, [first]), layer(x, layer.new()), rtol=1e-9, atol=1e-9)


@each_family
@settings(max_examples=8, deadline=None)
@given(cuts=st.lists(st.integers(1, 39), max_size=6))
def test_any_cut_gives_the_same(name: str, cuts: list[int]):
    layer, x = filled(FAMILIES[name]()), tokens(40)
    torch.testing.assert_close(in_pieces(layer, x, cuts), layer(x, layer.new()), rtol=1e-9, atol=1e-9)


@each_family
def test_token_by_token_gives_the_same(name: str):
    layer, x = filled(FAMILIES[name]()), tokens(40)
    torch.testing.assert_close(in_pieces(layer, x, list(range(40))), layer(x, layer.new()), rtol=1e-9, atol=1e-9)


@each_family
def test_no_token_sees_a_later_one(name: str):
    layer, x = filled(FAMILIES[name]()), tokens(40)
    changed = x.clone()
    changed[23:] += 1
    a, b = (layer(y, layer.new()) for y in (x, changed))
    torch.testing.assert_close(a[:23], b[:23], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(a[23], b[23])


@each_family
def test_a_copied_state_goes_on_by_itself(name: str):
    layer, x = filled(FAMILIES[name]()), tokens(40)
    state = layer.new()
    layer(x[:21], state)
    kept = state.copy()
    layer(x[21:30] + 1, state)
    torch.testing.assert_close(layer(x[21:], kept), layer(x, layer.new())[21:], rtol=1e-9, atol=1e-9)


def test_absorbed_mla_is_naive_mla():
    absorbed, naive, x = filled(MLA(**LATENT)), filled(MLA(**LATENT, absorbed=False)), tokens()
    torch.testing.assert_close(absorbed(x, absorbed.new()), naive(x, naive.new()), rtol=1e-12, atol=1e-12)


def test_dsa_that_may_read_all_is_mla():
    dsa, mla, x = (
        filled(DSA(**LATENT, index_heads=4, index_dim=12, index_topk=LENGTH)),
        MLA(**LATENT).double(),
        tokens(),
    )
    mla.load_state_dict({n: p for n, p in dsa.state_dict().items() if not n.startswith("indexer.")})
    torch.testing.assert_close(dsa(x, dsa.new()), mla(x, mla.new()), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("size", [1, 5, 16, 64])
def test_chunked_delta_rule_is_the_recurrent_one(per_channel: bool, size: int):
    T, H, K, V = 37, 3, 8, 6
    g = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(T, H, d, generator=g, dtype=torch.float64) for d in (K, K, V))
    decay = -torch.rand(T, H, *([K] if per_channel else []), generator=g, dtype=torch.float64) * 3
    beta = torch.rand(T, H, generator=g, dtype=torch.float64)
    S = torch.randn(H, K, V, generator=g, dtype=torch.float64)
    k = k / k.norm(dim=-1, keepdim=True)
    for a, b in zip(
        delta.chunked(q, k, v, decay, beta, S, size=size), delta.recurrent(q, k, v, decay, beta, S), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def golden(folder: str) -> tuple[dict, dict, dict]:
    """Config, weights, trace."""
    config = json.loads((GOLDEN / folder / "config.json").read_text(encoding="utf-8"))
    return config, *(load_file(GOLDEN / folder / f"{name}.safetensors") for name in ("model", "trace"))


def loaded(layer: Family, weights: dict, prefix: str) -> Family:
    layer.load_state_dict({n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)})
    return layer.double()


def assert_reproduces(layer: Family, trace: dict, layer_id: int) -> None:
    x, y = (trace[f"L{layer_id}.attn_{side}"].double() for side in ("in", "out"))
    torch.testing.assert_close(in_pieces(layer, x, [5, 6, 23]), y, rtol=0, atol=2e-5 * float(y.abs().max()))


@pytest.mark.parametrize("layer_id", [0, 1, 2])
def test_dsa_reproduces_the_reference(layer_id: int):
    c, weights, trace = golden("v32_tiny")
    layer = DSA(
        hidden=c["hidden_size"],
        heads=c["num_attention_heads"],
        q_lora=c["q_lora_rank"],
        kv_lora=c["kv_lora_rank"],
        nope=c["qk_nope_head_dim"],
        rope=c["qk_rope_head_dim"],
        v=c["v_head_dim"],
        index_heads=c["index_n_heads"],
        index_dim=c["index_head_dim"],
        index_topk=c["index_topk"],
    )
    assert_reproduces(loaded(layer, weights, f"model.layers.{layer_id}.self_attn."), trace, layer_id)


@pytest.mark.parametrize("layer_id", [0, 1, 2, 3])
def test_window_csa_and_hca_reproduce_the_reference(layer_id: int):
    c, weights, trace = golden("v4_tiny")
    shape = dict(
        hidden=c["hidden_size"],
        heads=c["num_attention_heads"],
        head_dim=c["head_dim"],
        rope=c["qk_rope_head_dim"],
        q_lora=c["q_lora_rank"],
        o_groups=c["o_groups"],
        o_lora=c["o_lora_rank"],
        window=c["sliding_window"],
        eps=c["rms_norm_eps"],
    )
    yarn = c["rope_parameters"]["compress"]
    names = ("factor", "beta_fast", "beta_slow", "original_max_position_embeddings")
    stretched = dict(theta=yarn["rope_theta"], scaling=RopeScaling(**{n: yarn[n] for n in names}))
    index = dict(index_heads=c["index_n_heads"], index_dim=c["index_head_dim"], index_topk=c["index_topk"])
    kind = c["layer_types"][layer_id]
    if kind == "sliding_attention":
        layer = Compressed(**shape)
    elif kind == "heavily_compressed_attention":
        layer = HCA(**shape, **stretched, rate=c["compress_rates"][kind])
    else:
        layer = CSA(**shape, **stretched, **index, rate=c["compress_rates"][kind])
    assert_reproduces(loaded(layer, weights, f"model.layers.{layer_id}.self_attn."), trace, layer_id)


@pytest.mark.parametrize("layer_id", [0, 1, 2, 3])
def test_gated_deltanet_and_gated_heads_reproduce_the_reference(layer_id: int):
    c, weights, trace = golden("qwen3_next_tiny")
    if c["layer_types"][layer_id] == "linear_attention":
        layer = GatedDeltaNet(
            hidden=c["hidden_size"],
            key_heads=c["linear_num_key_heads"],
            heads=c["linear_num_value_heads"],
            key_dim=c["linear_key_head_dim"],
            value_dim=c["linear_value_head_dim"],
        )
        prefix = f"model.layers.{layer_id}.linear_attn."
    else:
        layer = GatedHeads(
            hidden=c["hidden_size"],
            heads=c["num_attention_heads"],
            kv_heads=c["num_key_value_heads"],
            head_dim=c["head_dim"],
            rope=int(c["head_dim"] * c["rope_parameters"]["partial_rotary_factor"]),
        )
        prefix = f"model.layers.{layer_id}.self_attn."
    assert_reproduces(loaded(layer, weights, prefix), trace, layer_id)


@pytest.mark.parametrize("layer_id", [1, 4])
def test_hca_without_bias_and_query_norm_is_a_full_layer_of_v41(layer_id: int):
    model = tiny(qat=False, index_topk=40, candidate_topk_blocks=20)
    trace = model.trace(torch.randint(5, model.config.vocab_size, (37,), generator=torch.Generator().manual_seed(0)))
    x, out = (trace[f"L{layer_id}.attn.{name}"] for name in ("x", "out"))
    torch.testing.assert_close(in_pieces(as_hca(model, layer_id), x, [1, 8, 9]), out, rtol=1e-10, atol=1e-10)
    with_norm = in_pieces(as_hca(model, layer_id, query_norm=True), x, [1, 8, 9])
    assert not torch.allclose(with_norm, out, rtol=0, atol=1e-3)


def test_only_one_layer_in_four_of_the_hybrid_grows():
    layer = filled(FAMILIES["hybrid"]())
    held = []
    for count in (10, 20):
        state = layer.new()
        layer(tokens(count), state)
        held.append(state.nbytes())
    (rows, fixed), (more, still) = held
    assert more == 2 * rows == 20 * 2 * 2 * 8 * 8  # a key and a value, two heads of eight float64
    assert fixed == still == 3 * (4 * 8 * 8 + 3 * 64) * 8  # matrices and three inputs of the convolution
