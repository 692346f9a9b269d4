"""From MHA to V4.1: what a step reads and computes, and the numbers that lesson 01 rests on."""

from __future__ import annotations

import pytest
import torch

from minidsv41.course import intensity, panels
from minidsv41.course.intensity import DTYPES, SHAPES, amount, attainable, described, layer_of, shape
from minidsv41.course.kinship import as_hca
from minidsv41.course.lessons import l01
from minidsv41.course.pictures import intensity as pictures
from minidsv41.course.published import ARTICLE, FLASHMLA, Published
from minidsv41.course.records import record
from minidsv41.course.sabotage import sabotage
from minidsv41.families import MLA, State
from minidsv41.families.compressed import Compressed
from minidsv41.ledger import deployed
from minidsv41.ledger.machines import MACHINES, machine
from minidsv41.train.bench_absorption import AbsorptionConfig, crossing
from tests.tiny import tiny

K128 = 131_072
NAMES = {m.name for m in deployed.MODELS}
AT = dict(model="DeepSeek-V3", context=17, queries=1, dtype="as deployed", card="H20")


@pytest.mark.parametrize("context", [1_000, 1_024, K128, 1_048_576])
@pytest.mark.parametrize("s", [s for s in SHAPES if s.name in NAMES], ids=lambda s: s.name)
def test_shapes_keep_and_read_what_the_ledger_says(s: intensity.Shape, context: int):
    work, books = s.work(context), deployed.model(s.name)
    assert work.read == books.reads(context).value
    if context >= 1_024:  # the ledger counts a closed group for every part of one
        assert work.held == books.held(context).value


def test_five_of_the_shapes_stand_in_the_ledger():
    assert len({s.name for s in SHAPES} & NAMES) == 5


def test_intensity_is_that_of_the_article():
    assert layer_of(128).work(K128).intensity == pytest.approx(241.8, abs=0.05)
    assert layer_of(16).work(K128).intensity == pytest.approx(30.2, abs=0.05)
    assert layer_of(128).work(K128, queries=2).intensity == 2 * layer_of(128).work(K128).intensity
    assert shape("MHA of V3's size").work(K128).intensity == 1 and shape("DeepSeek-67B").work(K128).intensity == 8
    assert layer_of(128).work(656).flops / 656**2 == pytest.approx(424.6, abs=0.05)  # rows of 656 B


def test_mla_saves_57_times_the_bytes_of_mha_and_28_counts_keys_alone():
    mha, mla = (shape(n).work(K128) for n in ("MHA of V3's size", "DeepSeek-V3"))
    assert mha.read / mla.read == pytest.approx(56.9, abs=0.05) and mla.flops / mha.flops == 4.25
    assert mha.read / mla.read / 2 == pytest.approx(28.4, abs=0.05)
    own = 128 * (192 + 128)  # V3's own heads: keys 192, values 128
    assert own / 576 == pytest.approx(71.1, abs=0.05)


def test_absorbed_reading_wins_below_171_queries():
    c = AbsorptionConfig(heads=128, prefix=10**9)
    costs = {n: c.flops(n) for n in (170, 171)}
    assert costs[170][0] > costs[170][1] and costs[171][0] < costs[171][1]
    pair = [2 * 128 * width for width in (192 + 128, 576 + 512)]
    assert pair == [81_920, 278_528] and pair[1] / pair[0] == pytest.approx(3.4)
    expand = 2 * 512 * 128 * (128 + 128)
    assert expand / (pair[1] - pair[0]) == pytest.approx(170.67, abs=0.01)
    assert expand * K128 / 1e9 == pytest.approx(4_398, abs=0.1)
    assert 61 * expand * K128 / (2 * 37e9) == pytest.approx(3_625, abs=1)


def test_the_recorded_forms_cross_once_and_later_than_counted():
    results = record("bench_absorption")["results"]
    assert crossing(results["seconds"]) == results["crossing"]
    ahead = [row["absorbed"] < row["naive"] for row in results["seconds"]]
    assert ahead == sorted(ahead, reverse=True) and ahead[0] and not ahead[-1]
    assert 164 < results["crossing"] < 250


def test_the_article_s_figures_agree_with_each_other():
    assert ARTICLE.tflops == pytest.approx(91.3, abs=0.05) and ARTICLE.terabytes == pytest.approx(0.377, abs=5e-4)
    assert 85 < ARTICLE.tflops < 106
    assert machine("H20").binds(ARTICLE.work.flops, ARTICLE.work.read) == "arithmetic"
    assert 21 < 85 / 4 < 23 and 26 < 106 / 4 < 27  # 16 of 64 rows of a tile; reported 23 to 26


@pytest.mark.parametrize(("run", "tflops"), list(zip(FLASHMLA, (129, 130, 85, 328), strict=True)))
def test_published_times_give_the_rates_published_beside_them(run: Published, tflops: float):
    assert run.tflops == pytest.approx(tflops, rel=0.005)
    on = machine(run.card)
    assert on.seconds(run.work.flops, run.work.read) < run.milliseconds / 1e3  # nobody beats the roof


def test_an_h20_computes_and_an_h100_reads():
    one, two = (layer_of(128).work(K128, queries=q) for q in (1, 2))
    h20, h100 = machine("H20"), machine("H100")
    assert h20.seconds(two.flops, two.read) == 2 * h20.seconds(one.flops, one.read)
    assert h100.seconds(two.flops, two.read) < 1.7 * h100.seconds(one.flops, one.read)
    mha = shape("MHA of V3's size").work(K128)
    mla = shape("DeepSeek-V3").work(K128)
    assert h20.seconds(mha.flops, mha.read) / h20.seconds(mla.flops, mla.read) == pytest.approx(8.7, abs=0.05)


@pytest.mark.parametrize("shift", [1, 1000])
def test_turned_back_a_value_knows_only_distances(shift: int):
    generator = torch.Generator().manual_seed(0)
    layer = Compressed(hidden=16, heads=2, head_dim=8, rope=4, q_lora=8, o_groups=2, o_lora=4, window=5)
    for p in layer.parameters():
        p.data = torch.randn(p.shape, generator=generator)
    layer, x = layer.double(), torch.randn(9, 16, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(layer(x, State(length=shift)), layer(x, layer.new()), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layer", [1, 4])
def test_our_full_layer_is_hca_without_bias_and_query_norm(layer: int):
    model = tiny(qat=False, index_topk=40, candidate_topk_blocks=20)
    trace = model.trace(torch.randint(5, model.config.vocab_size, (37,), generator=torch.Generator().manual_seed(0)))
    x, out = (trace[f"L{layer}.attn.{name}"] for name in ("x", "out"))
    for norm in (False, True):
        hca = as_hca(model, layer, query_norm=norm)
        assert torch.allclose(hca(x, hca.new()), out, rtol=1e-10, atol=1e-10) is not norm


def test_only_a_full_layer_can_be_hca():
    with pytest.raises(ValueError, match="layer = 2: must be a Full layer"):
        as_hca(tiny(), 2)


@pytest.fixture(scope="module")
def asked():
    return panels.pictures()


@pytest.mark.parametrize("query", [0, 3, 4, 7, 30, 63])
def test_pictures_show_what_families_read(asked, query: int):
    found = {p.name: p for p in asked(query)}
    everything, near = tuple(range(query + 1)), tuple(range(max(0, query - panels.WINDOW + 1), query + 1))
    assert found["MHA"].tokens == found["MLA"].tokens == everything
    assert len(found["DSA"].tokens) == min(12, query + 1) and set(found["DSA"].tokens) <= set(everything)
    for name, rate in (("CSA", 4), ("HCA", 8), ("V4.1", 2)):
        assert found[name].tokens == near
        assert all(first < last <= query and (last + 1) % rate == 0 for first, last in found[name].entries)
        assert found[name].kept == len(near) + (query + 1) // rate
    assert len(found["HCA"].entries) == (query + 1) // 8 and len(found["CSA"].entries) == min(4, (query + 1) // 4)
    assert all(last - first == 7 or first == 0 for first, last in found["CSA"].entries)
    assert all(p.read <= p.kept for p in found.values())


def test_each_control_of_the_widget_changes_the_text():
    said = described(**AT)
    others = dict(model="Kimi K2", context=18, queries=2, dtype="FP8", card="H100")
    assert len({said} | {described(**AT | {name: value}) for name, value in others.items()}) == 1 + len(others)
    assert "does not fit" not in said and "does not fit" in described(**AT | {"model": "MHA of V3's size"})
    assert pictures.on_machine(**AT) is not None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("s", SHAPES, ids=lambda s: s.name)
def test_every_shape_has_a_floor_on_every_machine(s: intensity.Shape, dtype: str):
    work = s.work(2**14, queries=3, dtype=dtype)
    for on in MACHINES:
        rate = work.flops / on.seconds(work.flops, work.read)
        assert rate == pytest.approx(attainable(on, work.intensity))


def test_fewer_bits_read_fewer_bytes_and_compute_the_same():
    works = [shape("DeepSeek-V3").work(K128, dtype=d) for d in ("BF16", "FP8", "FP4")]
    assert [w.read * 8 / 61 / K128 / 576 for w in works] == [16, 8.25, 4.5]
    assert len({w.flops for w in works}) == 1


def test_unknown_shapes_are_answered_with_the_names():
    with pytest.raises(KeyError, match="no shape 'V3'; there are MHA of V3's size, "):
        shape("V3")


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (12_345, "12.35 kB"), (9_210_691_584, "9.211 GB")]
)
def test_amounts(size: int, text: str):
    assert amount(size) == text


def test_keys_and_values_of_glm_break_even_apart():
    halves = {width: 512 * width / (512 - width) for width in (128, 192, 256)}
    assert halves[128] == pytest.approx(170.7, abs=0.05) and halves[192] < 308 and halves[256] == 512
    widths = l01.gap()[0]
    assert [8 * w for w in (widths.nope, widths.rope, widths.v, widths.kv_lora)] == [192, 64, 256, 512]
    assert l01.scored(l01.read) < min(cost for _, cost in l01.forms().values())


def test_a_form_that_reads_something_else_is_not_scored():
    with pytest.raises(ValueError, match="it reads something else: off by up to"):
        l01.scored(lambda q, latent, key, up_k, up_v: torch.zeros(l01.QUERIES, 2, 32))
    with pytest.raises(ValueError, match=r"it gives \[2, 36, 32\], and the package \[36, 2, 32\]"):
        l01.scored(lambda **given: l01.read(**given).transpose(0, 1))


def test_products_that_nobody_counts_are_not_scored():
    def elementwise(q, latent, key, up_k, up_v):
        k, v = ((latent[:, None, None] * up).sum(-1) for up in (up_k, up_v))  # [N, H, width]
        k = torch.cat([k, key[:, None].expand(-1, 2, -1)], -1)
        p = ((q[:, None] * k).sum(-1) * 32**-0.5).softmax(1)  # [T, N, H]
        return (p[..., None] * v).sum(1)

    with pytest.raises(ValueError, match=r"0.00 million FLOP counted, the pairs alone take 1.18"):
        l01.scored(elementwise)


def test_the_scale_of_the_row_makes_absorbed_mla_another_layer():
    def outputs() -> list[torch.Tensor]:
        found = []
        for absorbed in (True, False):
            layer = MLA(hidden=16, heads=2, q_lora=8, kv_lora=24, nope=8, rope=4, v=6, absorbed=absorbed)
            g = torch.Generator().manual_seed(0)
            for p in layer.parameters():
                p.data = torch.randn(p.shape, generator=g)
            found.append(layer(torch.randn(8, 16, generator=g), layer.new()))
        return found

    assert torch.allclose(*outputs(), rtol=1e-4, atol=1e-4)
    with sabotage("01.scale_of_row"):
        assert not torch.allclose(*outputs(), rtol=1e-2, atol=1e-2)
