"""The released config is read unchanged; what cannot be is refused with field, value and rule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minidsv41.config import PRESETS, ConfigError, ModelConfig, RopeScaling

GOLDEN = json.loads((Path(__file__).parent / "golden" / "v41_tiny" / "config.json").read_text(encoding="utf-8"))
YARN = GOLDEN["text_config"]["rope_scaling"]


def changed(top: dict | None = None, **text) -> dict:
    return GOLDEN | {"text_config": GOLDEN["text_config"] | text} | (top or {})


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_the_file(name: str) -> None:
    config = ModelConfig.preset(name)
    assert ModelConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_keys_of_other_parts_are_left_alone() -> None:
    top = {"vision_config": {"depth": 2}, "transformers_version": "5", "something": None}
    assert ModelConfig.from_json(changed(top, use_cache=True, gate_temp=1)) == ModelConfig.from_json(GOLDEN)


@pytest.mark.parametrize(
    "legal",
    [
        {"q_lora_rank": 48, "o_lora_rank": 7},
        {"engram_layer_ids": [], "engram_num_embeddings": []},
        {"engram_layer_ids": [0, 7]},
        {"sliding_window": 5000, "index_topk": 9, "candidate_block_size": 4},
        {"num_nextn_predict_layers": 1, "compress_ratios": [0, 0, 2, 2, 1, 1, 1, 1, 0]},
        {"compress_ratios": [2] * 8 + [0] * 3, "kv_source_layer_ids": [0, 4], "index_source_layer_ids": [0, 1, 4, 5]},
        {"compress_ratios": [1] * 8 + [0] * 3, "kv_source_layer_ids": [0], "index_source_layer_ids": [0, 5]}
        | {"candidate_source_layer_id": 0},
        {"swiglu_limit": 1e9, "rope_scaling": YARN | {"factor": 2.5, "beta_fast": 8, "more": 1}},
    ],
    ids=str,
)
def test_other_shapes_are_read(legal: dict) -> None:
    config = ModelConfig.from_json(changed(**legal))
    assert ModelConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ({"compress_ratios": [0, 0, 3, 2, 1, 1, 1, 1, 0, 0, 0]}, "compress_ratios[2] = 3: allowed are 0, 1, 2"),
        ({"compress_ratios": [0, 0, 2, 1, 1, 1, 1, 1, 0, 0, 0]}, "compress_ratios[3] = 1: its owner, layer 2, has 2"),
        ({"compress_ratios": [0, 0, 2, 2, 1, 1, 1, 1, 0, 1, 0]}, "compress_ratios[9] = 1: DSpark blocks have window"),
        ({"compress_ratios": [0, 0, 2, 2, 1, 1, 1, 1]}, "one for each of 11 layers and DSpark blocks"),
        (
            {"kv_source_layer_ids": [3, 4], "index_source_layer_ids": [3, 4, 6]},
            "kv_source_layer_ids = (3, 4): layer 2 reads entries, but no source stands at or before it",
        ),
        ({"kv_source_layer_ids": [1, 2, 4]}, "kv_source_layer_ids[0] = 1: layer 1 has compress_ratio 0"),
        ({"index_source_layer_ids": [2, 6]}, "kv_source_layer_ids[1] = 4: an owner of entries must also be in index_"),
        ({"index_source_layer_ids": [2, 4, 8]}, "index_source_layer_ids[2] = 8: a layer below 8"),
        ({"index_source_layer_ids": [4, 2, 6]}, "index_source_layer_ids = (4, 2, 6): must ascend without repetition"),
        ({"candidate_source_layer_id": 6}, "candidate_source_layer_id = 6: must be one of kv_source_layer_ids"),
        ({"candidate_source_layer_id": 2}, "candidate_source_layer_id = 2: Reindex layer 6 reads owner 4"),
        ({"candidate_topk_blocks": 2}, "candidate_topk_blocks = 2: (blocks - 1) * 4 + 1 must reach index_topk = 6"),
        ({"qk_rope_head_dim": 15}, "qk_rope_head_dim = 15: must be even"),
        ({"qk_rope_head_dim": 64}, "qk_rope_head_dim = 64: at most index_head_dim = 32"),
        ({"head_dim": 48}, "head_dim = 48: a multiple of 32"),
        ({"hidden_size": 80}, "hidden_size = 80: a multiple of 32"),
        ({"o_groups": 3}, "o_groups = 3: must divide num_attention_heads = 4"),
        ({"num_hidden_layers": 7}, "num_hidden_layers = 7: must be even"),
        ({"num_nextn_predict_layers": 0}, "num_nextn_predict_layers = 0: a positive integer"),
        ({"num_experts_per_tok": 10}, "num_experts_per_tok = 10: at most n_routed_experts = 9"),
        ({"dspark_num_experts_per_tok": 7}, "dspark_num_experts_per_tok = 7: at most"),
        ({"dspark_target_layer_ids": [7, 5, 6]}, "dspark_target_layer_ids = (7, 5, 6): must ascend"),
        ({"dspark_target_layer_ids": [5, 8]}, "dspark_target_layer_ids[1] = 8: a layer below 8"),
        ({"dspark_noise_token_id": 256}, "dspark_noise_token_id = 256: a token id below vocab_size = 256"),
        ({"engram_num_embeddings": [434, 607]}, "the primes from engram_vocab_size = 61 sum to (434, 606)"),
        ({"engram_num_embeddings": []}, "engram_num_embeddings = (): one number for each of engram_layer_ids = (1, 3)"),
        ({"engram_compressed_vocab_size": 257}, "engram_compressed_vocab_size = 257: at most vocab_size = 256"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu': only 'silu' is implemented"),
        ({"gate_temp": 2.0}, "gate_temp = 2.0: only 1.0 is implemented"),
        ({"compress_rope_theta": 1}, "compress_rope_theta = 1: must be above 1"),
        ({"rope_scaling": None}, "rope_scaling = None: an object with rope_type, factor"),
        ({"rope_scaling": YARN | {"rope_type": "linear"}}, "rope_scaling.rope_type = 'linear': only 'yarn'"),
        ({"rope_scaling": YARN | {"factor": "16"}}, "rope_scaling.factor = '16': a finite number"),
        ({"rope_scaling": YARN | {"beta_slow": 0}}, "rope_scaling.beta_slow = 0: must be positive"),
        ({"rope_scaling": YARN | {"beta_fast": 0.5}}, "rope_scaling.beta_fast = 0.5: at least beta_slow = 1"),
    ],
    ids=lambda v: v if isinstance(v, str) else None,
)
def test_what_cannot_be_is_refused(text: dict, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        ModelConfig.from_json(changed(**text))
    assert said in str(error.value)


ODD = [None, "64", 1.5, 64.0, True, [64], {"a": 1}, float("nan"), float("inf")]
FITTING = {"int": (), "float": (1.5, 64.0), "tuple[int, ...]": ([64],), "bool": (True,)}


@pytest.mark.parametrize("name", [n for n in ModelConfig.__dataclass_fields__ if n != "rope_scaling"])
def test_a_value_of_another_type_is_refused_by_name(name: str) -> None:
    kind = ModelConfig.__dataclass_fields__[name].type
    for value in ODD:
        if any(value is v or type(value) is type(v) and value == v for v in FITTING[kind]):
            continue
        with pytest.raises(ConfigError, match=f"^{name} = "):
            ModelConfig.from_json(changed({name: value} if name in GOLDEN else None, **{name: value}))


@pytest.mark.parametrize(
    ("top", "said"),
    [
        ({"text_config": None}, "text_config = None: an object is expected"),
        ({"text_config": {}}, "missing from the config: candidate_block_size"),
        ({"quantization_config": "fp8"}, "quantization_config = 'fp8': an object is expected"),
        ({"quantization_config": {"weight_block_size": [128, 128]}}, "quantization_config.weight_block_size"),
        ({"image_token_id": 256}, "image_token_id = 256: a token id below vocab_size = 256"),
    ],
)
def test_odd_files_are_refused(top: dict, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        ModelConfig.from_json(GOLDEN | top)
    assert said in str(error.value)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe"])
def test_a_file_without_a_json_object_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.json: "):
        ModelConfig.from_json(tmp_path / "config.json")


def test_modes_and_owners_follow_the_release() -> None:
    c = ModelConfig.preset("flash")
    modes = [c.mode(layer) for layer in range(c.num_hidden_layers)]
    assert {m: modes.count(m) for m in set(modes)} == {"window": 2, "full": 4, "reindex": 4, "reuse": 30}
    assert [c.kv_owner(layer) for layer in (1, 2, 7, 8, 19, 20, 39)] == [None, 2, 2, 8, 14, 20, 20]
    assert [c.index_owner(layer) for layer in (1, 7, 23, 24, 39)] == [None, 2, 20, 24, 36]
    assert c.rope_scaling == RopeScaling()
