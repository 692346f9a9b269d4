"""Attention over window rows and selected entries equals the plain version in float64."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from attention_problem import TOLERANCE, Problem, decoded, distance  # noqa: E402
from triton.runtime.interpreter import TensorHandle  # noqa: E402

from minidsv41 import ops  # noqa: E402
from minidsv41.formats import INDEX, MAIN  # noqa: E402
from minidsv41.kernels import attention_rows, attention_split  # noqa: E402
from minidsv41.kernels.attention_split import Tile, tile_for  # noqa: E402
from minidsv41.kernels.bench import sparse_attention as bench  # noqa: E402
from minidsv41.kernels.launch import INTERPRETED, Unsupported, recorded  # noqa: E402
from minidsv41.kernels.sparse_attention import SPECIMENS, sparse_attention  # noqa: E402

SMALL = Tile(16, 16, 1, 4, 1)
RAGGED = dict(lengths=[3, 1, 4], starts=[0, 20, 5])


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("splits", [1, 2, 3])
def test_equals_the_plain_version(packed, dtype, splits, device):
    x = Problem(**RAGGED, packed=packed, dtype=dtype, device=device, k=19)
    out, lse = sparse_attention(*x.given, with_lse=True, tile=SMALL._replace(splits=splits))
    want, want_lse = x.exact()
    assert distance(out, want) < TOLERANCE[dtype]
    torch.testing.assert_close(lse.double(), want_lse, rtol=0, atol=1e-4)


def test_the_twin_in_float64_gives_the_same(device):
    x = Problem(**RAGGED, device=device, packed=False)
    for rows in (x.window, x.entries):
        rows.data.nan_to_num_(0.0)
    exact = ops.sparse_attention.plain(
        x.q.double(), decoded(x.window), decoded(x.entries), x.topk, x.sink.double(), x.span
    )  # fmt: skip
    assert distance(sparse_attention(*x.given), exact) < TOLERANCE[torch.float32]


@pytest.mark.parametrize(("heads", "width", "dims", "window", "k"), [(3, 32, 8, 5, 1), (20, 96, 96, 17, 18)])
def test_odd_sizes_are_padded(heads, width, dims, window, k, device):
    x = Problem([3, 1], starts=[30, 2], heads=heads, width=width, dims=dims, window=window, k=k, page=3, device=device)
    out = sparse_attention(*x.given, rotation=x.float_rotation(), tile=SMALL)
    assert distance(out, x.turned_back(x.exact()[0])) < TOLERANCE[torch.float32]


@pytest.mark.parametrize(("splits", "window", "k"), [(2, 16, 19), (3, 40, 19), (4, 40, 64), (10, 20, 100)])
def test_parts_may_begin_anywhere(splits, window, k, device):
    x = Problem([2], starts=[90], window=window, k=k, device=device)
    tile = SMALL._replace(splits=splits)
    out, lse = sparse_attention(*x.given, with_lse=True, tile=tile)
    want, want_lse = x.exact()
    assert distance(out, want) < TOLERANCE[torch.float32]
    torch.testing.assert_close(lse.double(), want_lse, rtol=0, atol=1e-4)
    assert torch.equal(sparse_attention(*x.given, tile=tile), out)  # without lse


@pytest.mark.parametrize(("splits", "rows"), [(4, 1), (5, 2)])
def test_codes_of_the_next_tile_may_wait_in_registers(splits, rows, device):
    shape = dict(heads=64, width=512, window=128, k=512, page=64, dims=64)
    x = Problem([1], starts=[900], **shape, dtype=torch.bfloat16, device=device)
    out = sparse_attention(*x.given, rotation=x.float_rotation(), tile=Tile(64, 64, splits, rows=rows, ahead=True))
    assert distance(out, x.turned_back(x.exact()[0])) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_released_widths(dtype, device):
    x = Problem([1], starts=[300], heads=64, width=512, window=128, k=100, page=64, dims=64, dtype=dtype, device=device)
    out = sparse_attention(*x.given, rotation=x.float_rotation())
    assert distance(out, x.turned_back(x.exact()[0])) < TOLERANCE[dtype]


@pytest.mark.parametrize("splits", [1, 4])
def test_the_rotation_of_the_query_is_undone(splits, device):
    x = Problem(**RAGGED, device=device)
    tile = SMALL._replace(splits=splits)
    want = x.turned_back(sparse_attention(*x.given, tile=tile).double())
    assert distance(sparse_attention(*x.given, tile=tile, rotation=x.float_rotation()), want) < 1e-6


@pytest.mark.parametrize("splits", [1, 2])
def test_a_query_without_keys_gives_zero_and_its_sink(splits, device):
    x = Problem([3], starts=[9], device=device, floor=torch.tensor([99, 0, 99]))
    topk = x.topk.clone()
    topk[0] = -1
    out, lse = sparse_attention(
        x.q, x.window, x.entries, topk, x.sink, x.span, with_lse=True, tile=SMALL._replace(splits=splits)
    )  # fmt: skip
    assert not out[0].any() and out[1].any()
    torch.testing.assert_close(lse[0], x.sink)


def test_no_window_row_before_the_floor_is_read(device):
    x = Problem([6], starts=[8], device=device, floor=torch.tensor([0, 5, 9, 11, 12, 13]))
    out = sparse_attention(*x.given)
    assert distance(out, x.exact()[0]) < TOLERANCE[torch.float32]
    assert int(x.span.first[4]) == 12


def test_a_huge_sink_and_huge_scores_stay_finite(device):
    x = Problem(**RAGGED, device=device)
    x.sink[0], x.sink[1] = 500.0, -500.0
    x.q *= 100
    out, lse = sparse_attention(*x.given, with_lse=True, tile=SMALL._replace(splits=3))
    want, want_lse = x.exact()
    assert distance(out, want) < TOLERANCE[torch.float32]
    torch.testing.assert_close(lse.double(), want_lse, rtol=1e-5, atol=1e-3)


def test_every_element_is_written(monkeypatch, device):
    x = Problem(**RAGGED, device=device)
    empty, empty_like = torch.empty, torch.empty_like

    def poisoned(t):
        return t.fill_(torch.nan) if t.is_floating_point() else t.fill_(2**30)

    monkeypatch.setattr(torch, "empty", lambda *a, **k: poisoned(empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: poisoned(empty_like(*a, **k)))
    out, lse = sparse_attention(*x.given, with_lse=True, tile=SMALL._replace(splits=3))
    assert out.isfinite().all() and lse.isfinite().all()


def test_rounding_has_no_bias(device):
    """Errors of bfloat16 outputs are as often up as down, seen over 40,000 elements."""
    if device.type == "cpu":
        pytest.skip("the interpreter cuts bfloat16 off instead of rounding")
    x = Problem([40], starts=[60], heads=16, width=64, window=8, k=20, dtype=torch.bfloat16, device=device)
    out, exact = sparse_attention(*x.given).double(), x.exact()[0]
    error = (out - exact) / exact.abs()
    assert abs(float(error.sign().mean())) < 0.03


def test_few_queries_are_split_and_many_are_not():
    splits = [tile_for(tokens, 64, 640, torch.bfloat16).splits for tokens in (1, 32, 64, 128, 4096)]
    assert splits == [10, 4, 2, 1, 1]


def test_only_shapes_decide_what_is_launched():
    with recorded() as launches:
        for specimen in SPECIMENS.values():
            specimen()
    assert [call.kernel.__name__ for call in launches] == ["by_query", "combine", "by_query"]
    assert launches[0].grid == (32, 1, 4) and launches[2].grid == (4096, 1, 1)


def test_a_small_bench_case_is_right(device):
    for queries, sequences in ((6, 3), (4, 1)):
        contest = bench.contest(queries, sequences, 32, 4, 64, 8, 4, device, 1)
        assert contest.error() < contest.tolerance


def shifted(data: torch.Tensor) -> torch.Tensor:
    """The same shape, one element behind the beginning of its memory."""
    return data.new_zeros(data.numel() + 1)[1:].view(data.shape)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: dict(q=x.q.double()), "float64"),
        (lambda x: dict(q=x.q[..., :33].contiguous()), "D = 33"),
        (lambda x: dict(sink=x.sink[:1]), "sink.shape"),
        (lambda x: dict(topk=x.topk[:1]), "topk.shape"),
        (lambda x: dict(entries=replace(x.entries, format=INDEX)), "entries.format"),
        (lambda x: dict(window=replace(x.window, format=MAIN)), "window.data.shape"),
        (lambda x: dict(entries=replace(x.entries, data=shifted(x.entries.data))), "a multiple of 16 bytes"),
        (lambda x: dict(rotation=(torch.zeros(1, 8), torch.zeros(1, 8))), "rotation of shape"),
    ],
)
def test_what_is_not_supported_is_refused(change, message):
    x = Problem([3])
    names = ("q", "window", "entries", "topk", "sink", "span")
    with pytest.raises(Unsupported, match=re.escape(message)):
        sparse_attention(**dict(zip(names, x.given, strict=True)) | change(x))


def test_packed_codes_decode_as_in_formats():
    """The PTX that a GPU runs, executed here instruction by instruction, on every byte and scale."""
    data = torch.arange(256, dtype=torch.uint8).reshape(-1, 8)
    for scale in (1, 0x38, 0x5F, 0x7E):  # 2**-9, 1, 120, 448
        factor = MAIN.scales.decode(torch.tensor([scale], dtype=torch.uint8), torch.float32)
        want = MAIN.values.decode(MAIN.values.unpack(data), torch.float32) * factor  # [32, 16]
        for given, values in zip(data.tolist(), want, strict=True):
            halves = run_ptx(attention_rows.decode_fp4(), given, bits(float(factor * attention_rows.LIFT.value)))
            found = torch.tensor(halves, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
            assert torch.equal(found * attention_rows.UNIT.value, values)


def decoded_bytes(data, factor):
    """First and second run of eight of each eight bytes, where the bytes were."""
    values = MAIN.values.decode(MAIN.values.unpack(data), torch.float32)
    return (values.unflatten(1, (-1, 2, 8)) * factor.unflatten(1, (-1, 8))[:, :, None, :]).unbind(2)


def decoded_words(words, factor):
    """In half h of register k of two words, their value 2 k + h."""
    values = MAIN.values.decode(MAIN.values.unpack(words.view(torch.uint8)), torch.float32)
    assert torch.equal(factor[:, ::2], factor[:, 1::2])
    return (values.unflatten(1, (-1, 16)) * factor[:, ::2, None]).unflatten(2, (8, 2)).unbind(2)


@pytest.mark.skipif(not INTERPRETED, reason="a GPU runs the PTX itself")
@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize(("splits", "start"), [(1, 60), (3, 60), (5, 7)])
def test_packed_codes_are_put_in_place(splits, start, ahead, monkeypatch):
    """What the PTX gives (as words that waited in registers, or as bytes), the kernel puts where q has its columns."""

    def decode(asm, constraints, args, dtype, is_pure, pack, _semantic=None):
        stored, factor = (arg.handle.data for arg in args)
        factor = torch.from_numpy(factor.view("int16")).view(torch.bfloat16).float() * 2.0**-126
        made = decoded_words if ahead else decoded_bytes
        made = made(torch.from_numpy(stored.astype("int32" if ahead else "uint8")), factor)
        shape = tl.block_type(tl.float32, list(stored.shape))
        return tuple(tl.tensor(TensorHandle(x.reshape(stored.shape).numpy(), tl.float32), shape) for x in made)

    monkeypatch.setattr(tl, "inline_asm_elementwise", decode)
    common = attention_split.common
    monkeypatch.setattr(attention_split, "common", lambda *args: common(*args) | {"PACKED": True})
    x = Problem([2], starts=[start], heads=16, width=512, window=20, k=40, page=8, dims=64)
    tile = Tile(16, 16, splits, ahead=ahead)
    out, lse = sparse_attention(*x.given, with_lse=True, rotation=x.float_rotation(), tile=tile)
    want, want_lse = x.exact()
    assert distance(out, x.turned_back(want)) < TOLERANCE[torch.float32]
    torch.testing.assert_close(lse.double(), want_lse, rtol=0, atol=1e-4)


def bits(x: float) -> int:
    return int(torch.tensor(x).bfloat16().view(torch.int16)) & 0xFFFF


def run_ptx(text: str, data: list[int], factor: int) -> list[int]:
    """Sixteen bfloat16 bit patterns, in order, that the instructions make of eight bytes and a scale."""
    register = {f"${8 + w}": int.from_bytes(bytes(data[4 * w : 4 * w + 4]), "little") for w in (0, 1)}
    register["$10"] = factor | factor << 16

    def value(name: str) -> int:
        return register[name] if name in register else int(name, 0)

    def product(a: int, b: int) -> int:
        made = torch.tensor([a, b], dtype=torch.int32).to(torch.int16).view(torch.bfloat16).double()
        return bits(float(made[0] * made[1]))

    for line in text.strip("{}").split(";"):
        name, *rest = line.replace(",", " ").split() or [""]
        if not name or name == ".reg":
            continue
        to, *given = rest
        x = [value(g) for g in given]
        if name == "mov.b32":
            register[to] = x[0]
        elif name == "shl.b32":
            register[to] = (x[0] << x[1]) & 0xFFFFFFFF
        elif name == "shr.u32":
            register[to] = x[0] >> x[1]
        elif name == "and.b32":
            register[to] = x[0] & x[1]
        elif name == "prmt.b32":
            pool = [*x[0].to_bytes(4, "little"), *x[1].to_bytes(4, "little")]
            register[to] = int.from_bytes(bytes(pool[x[2] >> 4 * i & 7] for i in range(4)), "little")
        elif name == "lop3.b32":
            assert x[3] == 0xEA  # (a & b) | c
            register[to] = (x[0] & x[1]) | x[2]
        else:
            assert name == "fma.rn.bf16x2" and x[2] == 0x80008000
            register[to] = product(x[0] & 0xFFFF, x[1] & 0xFFFF) | product(x[0] >> 16, x[1] >> 16) << 16
    return [register[f"${i}"] >> s & 0xFFFF for i in range(8) for s in (0, 16)]
