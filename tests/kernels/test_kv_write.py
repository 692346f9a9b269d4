"""New keys come out of the kernel as the plain version stores them, or next to it where a rounding was open."""

import pytest
import torch

pytest.importorskip("triton")

from minidsv41 import ops  # noqa: E402
from minidsv41.formats import INDEX, MAIN, WINDOW  # noqa: E402
from minidsv41.kernels.bench import kv_write as bench  # noqa: E402
from minidsv41.kernels.kv_write import Tile, kv_write  # noqa: E402
from minidsv41.kernels.launch import Unsupported, recorded  # noqa: E402
from minidsv41.model.rope import Rotation, rotate  # noqa: E402
from minidsv41.ops import Rows  # noqa: E402

EPS = 1e-20
SLACK = 2.0**-20  # 16 steps of float32: what lies closer to the border of a rounding may fall on either side
DTYPES = [torch.float32, torch.bfloat16]
FORMATS = [MAIN, WINDOW, INDEX]


def poisoned(fmt, D, sequences, pages, page, device, dtype=torch.float32) -> Rows:
    """Rows of random bytes; logical pages lie in the pool in no order."""
    g = torch.Generator().manual_seed(1)
    table = torch.randperm(sequences * pages, generator=g).view(sequences, pages)
    codes = fmt.row_bytes(D) - D // fmt.group
    data = torch.randint(0, 256, (sequences * pages * page, codes), dtype=torch.uint8, generator=g)
    scales = torch.randint(0, 256, (len(data), D // fmt.group), dtype=torch.uint8, generator=g)
    return Rows(data.to(device), table.to(device), page, scales.to(device), fmt, dtype)


def case(n, D, R, dtype, device, generator, sequences=3, page=8):
    """x, norm, cos, sin, seq, index: each row has a place of its own, some are not stored."""
    x = (3 * torch.randn(n, D, generator=generator)).to(dtype)
    norm = 1 + 0.3 * torch.randn(D, generator=generator)
    positions = torch.randint(0, 10_000, (n,), generator=generator)
    cos, sin = Rotation.at(positions, torch.rand(R // 2, generator=generator, dtype=torch.float64), torch.float32)
    pages = -(-n // (sequences * page)) + 1
    place = torch.randperm(sequences * pages * page, generator=generator)[:n]
    seq, index = place // (pages * page), place % (pages * page)
    index = index.masked_fill(torch.rand(n, generator=generator) < 0.1, -1)
    return [t.to(device) for t in (x, norm, cos, sin, seq, index)], pages


def either(exact, size, dtype):
    """The nearest numbers of `dtype`, as float64, and where they are certain; errors are relative to `size`."""
    low, high = ((exact + sign * size * SLACK).to(dtype).double() for sign in (-1, 1))
    return low, low == high


def both(x, R, how):
    """x [n, D] with each pair of the last R columns replaced by two times `how` of them."""
    pairs = how(x[:, -R:].unflatten(1, (-1, 2)), 2)
    return torch.cat([x[:, :-R], pairs.repeat_interleave(2, 1)], 1)


def expected(x, norm, cos, sin, fmt):
    """Of each row, in float64: codes, scale codes, and the groups in which neither can be others."""
    narrow, R = x.dtype == torch.bfloat16, 2 * cos.shape[1]
    v = ops.rms_norm(x.double(), norm.double(), EPS)
    v, sure = either(v, v.abs(), torch.bfloat16) if narrow else (v, torch.ones_like(v, dtype=torch.bool))
    size = both(v.abs(), R, torch.sum)  # where two numbers nearly cancel, their errors stay
    v, sure = rotate(v, Rotation(cos.double(), sin.double())), both(sure, R, torch.all)
    if narrow:  # such numbers are known exactly, and so are their ties
        v[:, -R:], certain = either(v[:, -R:], size[:, -R:], torch.bfloat16)
        sure[:, -R:] &= certain
        size = torch.zeros_like(v)
    low, high = (v + sign * size * SLACK * v.sign() for sign in (-1, 1))
    codes, scales = fmt.encode(v)
    groups = sure.unflatten(1, (-1, fmt.group)).all(2) & (fmt.encode(low)[1] == fmt.encode(high)[1])
    scale = fmt.scales.decode(scales, torch.float64)[..., None]
    low, high = (fmt.values.round(t.unflatten(1, (-1, fmt.group)) / scale) for t in (low, high))
    return codes, scales, groups & (low == high).all(2)


SHAPES = [(MAIN, 64, 16), (WINDOW, 64, 16), (INDEX, 32, 16), (INDEX, 128, 64), (MAIN, 512, 64), (WINDOW, 512, 64)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("fmt", "D", "R"), SHAPES, ids=lambda v: getattr(v, "name", v))
def test_codes_and_scales_are_those_of_float64_where_no_rounding_is_open(fmt, D, R, dtype, device, generator):
    arguments, pages = case(30 if D < 512 else 15, D, R, dtype, device, generator)
    x, norm, cos, sin, seq, index = arguments
    into = poisoned(fmt, D, 3, pages, 8, device, dtype)
    before = into.data.clone(), into.scales.clone()
    kv_write(x, norm, EPS, cos, sin, into, seq, index, tile=Tile(rows=4))
    kept = index >= 0
    at = into.locate(seq[kept], index[kept])
    codes, scales, sure = expected(*(t[kept] for t in (x,)), norm, cos[kept], sin[kept], fmt)
    assert sure.double().mean() > 0.75
    assert torch.equal(into.scales[at][sure], scales[sure])
    stored, wanted = (t.unflatten(1, (-1, fmt.group * fmt.values.bits // 8)) for t in (into.data[at], codes))
    assert torch.equal(stored[sure], wanted[sure])
    off = fmt.decode(into.data[at], into.scales[at]) - fmt.decode(codes, scales)
    assert off.abs().max() <= 0.5 * fmt.decode(codes, scales).abs().max()  # elsewhere by a step at most
    others = torch.ones(len(into.data), dtype=torch.bool, device=device).index_fill_(0, at, False)
    assert torch.equal(into.data[others], before[0][others]) and torch.equal(into.scales[others], before[1][others])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_nearly_all_codes_are_those_of_the_plain_version(fmt, dtype, device, generator):
    (x, norm, cos, sin, seq, index), pages = case(40, 64, 16, dtype, device, generator)
    ours, plain = (poisoned(fmt, 64, 3, pages, 8, device, dtype) for _ in range(2))
    kv_write(x, norm, EPS, cos, sin, ours, seq, index)
    ops.kv_write.plain(x, norm, EPS, cos, sin, plain, seq, index)
    assert (ours.data != plain.data).double().mean() < 5e-3
    assert (ours.scales != plain.scales).double().mean() < 5e-3


def tied(fmt, scale: float, device):
    """A row that the norm and the rotation leave as it is, x = 1 with these weights: every tie of the format."""
    codes = torch.arange(8 if fmt.values.bits == 4 else 127, dtype=torch.uint8)
    grid = fmt.values.decode(codes, torch.float32)
    ties = (grid[1:] + grid[:-1]) / 2
    ties = torch.cat([ties, -ties])
    full = torch.zeros(-(-len(ties) // (fmt.group - 1)), fmt.group - 1)
    full.view(-1)[: len(ties)] = ties
    rows = torch.cat([full, torch.full((len(full), 1), fmt.values.largest)], 1).flatten() * scale
    return torch.nn.functional.pad(rows, (0, 512 - len(rows))).to(device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("fmt", "scale"),
    [*((MAIN, scale) for scale in (1.0, 1.125, 0.8125, 1.375, 15.0, 2.0**-9)), (WINDOW, 0.25), (INDEX, 4.0)],
)
def test_a_tie_goes_to_the_even_code(fmt, scale, dtype, device):
    row = tied(fmt, scale, device)
    x, zero = torch.ones(1, 512, dtype=dtype, device=device), torch.zeros(1, dtype=torch.int64, device=device)
    into = poisoned(fmt, 512, 1, 1, 8, device, dtype)
    still = torch.ones(1, 32, device=device), torch.zeros(1, 32, device=device)
    kv_write(x, row, EPS, *still, into, zero, zero)
    codes, scales = fmt.encode(row)
    at = into.locate(zero, zero)[0]
    assert torch.equal(into.scales[at], scales)
    assert torch.equal(into.data[at], codes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_rounding_has_no_direction(fmt, dtype, device, generator):
    n, D = 40, 128
    x = torch.randn(n, D, generator=generator).to(dtype).to(device)
    at = torch.arange(n, device=device)
    into = poisoned(fmt, D, 1, n // 8, 8, device, dtype)
    still = torch.ones(n, 8, device=device), torch.zeros(n, 8, device=device)
    kv_write(x, torch.ones(D, device=device), EPS, *still, into, torch.zeros_like(at), at)
    exact = ops.rms_norm(x.double(), None, EPS)
    stored = into.gather(torch.zeros_like(at), at).double()
    off = stored - exact
    assert off.mean().abs() < 4 * off.std() / off.numel() ** 0.5
    once = exact.to(dtype).double()
    away = (stored - fmt.fake_quant(once)) * exact.sign()  # from or to zero, against rounding in float64
    assert away.mean().abs() < 1e-3


@pytest.mark.parametrize(("D", "dtype"), [(64, torch.float32), (512, torch.bfloat16)])
def test_empty_rows_scales_that_saturate_and_numbers_that_are_none(D, dtype, device):
    x = torch.zeros(5, D, dtype=dtype, device=device)
    x[1] = 1.0
    x[2] = torch.linspace(-2, 2, D)
    x[3, 5], x[4, 60] = torch.nan, torch.inf
    norm = torch.full((D,), 1e4, device=device)
    at = torch.arange(5, device=device)
    still = torch.ones(5, 8, device=device), torch.zeros(5, 8, device=device)
    into = poisoned(MAIN, D, 1, 1, 8, device, dtype)
    kv_write(x, norm, EPS, *still, into, torch.zeros_like(at), at)
    stored = into.gather(torch.zeros_like(at), at).float()
    assert torch.equal(stored[0], torch.zeros(D, device=device))
    assert torch.equal(stored[1], torch.full((D,), 6 * 448.0, device=device))
    assert torch.equal(stored[2], MAIN.fake_quant(ops.rms_norm(x[2:3], norm, EPS).to(dtype).float())[0])
    assert stored[3:].isnan().all()


def test_nothing_is_stored_of_no_rows(device):
    into = poisoned(MAIN, 64, 1, 1, 8, device)
    before = into.data.clone()
    x, angles = torch.empty(0, 64, device=device), torch.empty(0, 8, device=device)
    none = torch.empty(0, dtype=torch.int64, device=device)
    kv_write(x, torch.ones(64, device=device), EPS, angles, angles, into, none, none)
    assert torch.equal(into.data, before)


def test_rows_may_be_part_of_a_wider_product(device, generator):
    (x, norm, cos, sin, seq, index), pages = case(20, 64, 16, torch.bfloat16, device, generator)
    apart, within = (poisoned(MAIN, 64, 3, pages, 8, device) for _ in range(2))
    kv_write(x, norm, EPS, cos, sin, apart, seq, index)
    kv_write(torch.cat([x, x], 1)[:, 64:], norm, EPS, cos, sin, within, seq, index)
    assert torch.equal(apart.data, within.data) and torch.equal(apart.scales, within.scales)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(D=96), "D = 96: allowed are powers of two"),
        (dict(dtype=torch.float64), "x torch.float64: allowed are float32 and bfloat16"),
        (dict(R=128), "cos"),
        (dict(plain=True), "allowed are packed rows"),
        (dict(index=7), "index (7,): allowed is (4,)"),
        (dict(rows=2**31), "2147483648 rows: allowed are fewer than 2**31"),
    ],
)
def test_what_is_not_supported_is_refused_before_anything_is_written(change, said):
    D, R, dtype = change.get("D", 64), change.get("R", 16), change.get("dtype", torch.float32)
    on = dict(device="meta")
    x, norm, angles = torch.empty(4, D, dtype=dtype, **on), torch.empty(D, **on), torch.empty(4, R // 2, **on)
    seq, index = (torch.empty(k, dtype=torch.int64, **on) for k in (4, change.get("index", 4)))
    into = poisoned(MAIN, D, 1, 1, 8, "meta")
    into = Rows(x, into.table, 8) if "plain" in change else into
    if rows := change.get("rows"):
        data, scales = (torch.empty(rows, t.shape[1], dtype=torch.uint8, **on) for t in (into.data, into.scales))
        into = Rows(data, into.table, 8, scales, MAIN, dtype)
    with recorded() as launches, pytest.raises(Unsupported) as error:
        kv_write(x, norm, EPS, angles, angles, into, seq, index)
    assert said in str(error.value) and not launches


@pytest.mark.parametrize(
    "case", [bench.case(MAIN, 20, D=64, R=16), bench.case(WINDOW, 20, D=64, R=16), bench.pool_case(20, D=64, R=16)]
)
def test_a_small_bench_case_runs_and_is_right(case, device):
    contest = case.build(device, 0)
    assert next(iter(contest.runs)) == "kernel"
    for name in ("kernel", "plain"):
        contest.runs[name]()
    assert contest.error() <= contest.tolerance
