"""Engram's rows and gate come out of the kernels as the plain versions, and those as the model, compute them."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from minidsv41.config import ModelConfig  # noqa: E402
from minidsv41.formats import TABLE  # noqa: E402
from minidsv41.kernels.bench import engram as bench  # noqa: E402
from minidsv41.kernels.engram import SORTED, Prefetch, Tile, engram_read, tile_of  # noqa: E402
from minidsv41.kernels.gate import Tile as GateTile  # noqa: E402
from minidsv41.kernels.gate import engram_gate  # noqa: E402
from minidsv41.kernels.launch import Unsupported, recorded  # noqa: E402
from minidsv41.model.engram import Engram, multipliers  # noqa: E402
from minidsv41.ops import engram as ops  # noqa: E402
from minidsv41.ops.engram import Hash, Table  # noqa: E402

DTYPES = [torch.float32, torch.bfloat16]
EPS = 1e-20
TILES = {
    "at once": Tile(8),
    "a few programs": Tile(4, 1, 3, 2, by_column=True),
    "ordered": Tile(8, 1, ordered=True),
}


def table(rows, width, device, generator, *, host=False) -> Table:
    """Random rows; on the host, pinned where a GPU is to read them."""
    codes, scales = TABLE.encode(torch.randn(rows, width, generator=generator))
    if not host:
        return Table(codes.to(device), scales.to(device))
    return Table(*(t.pin_memory() if device.type == "cuda" else t for t in (codes, scales)))


def grams(T, ids, generator, device):
    """[T, 4], some with dead places, from which on all are dead."""
    found = torch.randint(0, ids, (T, 4), generator=generator)
    found[torch.rand(T, 4, generator=generator) < 0.1] = -1
    return found.masked_fill((found == -1).cumsum(1) > 0, -1).to(device)


def little(heads, device) -> Hash:
    """Factors large enough that products wrap around, primes small enough for a table."""
    factors = [2**62 + 12345, 2**63 - 25, 9_876_543_210_987_654_321 % 2**63, 7]
    primes = [(101, 103, 107, 109), (113, 127, 131, 137), (139, 149, 151, 2)]
    return Hash.of(factors, [p[:heads] for p in primes], 5, device=device)


def test_released_primes_and_factors_choose_the_rows_that_the_model_chooses(generator):
    config = ModelConfig()
    with torch.device("meta"):
        model = Engram(config, 1)
    given = grams(50, config.engram_compressed_vocab_size, generator, "cpu")
    given[0] = torch.tensor([3, 1, 2, 99091])
    rows = Hash.of(multipliers(config, 1), config.engram_primes[0], 2).rows(given)
    assert torch.equal(rows, model.rows(given, 2))
    assert rows[0, :3].tolist() == [6660541, 19981116, 38646755]  # from the specification


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("host", [False, True], ids=["device", "host"])
@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
def test_rows_are_read_exactly(tile, host, dtype, device, generator):
    own = table(50, 64, device, generator, host=host)
    ids = torch.randint(0, 50, (11, 6), generator=generator).to(device)
    out = torch.full((11, 6 * 64), torch.nan, dtype=dtype, device=device)
    assert engram_read(ids, own, dtype=dtype, out=out, tile=tile) is out
    assert torch.equal(out, ops.engram_read(ids, own, dtype=dtype))


def test_many_rows_over_the_link_are_read_in_order_and_others_as_they_come(generator):
    here, there = torch.device("cpu"), torch.device("meta")
    own = table(8, 32, here, generator)
    assert tile_of(own, there, SORTED).ordered and not tile_of(own, there, SORTED - 1).ordered
    assert tile_of(own, here, SORTED) == tile_of(own, here, 1) == Tile()


def test_every_code_and_scale_is_decoded_at_released_width(device):
    codes = torch.arange(256, dtype=torch.uint8).repeat(32, 1)
    codes[(codes & 0x7F) == 0x7F] = 0  # no table holds NaN
    scales = (torch.arange(256) % 254 + 1).to(torch.uint8).view(32, 8)
    own = Table(codes.to(device), scales.to(device))
    ids = torch.arange(32, device=device).view(4, 8)
    assert torch.equal(engram_read(ids, own, dtype=torch.float32), ops.engram_read(ids, own, dtype=torch.float32))


@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
@pytest.mark.parametrize("heads", [1, 4])
def test_grams_are_hashed_as_in_the_plain_version_even_where_products_wrap(heads, tile, device, generator):
    hash = little(heads, device)
    own = table(int(hash.primes.sum()), 32, device, generator)
    given = grams(21, 3142, generator, device)
    terms = torch.where(given == -1, 5, given) * hash.multipliers
    assert (terms < 0).any()
    found = engram_read(given, own, hash, dtype=torch.float32, tile=tile)
    assert torch.equal(found, ops.engram_read(given, own, hash, dtype=torch.float32))


def test_rows_beyond_two_gigabytes_are_found(device):
    rows = 2**31 // 256 + 3
    own = Table(*(torch.empty(rows, n, dtype=torch.uint8, device=device) for n in (256, 8)))
    own.codes[-2:], own.scales[-2:] = 0x38, 128  # 1 x 2
    ids = torch.tensor([[rows - 1], [rows - 2]], device=device)
    assert torch.equal(engram_read(ids, own).float(), torch.full((2, 256), 2.0, device=device))


def streams(T, n, C, dtype, device, generator):
    X, kv = torch.randn(T, n, C, generator=generator), torch.randn(T, (n + 1) * C, generator=generator)
    weights = [1 + 0.2 * torch.randn(n, C, generator=generator) for _ in range(2)]
    kv[1, : n * C] = 0  # no key: the score is 0
    kv[2, : n * C] = X[2].flatten() * 4  # a key like the query
    alive = torch.rand(T, generator=generator) < 0.8
    alive[:3] = True
    return [t.to(device) for t in (X.to(dtype), kv.to(dtype), *weights, alive)]


def test_the_plain_gate_is_that_of_the_model(generator):
    config = replace(
        ModelConfig(), hidden_size=64, hc_mult=3, engram_head_dim=32, engram_vocab_size=31, engram_n_heads=2,
        engram_num_embeddings=(),
    ).with_engram_rows()  # fmt: skip
    model = Engram(config, 1).double()
    for weight in (model.q_weight, model.k_weight):
        weight.data += 0.2 * torch.randn(weight.shape, generator=generator)
    X = torch.randn(5, 3, 64, generator=generator, dtype=torch.float64)
    rows = torch.randint(0, len(model.embed.weight), (5, 6), generator=generator)
    alive, noted = torch.tensor([True, True, False, True, False]), {}
    wanted = model(X, rows, alive, noted.__setitem__)
    kv = model.wkv(model.read(rows).flatten(1))
    found, gate = ops.engram_gate(X, kv, model.q_weight, model.k_weight, alive, model.eps)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(gate, noted["engram.gate"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("T", "n", "C"), [(9, 4, 64), (5, 3, 96), (4, 2, 5), (1, 4, 32), (3, 4, 5120)])
def test_the_gate_is_that_of_float64(T, n, C, dtype, device, generator):
    X, kv, q_weight, k_weight, alive = streams(max(T, 3), n, C, dtype, device, generator)
    X, kv, alive = X[:T], kv[:T], alive[:T]
    wanted, gates = ops.engram_gate(X.double(), kv.double(), q_weight.double(), k_weight.double(), alive, EPS)
    found, gate = engram_gate(X, kv, q_weight, k_weight, alive, EPS, tile=GateTile(4, 2))
    torch.testing.assert_close(gate.double(), gates, rtol=0, atol=1e-4)  # the root is steep next to 0
    allowed = 2.0**-8 if dtype == torch.bfloat16 else 0.0  # one rounding
    assert ((found.double() - wanted).abs() <= allowed * wanted.abs() + 1e-3).all()
    assert (gate[~alive] == 0).all() and torch.equal(found[~alive], X[~alive])


def test_sums_of_streams_are_rounded_in_no_direction(device, generator):
    X, kv, *rest = streams(24, 2, 64, torch.bfloat16, device, generator)
    wanted, _ = ops.engram_gate(X.double(), kv.double(), *(t.double() for t in rest[:2]), rest[2], EPS)
    found, _ = engram_gate(X, kv, *rest, EPS)
    off = (found.double() - wanted) / wanted.abs().clamp(min=0.1)
    assert off.mean().abs() < 4 * off.std() / off.numel() ** 0.5
    away = off * wanted.sign()
    assert away.mean().abs() < 4 * away.std() / away.numel() ** 0.5


@pytest.mark.parametrize("host", [False, True], ids=["device", "host"])
def test_rows_asked_for_early_are_those_read_late(host, device, generator):
    hash = little(2, device)
    own = table(int(hash.primes.sum()), 32, device, generator, host=host)
    given = [grams(T, 3142, generator, device) for T in (7, 5)]
    prefetch = Prefetch(device)
    for layer, ids in enumerate(given):
        prefetch.ask(layer, ids, own, hash)
    for layer, ids in reversed(list(enumerate(given))):
        assert torch.equal(prefetch.take(layer), ops.engram_read(ids, own, hash))
    assert not prefetch.waiting


def test_nothing_is_read_or_added_where_there_is_no_token(device, generator):
    own = table(8, 32, device, generator)
    assert engram_read(torch.empty(0, 6, dtype=torch.int64, device=device), own).shape == (0, 192)
    X, kv, *rest, alive = streams(3, 2, 32, torch.float32, device, generator)
    found, gate = engram_gate(X[:0], kv[:0], *rest, alive[:0], EPS)
    assert found.shape == (0, 2, 32) and gate.shape == (0, 2)


def test_what_is_not_supported_is_refused(generator):
    own = table(8, 32, torch.device("cpu"), generator)
    ids = torch.zeros(3, 6, dtype=torch.int64)
    X, kv, *rest = streams(3, 2, 32, torch.float32, "cpu", generator)
    cases = [
        (lambda: engram_read(ids.int(), own), r"ids torch.int32: allowed is int64"),
        (lambda: engram_read(ids, Table(own.codes[:, :31], own.scales)), r"W = 31: allowed are"),
        (lambda: engram_read(ids, Table(own.codes, own.scales[:4])), r"scales \(4, 1\): allowed is \(8, 1\)"),
        (lambda: engram_read(ids, own, dtype=torch.float64), r"dtype torch.float64"),
        (lambda: engram_read(ids, own, little(1, "cpu")), r"ids \(3, 6\): allowed are n-grams \[T, 4\]"),
        (lambda: engram_gate(X.double(), kv, *rest, EPS), r"X torch.float64"),
        (lambda: engram_gate(X, kv[:, :64], *rest, EPS), r"kv \(3, 64\): allowed is \(3, 96\)"),
        (lambda: engram_gate(X, kv.bfloat16(), *rest, EPS), r"kv torch.bfloat16: allowed is torch.float32"),
    ]
    with recorded() as launches:
        for call, said in cases:
            with pytest.raises(Unsupported, match=said):
                call()
    assert not launches


@pytest.mark.parametrize(
    "case",
    [
        bench.both_case(5, n=2, C=48, K=6, W=32, rows=60),
        bench.read_case(5, where="host", K=6, W=32, rows=60),
    ],
    ids=["both", "host"],
)
def test_a_small_bench_case_runs_and_is_right(case, device):
    contest = case.build(device, 0)
    assert next(iter(contest.runs)) == "kernel"
    for name in {"kernel", "plain", "staged"} & set(contest.runs):
        contest.runs[name]()
    assert contest.error() <= contest.tolerance


def test_rows_that_a_processor_gathers_are_the_same(device):
    contest = bench.read_case(5, where="host", K=6, W=32, rows=60).build(device, 0)
    assert torch.equal(contest.runs["staged"](), contest.runs["kernel"]())
