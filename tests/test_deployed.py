"""Bytes of deployed models against figures that were published or derived elsewhere."""

from __future__ import annotations

import pytest
from rich.console import Console

from minidsv41.ledger.deployed import MODELS, V4_ROW, model, qwen35, v4
from minidsv41.ledger.models import V1_67B, V3_2, V4_FLASH
from minidsv41.ledger.parts import Compressed, LatentRows
from minidsv41.ledger.show import print_models

K128, M1 = 131_072, 1_048_576
PER_TOKEN = {
    "DeepSeek-67B": 389_120,
    "DeepSeek-V3.2": 48_068,
    "DeepSeek-V4-Flash": 3_514.25,
    "DeepSeek-V4-Pro": 5_031.4375,
    "DeepSeek-V4.1-Flash": 890,
    "Kimi K2": 70_272,
    "Kimi-Linear-48B": 8_064,
    "Kimi K3": 27_648,
    "GLM-5": 89_856 + 10_296,
    "GLM-5.3-Flash": 11_440,
    "Qwen3.5-397B": 30_720,
}


@pytest.mark.parametrize("name", PER_TOKEN)
def test_bytes_per_token(name: str):
    assert model(name).per_token.value == PER_TOKEN[name]


def test_every_model_has_its_bytes_checked():
    assert {m.name for m in MODELS} == PER_TOKEN.keys()


@pytest.mark.parametrize(
    ("name", "context", "megabytes"),
    [
        ("DeepSeek-V3.2", K128, 1_137),
        ("DeepSeek-V3.2", M1, 8_525),
        ("DeepSeek-V4-Flash", K128, 68),
        ("DeepSeek-V4-Flash", M1, 480),
        ("DeepSeek-V4-Pro", K128, 108),
        ("DeepSeek-V4-Pro", M1, 706),
        ("DeepSeek-V4.1-Flash", K128, 35),
        ("DeepSeek-V4.1-Flash", M1, 191),
        ("Kimi K2", K128, 9_211),
    ],
)
def test_reads_of_a_decode_step(name: str, context: int, megabytes: float):
    assert float(model(name).reads(context).value) / 1e6 == pytest.approx(megabytes, rel=0.012)


def test_scanning_index_keys_is_most_of_what_v41_reads_at_a_million():
    flash = model("DeepSeek-V4.1-Flash")
    scans = (3 * M1 // 2 + M1) * 68
    assert scans / float(flash.reads(M1).value) == pytest.approx(0.93, abs=0.005)


def test_the_state_of_qwen_outweighs_its_rows_until_3072_tokens_in_bf16_and_6144_in_fp32():
    for size, tokens in ((2, 3_072), (4, 6_144)):
        rows, state = qwen35(size).parts
        assert state.matrices.value / rows.per_token.value == tokens
    assert float(qwen35(2).crossover.value) == pytest.approx(3_180, abs=1)


def test_states_that_do_not_grow():
    assert qwen35(2).parts[1].matrices.value == 94_371_840
    assert qwen35(4).parts[1].matrices.value == 188_743_680
    assert model("Kimi K3").parts[1].matrices.value == 96 * 128 * 128 * 69 * 4 == 434_110_464
    assert model("Kimi-Linear-48B").parts[1].matrices.value == 41_943_040
    assert model("GLM-5.3-Flash").parts[1].matrices.value == 142_606_336
    assert model("DeepSeek-V4.1-Flash").per_request.value == 40 * 128 * 528


def test_tokens_wait_until_their_group_is_whole():
    """V4: up to 7 tokens in CSA, whose groups overlap, and 127 in HCA, each with values and scores in FP32."""
    csa, hca, _ = model("DeepSeek-V4-Flash").parts
    assert csa.open_groups.value == 21 * 7 * (2 * 1024 + 2 * 256) * 4
    assert hca.open_groups.value == 20 * 127 * 1024 * 4
    assert float(model("DeepSeek-V4-Flash").open_groups.value) / 2**20 == pytest.approx(11.4, abs=0.05)
    assert model("DeepSeek-V4.1-Flash").open_groups.value == 3 * 1024 * 4
    assert not model("Qwen3.5-397B").open_groups.value


def test_what_a_prefix_ends_at_is_the_strictest_of_its_parts(capsys: pytest.CaptureFixture):
    assert [part.prefix for part in model("GLM-5.3-Flash").parts] == ["every 16 tokens", "where a state was saved"]
    print_models(Console(width=240))
    rows = {line.split("  ")[0].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert "at any token" in rows["Kimi K2"] and "at any token" not in rows["Qwen3.5-397B"]


def test_a_hand_over_of_128k_tokens():
    assert model("Kimi K2").held(K128).value == 9_210_691_584
    assert float(model("DeepSeek-V3.2").held(K128).value) == pytest.approx(6.30e9, rel=0.001)
    assert float(qwen35(2).held(K128).value) == pytest.approx(4_026.5e6 + 97.7e6, rel=1e-4)
    assert float(model("DeepSeek-V4.1-Flash").held(K128).value) == pytest.approx((116.7 + 2.7) * 1e6, rel=1e-3)


def test_the_same_as_the_records_that_the_ledger_already_has():
    for record, name in ((V1_67B, "DeepSeek-67B"), (V3_2, "DeepSeek-V3.2"), (V4_FLASH, "DeepSeek-V4-Flash")):
        assert record.books()["kv_bytes_per_token"].value == model(name).per_token.value


def test_v4_pro_in_bf16_is_what_one_article_calls_ten_kilobytes():
    csa = Compressed(layers=30, rate=4, row=1024, key=256, topk=1024)
    hca = Compressed(layers=31, rate=128, row=1024)
    assert (csa.per_token + hca.per_token).value == 9_848


def test_other_layouts_move_the_numbers():
    fp8 = v4("DeepSeek-V4-Flash", csa=21, hca=20, layers=43, topk=512, key=132)
    assert fp8.per_token.value - model("DeepSeek-V4-Flash").per_token.value == 21 / 4 * (132 - 68)
    assert LatentRows(layers=61, row=656).per_token.value == 40_016
    assert 3 * (V4_ROW + 68) / 2 + (V4_ROW + 68) == 1_630


def test_mqa_cannot_be_split_and_gqa_can():
    assert model("DeepSeek-67B").parts[0].split == "by KV head, 8 ways"
    assert "not by head" in model("Kimi K2").parts[0].split
    assert model("Kimi K3").parts[1].split == "by head, 96 ways"


def test_an_unknown_model_is_answered_with_the_known_ones():
    with pytest.raises(KeyError, match="Kimi K3"):
        model("K4")


def test_every_sum_can_be_opened():
    for m in MODELS:
        for line in (m.per_token, m.held(K128), m.reads(K128)):
            assert line.unit
            assert line.formula
            assert line.parts


def test_the_table_names_every_model_and_what_is_assumed(capsys: pytest.CaptureFixture):
    print_models(Console(width=200))
    text = capsys.readouterr().out
    assert all(m.name in text for m in MODELS)
    assert "head_dim 128 of KDA assumed" in text
