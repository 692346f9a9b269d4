"""The families against `transformers`, run here with random weights of other sizes than those of the golden data."""

from __future__ import annotations

import pytest
import torch

from minidsv41.config import RopeScaling
from minidsv41.families import CSA, DSA, HCA, KDA, GatedDeltaNet, GatedHeads
from minidsv41.families.compressed import Compressed
from tests.test_families import in_pieces

transformers = pytest.importorskip("transformers", minversion="5.24")
pytestmark = pytest.mark.slow

LENGTH = 131
SHAPE = dict(
    vocab_size=64,
    hidden_size=48,
    num_hidden_layers=4,
    intermediate_size=32,
    moe_intermediate_size=16,
    num_experts_per_tok=2,
    max_position_embeddings=1024,
    attn_implementation="eager",
    experts_implementation="eager",
)


def run(model_class: str, config) -> tuple[list[dict], list[tuple[torch.Tensor, torch.Tensor]]]:
    """A random model of that class on random tokens -> weights, input and output of each layer's attention."""
    model = getattr(transformers, model_class)(config).eval().double().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for name, p in model.named_parameters():
        spread = p.shape[-1] ** -0.5 if p.dim() > 1 else 0.3
        p.copy_(spread * torch.randn(p.shape, generator=generator) + ("norm" in name and p.dim() == 1))
    mixers = [getattr(layer, "linear_attn", None) or layer.self_attn for layer in model.layers]
    seen: list = [None] * len(mixers)

    def watch(i: int):
        def note(module, args, kwargs, out):
            x = args[0] if args else kwargs["hidden_states"]
            seen[i] = (x[0], (out[0] if isinstance(out, tuple) else out)[0])

        return note

    for i, mixer in enumerate(mixers):
        mixer.register_forward_hook(watch(i), with_kwargs=True)
    model(torch.randint(0, config.vocab_size, (1, LENGTH), generator=generator))
    return [m.state_dict() for m in mixers], seen


def assert_same(layer, weights: dict, seen: tuple[torch.Tensor, torch.Tensor]) -> None:
    """transformers computes norms, gates and angles in float32 even in a float64 model, hence the tolerance."""
    layer.load_state_dict(weights)
    x, y = seen
    found = in_pieces(layer.double().requires_grad_(False), x, [1, 3, 64, 127, 128])
    torch.testing.assert_close(found, y, rtol=0, atol=2e-5 * float(y.abs().max()))


def test_window_csa_and_hca():
    kinds = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
    yarn = dict(factor=16.0, beta_fast=32, beta_slow=1, original_max_position_embeddings=64)
    config = transformers.DeepseekV4Config(
        **SHAPE | dict(num_hidden_layers=3),
        num_attention_heads=6,
        head_dim=24,
        qk_rope_head_dim=8,
        q_lora_rank=20,
        o_groups=3,
        o_lora_rank=10,
        sliding_window=16,
        index_n_heads=16,
        index_head_dim=12,
        index_topk=7,
        layer_types=kinds,
        mlp_layer_types=["moe"] * 3,
        compress_rates={kinds[1]: 4, kinds[2]: 32},
        n_routed_experts=4,
        partial_rotary_factor=8 / 24,
        rope_parameters={
            "main": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 8 / 24},
            "compress": {"rope_type": "yarn", "rope_theta": 16e4, "partial_rotary_factor": 8 / 24}
            | yarn
            | {"attention_factor": 1.0},
        },
    )
    weights, seen = run("DeepseekV4Model", config)
    shape = dict(hidden=48, heads=6, head_dim=24, rope=8, q_lora=20, o_groups=3, o_lora=10, window=16, eps=1e-6)
    far = dict(theta=16e4, scaling=RopeScaling(**yarn))
    layers = [
        Compressed(**shape),
        CSA(**shape, **far, rate=4, index_heads=16, index_dim=12, index_topk=7),
        HCA(**shape, **far, rate=32),
    ]
    for layer, w, s in zip(layers, weights, seen, strict=True):
        assert_same(layer, w, s)


def test_dsa():
    config = transformers.DeepseekV32Config(
        **SHAPE | dict(num_hidden_layers=2),
        num_attention_heads=3,
        num_key_value_heads=3,
        q_lora_rank=20,
        kv_lora_rank=16,
        qk_nope_head_dim=12,
        qk_rope_head_dim=8,
        v_head_dim=10,
        index_n_heads=16,
        index_head_dim=24,
        index_topk=9,
        mlp_layer_types=["dense"] * 2,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
    )
    shape = dict(hidden=48, heads=3, q_lora=20, kv_lora=16, nope=12, rope=8, v=10)
    for w, s in zip(*run("DeepseekV32Model", config), strict=True):
        assert_same(DSA(**shape, index_heads=16, index_dim=24, index_topk=9), w, s)


def test_gated_deltanet_and_gated_heads():
    config = transformers.Qwen3NextConfig(
        **SHAPE,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=24,
        linear_num_key_heads=2,
        linear_num_value_heads=6,
        linear_key_head_dim=8,
        linear_value_head_dim=12,
        num_experts=4,
        shared_expert_intermediate_size=16,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    )
    for kind, w, s in zip(config.layer_types, *run("Qwen3NextModel", config), strict=True):
        if kind == "linear_attention":
            layer = GatedDeltaNet(hidden=48, key_heads=2, heads=6, key_dim=8, value_dim=12)
        else:
            layer = GatedHeads(hidden=48, heads=4, kv_heads=1, head_dim=24, rope=12)
        assert_same(layer, w, s)


def test_kda():
    from transformers.models.kimi_linear import modeling_kimi_linear as kimi

    config = transformers.KimiLinearConfig(
        **SHAPE | dict(num_hidden_layers=1),
        layer_types=["linear_attention"],
        mlp_layer_types=["dense"],
        num_attention_heads=3,
        linear_num_heads=3,
        rms_norm_eps=1e-6,
        linear_head_dim=8,
    )
    layer = kimi.KimiLinearDeltaAttention(config, 0).double().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for p in layer.parameters():
        p.copy_(0.5 * torch.randn(p.shape, generator=generator))
    x = torch.randn(LENGTH, 48, generator=generator, dtype=torch.float64)
    assert_same(KDA(hidden=48, heads=3, head_dim=8), layer.state_dict(), (x, layer(x[None])[0]))
