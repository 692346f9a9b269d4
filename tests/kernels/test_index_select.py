"""The indexer's kernels choose what the plain twin chooses, ties included, and never hold a score for each key.

Where inputs are small whole numbers every sum is exact, in float32 and in bfloat16, so selections must be equal. Where
they are not, a selection may differ only in keys whose float64 score is within 1e-4 of the row's largest from the cut.
"""

import pytest
import torch

pytest.importorskip("triton")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from minidsv41 import ops  # noqa: E402
from minidsv41.formats import E2M1, INDEX, MAIN  # noqa: E402
from minidsv41.kernels import index_blocks, index_keys, index_tile  # noqa: E402
from minidsv41.kernels import index_select as module  # noqa: E402
from minidsv41.kernels.bench import index_select as bench  # noqa: E402
from minidsv41.kernels.index_cut import Cut, Rowset, merge  # noqa: E402
from minidsv41.kernels.index_select import Tile, index_select, select_tile, workspace  # noqa: E402
from minidsv41.kernels.launch import Unsupported, launch, recorded  # noqa: E402
from minidsv41.ops import Batch, Pool, PoolSize, Rows  # noqa: E402
from minidsv41.ops.select import lowest_topk  # noqa: E402

SMALL = Tile(1, 32, 4, programs=8, stretch=64, cut=Cut(128, 1), again=4)


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    """Memory that nobody wrote reads as huge numbers, which would be selected."""
    empty, new_empty = torch.empty, torch.Tensor.new_empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: spoiled(empty(*a, **k)))
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **k: spoiled(new_empty(*a, **k)))


def spoiled(x):
    return x if x.dtype not in (torch.int32, torch.int64) or x.is_meta else x.fill_(2**31 - 7)


def whole(generator, device, low, high, *shape):
    return torch.randint(low, high, shape, generator=generator).to(device, torch.float32)


def stored(generator, device, sequences, n, width, *, page=16, packed=True, dtype=torch.float32) -> Rows:
    """Keys of whole numbers (halves, where packed: every code of three scales) in pages out of order."""
    pages = -(-n // page)
    table = (torch.randperm(sequences * pages, generator=generator) + 1).view(sequences, pages).to(device)
    count = (sequences * pages + 1) * page
    if not packed:
        return Rows(whole(generator, device, -3, 4, count, width).to(dtype), table, page)
    codes = torch.randint(0, 256, (count, width // 2), generator=generator, dtype=torch.uint8)
    scales = torch.randint(126, 129, (count, width // 32), generator=generator, dtype=torch.uint8)
    return Rows(codes.to(device), table, page, scales.to(device), INDEX, dtype)


def exact(keys: Rows) -> Rows:
    """The same keys, read as float64."""
    if keys.format is None:
        return Rows(keys.data.double(), keys.table, keys.page)
    return Rows(keys.data, keys.table, keys.page, keys.scales, keys.format, torch.float64)


def plain(q, w, keys, visible, k, pool, batch, n):
    return ops.select.index_select(q.double(), w.double(), exact(keys), visible, k, pool, batch=batch, n=n)


def ragged(lengths, device) -> Batch:
    tokens = [torch.zeros(length, dtype=torch.int64, device=device) for length in lengths]
    return Batch.ragged(tokens, [0] * len(lengths))


def problem(generator, device, lengths, n, heads, width, **kwargs):
    """q, w, keys, visible, batch: some rows see nothing, some one key, some all."""
    rows = sum(lengths)
    q = whole(generator, device, -2, 3, rows, heads, width)
    w = whole(generator, device, -2, 4, rows, heads)
    visible = torch.randint(0, n + 1, (rows,), generator=generator)
    visible[0], visible[-1] = n, n - 1
    if rows > 3:
        visible[1], visible[2] = 0, 1
    keys = stored(generator, device, len(lengths), n, width, **kwargs)
    dtype = kwargs.get("dtype", torch.float32)
    return q.to(dtype), w.to(dtype), keys, visible.to(device), ragged(lengths, device)


def halves(x):
    """int64 of 32 bits -> its two bfloat16, the low one first."""
    parts = torch.stack([x & 0xFFFF, x >> 16], -1) << 16
    return parts.to(torch.int32).view(torch.float32)


def assembled(text, given):
    """Run assembly of a few instructions on int64 tensors of 32 bits -> what it moves out, pair by pair."""
    held, out = dict(given), []

    def value(name):
        return held[name] if name in held else int(name, 0)

    for line in text.replace("{\n", "").splitlines():
        operation, *names = line.replace(",", " ").replace(";", " ").split()
        if operation == "mov.b32" and names[0].startswith("{"):
            out.append(halves(held[names[-1]]))
        elif operation == "mov.b32":
            held[names[0]] = torch.full_like(given["$8"], value(names[1]))
        elif operation.startswith(("and", "shr", "mul")):
            a, b = value(names[1]), value(names[2])
            held[names[0]] = {"and": a & b, "shr": a >> b, "mul": (a * b) & 0xFFFFFFFF}[operation[:3]]
        elif operation == "min.u32":
            held[names[0]] = value(names[1]).clamp(max=value(names[2]))
        elif operation.startswith("fma"):
            product = halves(value(names[1])) * halves(value(names[2])) + halves(value(names[3]))
            assert torch.equal(product, product.bfloat16().float())
            bits = product.view(torch.int32).to(torch.int64) >> 16 & 0xFFFF
            held[names[0]] = bits[..., 0] | bits[..., 1] << 16
        else:
            assert operation in (".reg", "}"), operation
    return out


@triton.jit
def factor_kernel(codes, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, index_keys.planes_factor(tl.load(codes + at)))


@pytest.mark.parametrize("scale", [27, 60, 126, 127, 128, 160])
def test_the_assembly_decodes_as_formats_do(scale, generator, device):
    codes = torch.randint(0, 256, (512, 4), generator=generator, dtype=torch.uint8)
    scales = torch.full((16,), scale, dtype=torch.uint8, device=device)
    factor = torch.zeros(16, dtype=torch.int32, device=device)
    launch(factor_kernel, (1,), codes=scales, out=factor, N=16)
    words = codes.view(torch.int32).flatten().to(torch.int64) & 0xFFFFFFFF
    given = {"$8": words, "$9": torch.full_like(words, factor[0].item())}
    planes = assembled(index_keys.PLANES.value, given)
    want = E2M1.decode(E2M1.unpack(codes), torch.float64) * 2.0 ** (scale - 127 - index_keys.LIFT.value)
    for j, plane in enumerate(planes):  # codes j and j + 4 of every word
        assert torch.equal(plane.double(), want[:, [j, j + 4]])
    assert len(planes) == 4


@pytest.mark.parametrize("scale", [162, 200, 255])
def test_the_assembly_lets_larger_scales_overflow(scale, device):
    scales = torch.full((16,), scale, dtype=torch.uint8, device=device)
    factor = torch.zeros(16, dtype=torch.int32, device=device)
    launch(factor_kernel, (1,), codes=scales, out=factor, N=16)
    given = {"$8": torch.tensor([0x77777777]), "$9": factor[:1].cpu().long() & 0xFFFFFFFF}
    assert all(plane.eq(torch.inf).all() for plane in assembled(index_keys.PLANES.value, given))


@pytest.mark.parametrize(("n", "k"), [(400, 40), (100, 40), (5, 8), (333, 64), (400, 5)])
@pytest.mark.parametrize("spread", [1, 4, 10**6])
def test_the_merge_keeps_the_lowest_of_equals(n, k, spread, generator, device):
    x = whole(generator, device, -spread, spread + 1, 3, n)
    x[0, ::3], x[1], x[2, ::2] = -torch.inf, -torch.inf, -0.0
    values = torch.nn.functional.pad(x, (0, -n % 4), value=-torch.inf).view(torch.int32)
    for cut in (Cut(512, 1), Cut(128, 1)):
        chosen = torch.empty(3, k, dtype=torch.int64, device=device)
        merge(values, None, chosen, Rowset(0, 0, 3, 0, 3, 1), cut=cut)
        assert torch.equal(chosen, lowest_topk(x, k))


@pytest.mark.parametrize("positive", [0, 39, 40, 300])
def test_the_merge_spans_all_of_float32(positive, generator, device):
    n, k = 400, 40
    x = torch.rand(1, n, generator=generator) * 2.0 ** torch.randint(-140, 127, (1, n), generator=generator)
    x[:, torch.randperm(n, generator=generator)[positive:]] *= -1.0
    chosen = torch.empty(1, k, dtype=torch.int64, device=device)
    merge(x.to(device).view(torch.int32), None, chosen, Rowset(0, 0, 1, 0, 1, 1), cut=Cut(512, 1))
    assert torch.equal(chosen, lowest_topk(x.to(device), k))


@pytest.mark.parametrize(("packed", "dtype"), [(True, torch.float32), (True, torch.bfloat16), (False, torch.bfloat16)])
@pytest.mark.parametrize(
    ("lengths", "n", "heads", "width", "rows"),
    [((1, 1), 311, 4, 32, 1), ((6, 6), 131, 4, 32, 4), ((2, 2, 5), 97, 3, 64, 2), ((4,), 250, 5, 96, 1)],
)
def test_selection_is_the_plain_one(lengths, n, heads, width, rows, packed, dtype, generator, device):
    q, w, keys, visible, batch = problem(generator, device, lengths, n, heads, width, packed=packed, dtype=dtype)
    got, pool = index_select(q, w, keys, visible, 24, None, batch=batch, n=n, tile=SMALL._replace(rows=rows))
    assert pool is None
    assert torch.equal(got, plain(q, w, keys, visible, 24, None, batch, n)[0])


@pytest.mark.parametrize(("block", "page"), [(1, 16), (8, 32), (32, 64)])
@pytest.mark.parametrize(("lengths", "n", "rows", "packed"), [((1, 1), 331, 1, True), ((6, 5), 131, 4, False)])
def test_blocks_of_any_size_lead_to_the_same_keys(block, page, lengths, n, rows, packed, generator, device):
    q, w, keys, visible, batch = problem(generator, device, lengths, n, 4, 32, page=page, packed=packed)
    tile = SMALL._replace(rows=rows, block=block, whole=block > 2)
    got, pool = index_select(q, w, keys, visible, 8, None, batch=batch, n=n, tile=tile)
    assert pool is None
    assert torch.equal(got, plain(q, w, keys, visible, 8, None, batch, n)[0])


@pytest.mark.parametrize(("page", "keys_"), [(64, 64), (64, 32), (32, 64), (16, 64)])
def test_pages_looked_up_at_once_are_those_of_each_key(page, keys_, generator, device):
    q, w, keys, visible, batch = problem(generator, device, (2, 2), 250, 4, 32, page=page)
    tile = SMALL._replace(keys=keys_, whole=True)
    got, _ = index_select(q, w, keys, visible, 24, None, batch=batch, n=250, tile=tile)
    assert torch.equal(got, plain(q, w, keys, visible, 24, None, batch, 250)[0])


@pytest.mark.parametrize("changed", [{}, dict(keys=128, registers=128, block=32, stretch=512)])
def test_selection_is_the_plain_one_at_released_widths(changed, generator, device):
    dtype = torch.bfloat16
    q, w, keys, visible, batch = problem(generator, device, (1,), 2500, 32, 128, page=64, dtype=dtype)
    visible[:] = 2491
    tile = select_tile((1,), 2500, dtype)._replace(**changed)
    got, _ = index_select(q, w, keys, visible, 64, None, batch=batch, n=2500, tile=tile)
    assert torch.equal(got, plain(q, w, keys, visible, 64, None, batch, 2500)[0])


def test_the_default_tile_serves_a_verification_of_six_rows(generator, device):
    q, w, keys, visible, batch = problem(generator, device, (6,), 700, 32, 128, page=64, dtype=torch.bfloat16)
    visible = torch.arange(695, 701, device=device)
    got, _ = index_select(q, w, keys, visible, 512, None, batch=batch, n=700)
    assert torch.equal(got, plain(q, w, keys, visible, 512, None, batch, 700)[0])


@pytest.mark.parametrize("order", ["equal", "ascending", "descending", "best in one stretch", "negative"])
def test_any_order_of_scores_is_served(order, generator, device):
    n, k = 500, 40
    value = {
        "equal": torch.ones(n),
        "ascending": torch.arange(n),
        "descending": torch.arange(n, 0, -1),
        "best in one stretch": torch.arange(n) % 7 + 100 * ((torch.arange(n) > 200) & (torch.arange(n) < 250)),
        "negative": -(torch.arange(n) % 50),
    }[order]
    keys = Rows(torch.zeros(n, 32, device=device), torch.zeros(1, 1, dtype=torch.int64, device=device), n)
    keys.data[:, 3] = value.abs().to(device, torch.float32)
    q, w = torch.zeros(1, 2, 32, device=device), torch.ones(1, 2, device=device)
    q[:, :, 3] = 1.0
    w *= -1.0 if order == "negative" else 1.0
    visible, batch = torch.tensor([n - 3], device=device), ragged((1,), device)
    for programs, block in ((1, 1), (8, 4)):
        tile = SMALL._replace(programs=programs, block=block)
        got, _ = index_select(q, w, keys, visible, k, None, batch=batch, n=n, tile=tile)
        assert torch.equal(got, plain(q, w, keys, visible, k, None, batch, n)[0])


@pytest.mark.parametrize(
    ("size", "blocks", "lengths", "rows", "packed"), [(4, 12, (1, 1, 1), 1, False), (8, 9, (3, 2), 2, True)]
)
def test_the_pool_is_the_plain_one_and_restricts(size, blocks, lengths, rows, packed, generator, device):
    n, k = 229, 24
    q, w, keys, visible, batch = problem(generator, device, lengths, n, 4, 32, packed=packed)
    tile = SMALL._replace(rows=rows)
    got, pool = index_select(q, w, keys, visible, k, PoolSize(blocks, size), batch=batch, n=n, tile=tile)
    want, wanted = plain(q, w, keys, visible, k, PoolSize(blocks, size), batch, n)
    assert torch.equal(got, want)
    assert pool.size == size and torch.equal(pool.blocks, wanted.blocks)
    q = q.flip(0).contiguous()  # another layer's queries, within the same pool
    got, same = index_select(q, w, keys, visible, k, pool, batch=batch, n=n, tile=SMALL)
    assert same is pool
    assert torch.equal(got, plain(q, w, keys, visible, k, wanted, batch, n)[0])


def test_a_pool_without_blocks_and_a_cache_without_rows_select_nothing(device):
    q, w = torch.ones(2, 4, 32, device=device), torch.ones(2, 4, device=device)
    keys = Rows(torch.zeros(0, 32, device=device), torch.zeros(2, 1, dtype=torch.int64, device=device), 16)
    visible, batch = torch.zeros(2, dtype=torch.int64, device=device), ragged((1, 1), device)
    pool = Pool(torch.full((2, 3), -1, dtype=torch.int64, device=device), 4)
    for given in (None, pool, PoolSize(3, 4)):
        got, same = index_select(q, w, keys, visible, 8, given, batch=batch, n=0, tile=SMALL)
        assert (got == -1).all() and got.shape == (2, 8)
        assert same is None or (same.blocks == -1).all() and same.blocks.shape == (2, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_selections_of_real_numbers_differ_only_at_the_cut(dtype, generator, device):
    n, k, lengths = 400, 48, (2, 2)
    q = torch.randn(4, 8, 64, generator=generator).to(device, dtype)
    w = torch.randn(4, 8, generator=generator).to(device, dtype)
    keys = stored(generator, device, 2, n, 64, dtype=dtype)
    visible, batch = torch.tensor([n, 350, 40, 233], device=device), ragged(lengths, device)
    got, _ = index_select(q, w, keys, visible, k, None, batch=batch, n=n, tile=SMALL._replace(rows=2))
    scores = ops.index_scores(q.double(), w.double(), exact(keys), visible, batch, n)
    for row in range(4):
        chosen = got[row][got[row] >= 0]
        assert len(chosen) == min(k, int(visible[row])) and (chosen.diff() > 0).all()
        cut, largest = scores[row].topk(len(chosen)).values[-1], scores[row, : visible[row]].abs().max()
        assert (scores[row, chosen] >= cut - 1e-4 * largest).all()
        missed = scores[row].scatter(0, chosen, -torch.inf)
        assert missed.max() <= cut + 1e-4 * largest


@pytest.mark.parametrize("pool", [None, PoolSize(6, 8)])
def test_slices_of_queries_change_nothing(pool, generator, device, monkeypatch):
    q, w, keys, visible, batch = problem(generator, device, (5, 3), 200, 4, 32)
    tile = SMALL._replace(rows=2, programs=4)
    monkeypatch.setattr(index_tile, "WORKSPACE", 700)
    with recorded() as launches:
        index_select(q, w, keys, visible, 24, pool, batch=batch, n=200, tile=tile)
    assert sum(call.kernel.__name__ == "scan_kernel" for call in launches) > 8
    got, built = index_select(q, w, keys, visible, 24, pool, batch=batch, n=200, tile=tile)
    want, wanted = plain(q, w, keys, visible, 24, pool, batch, 200)
    assert torch.equal(got, want) and (pool is None or torch.equal(built.blocks, wanted.blocks))


@pytest.mark.parametrize("pool", [None, PoolSize(6, 8), Pool(torch.zeros(8, 6, dtype=torch.int64), 8)])
def test_what_others_wrote_is_not_read_before_it_is_there(pool, generator, device, monkeypatch):
    """A scan asks for queries before it waits, and lets a cut ask for what is visible: the call's first waits first."""
    q, w, keys, visible, batch = problem(generator, device, (5, 3), 200, 4, 32)
    q = q.transpose(0, 1).contiguous().transpose(0, 1)  # copied, but not between two launches
    monkeypatch.setattr(index_tile, "WORKSPACE", 700)
    monkeypatch.setattr(index_blocks, "starts_early", lambda device: True)
    with recorded() as launches:
        index_select(q, w, keys, visible, 24, pool, batch=batch, n=200, tile=SMALL)
    scans = [call for call in launches if call.kernel.__name__ == "scan_kernel"]
    later = [call.args["blocks"] is not None and not isinstance(pool, Pool) for call in scans]
    assert len(scans) >= 8 and ["launch_pdl" in call.options for call in scans] == later
    assert {id(call.args["q"]) for call in scans} == {id(scans[0].args["q"])}


RELEASED = {
    "1 x 1M": ((1,), 1 << 20, None),
    "32 x 128K": ((1,) * 32, 1 << 17, None),
    "32 x 128K, in a pool": ((1,) * 32, 1 << 17, module.IN_POOL),
    "32 x 1M, pool built": ((1,) * 32, 1 << 20, PoolSize(2048, 8)),
    "verification of 8 x 1M": ((6,) * 8, 1 << 20, None),
    "prefill 4,096 x 32K": ((4096,), 1 << 15, None),
    "prefill 4,096 x 1M, pool built": ((4096,), 1 << 20, PoolSize(2048, 8)),
}


@pytest.mark.parametrize("name", RELEASED)
def test_scratch_is_what_workspace_says_and_at_most_256_mb(name):
    lengths, n, pool = RELEASED[name]
    call, batch, tile = module.specimen(lengths, n, pool)
    with recorded() as launches:
        call()
    said = workspace(batch, n, 512, pool, tile)
    starts = [i for i, x in enumerate(launches) if x.kernel.__name__ == "scan_kernel"] + [len(launches)]
    scratch = ("values", "indices", "out_values", "out_indices")
    for a, b in zip(starts, starts[1:], strict=False):  # every slice on its own
        held = [x.args.get(name) for x in launches[a:b] for name in scratch]
        held = {id(t): t.numel() * 4 for t in held if t is not None}
        views = sum(held.values()) // 2  # a buffer is written by one launch and read by the next
        assert views <= said <= 256 << 20
    assert said < sum(lengths) * n * 4 / 2  # a score for each key


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(k=0), "k = 0"),
        (dict(width=48), "width 48"),
        (dict(format=MAIN), "packed as main"),
        (dict(dtype=torch.bfloat16, packed=False), "dtype torch.float32"),
        (dict(pool=PoolSize(8, 6)), "blocks of 6"),
        (dict(tile=SMALL._replace(block=24)), "blocks of 24"),
        (dict(k=20_000), "20000 of a row"),
    ],
)
def test_what_is_unsupported_is_refused(changed, message, generator, device):
    width = changed.get("width", 32)
    keys = stored(generator, device, 1, 64, width // 32 * 32, packed=changed.get("packed", True))
    keys = Rows(keys.data, keys.table, keys.page, keys.scales, changed.get("format", keys.format), keys.dtype)
    q = torch.ones(1, 4, width, device=device, dtype=changed.get("dtype", torch.float32))
    visible, batch = torch.tensor([64], device=device), ragged((1,), device)
    with pytest.raises(Unsupported, match=message):
        index_select(
            q, q[..., 0], keys, visible, changed.get("k", 24), changed.get("pool"), batch=batch, n=64,
            tile=changed.get("tile", SMALL),
        )  # fmt: skip


@pytest.mark.parametrize(
    "shape", [dict(S=2, n=300, k=24), dict(S=1, length=3, n=100, blocks=12), dict(S=2, n=200, blocks=12, within=True)]
)
def test_what_is_measured_is_right_and_would_show_an_error(shape, device):
    case = bench.case("tiny", 1.0, **(dict(heads=4, width=32, k=16) | shape))
    contest = case.build(device, 0)
    assert next(iter(contest.runs)) == "kernel" and case.bytes > 0 and case.flops > 0 and contest.workspace > 0
    assert contest.error() < contest.tolerance
    given = bench.inputs(bench.Shape(heads=4, width=32, **(dict(k=16) | shape)), device, 0)
    scores = bench.exact_scores(given, 0, torch.arange(given.n, device=device))
    worst = scores.topk(given.k, largest=False).indices
    assert bench.wrong(scores, worst, given.k) > 0.5
