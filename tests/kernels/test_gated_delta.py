"""The gated delta rule in chunks equals its plain twin in float64."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from minidsv41.families import delta
from minidsv41.kernels.bench.gated_delta import case
from minidsv41.kernels.gated_delta import Tile, chunked
from minidsv41.kernels.launch import INTERPRETED, Unsupported

TILES = [
    Tile(values=16, prepare_warps=2, registers=None),
    Tile(values=128, walk_warps=8, products="tf32x3"),
    Tile(walk_stages=2),
]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2.4e-2 if INTERPRETED else 1.2e-2}  # the interpreter truncates


def sizes(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def inputs(T, Hk=1, H=2, K=16, V=16, *, generator, device, dtype, decay=0.1, beta=None, repeated=False) -> list[Tensor]:
    """q, k, v in `dtype`, g, beta, S in float32. `repeated`: four keys only, over and over."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    k = sizes(normal(4, Hk, K)).repeat(T // 4 + 1, 1, 1)[:T] if repeated else sizes(normal(T, Hk, K))
    rate = torch.rand(T, H, generator=generator) if beta is None else torch.full((T, H), beta)
    wide = [x.to(dtype) for x in (sizes(normal(T, Hk, K)) * K**-0.5, k, normal(T, H, V))]
    g = -decay * torch.rand(T, H, generator=generator)
    return [x.to(device) for x in (*wide, g, rate, normal(H, K, V))]


def expected(q, k, v, g, beta, S) -> tuple[Tensor, Tensor]:
    share = v.shape[1] // q.shape[1]
    q, k = (x.repeat_interleave(share, 1) for x in (q, k))
    return delta.chunked(*(x.double().cpu() for x in (q, k, v, g, beta, S)))


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double().cpu() - wanted).norm() / (wanted.norm() + 1e-30))  # float32 ends at 1e-45


def compare(given: list[Tensor], **options) -> None:
    for found, wanted in zip(chunked(*given, **options), expected(*given), strict=True):
        assert found.shape == wanted.shape
        assert error(found, wanted) < TOLERANCE[given[0].dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("T", [1, 3, 63, 64, 65, 200])
def test_every_length_continues_a_state(T, dtype, generator, device):
    compare(inputs(T, generator=generator, device=device, dtype=dtype))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("decay", [0.0, 1e-4, 20.0])
def test_decay_from_none_to_all_and_rates_of_nothing_and_everything(decay, beta, dtype, generator, device):
    compare(inputs(70, generator=generator, device=device, dtype=dtype, decay=decay, beta=beta))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_repeated_keys_overwrite_and_do_not_grow(dtype, generator, device):
    compare(inputs(130, generator=generator, device=device, dtype=dtype, decay=0.0, beta=1.0, repeated=True))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("Hk", "H", "K", "V"), [(1, 1, 16, 16), (2, 6, 32, 32), (2, 2, 5, 7), (1, 2, 24, 80), (1, 1, 128, 128)]
)
def test_heads_share_keys_and_odd_widths_are_padded(Hk, H, K, V, dtype, generator, device):
    compare(inputs(67, Hk, H, K, V, generator=generator, device=device, dtype=dtype))


def test_a_sequence_may_be_cut_anywhere(generator, device):
    *given, S = inputs(150, generator=generator, device=device, dtype=torch.float32)
    whole, last = chunked(*given, S)
    head, S = chunked(*(x[:77] for x in given), S)
    tail, S = chunked(*(x[77:] for x in given), S)
    torch.testing.assert_close(torch.cat([head, tail]), whole, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(S, last, atol=2e-5, rtol=2e-5)


def test_nothing_reads_beyond_the_last_token_or_the_given_state(generator, device):
    given = inputs(70, generator=generator, device=device, dtype=torch.float32)
    poisoned = [torch.cat([x, torch.full_like(x, torch.nan)])[: len(x)] for x in given]
    for found, wanted in zip(chunked(*poisoned), chunked(*given), strict=True):
        assert torch.equal(found, wanted)


def test_every_element_is_written(generator, device, monkeypatch):
    given = inputs(70, K=5, V=7, generator=generator, device=device, dtype=torch.float32)
    empty, empty_like, new_empty = torch.empty, torch.empty_like, Tensor.new_empty
    monkeypatch.setattr(torch, "empty", lambda *a, **o: empty(*a, **o).fill_(torch.nan))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **o: empty_like(*a, **o).fill_(torch.nan))
    monkeypatch.setattr(Tensor, "new_empty", lambda *a, **o: new_empty(*a, **o).fill_(torch.nan))
    assert all(x.isfinite().all() for x in chunked(*given))


@pytest.mark.parametrize("tile", TILES)
def test_the_tile_does_not_change_the_result(tile, generator, device):
    compare(inputs(70, 1, 1, 32, 48, generator=generator, device=device, dtype=torch.bfloat16), tile=tile)


@pytest.mark.skipif(INTERPRETED, reason="stores of the interpreter truncate where a card rounds")
def test_rounding_favours_no_side(generator, device):
    given = inputs(512, 16, 32, 128, 128, generator=generator, device=device, dtype=torch.bfloat16)
    for found, wanted in zip(chunked(*given), expected(*given), strict=True):
        outward = (found.double().cpu() - wanted) * wanted.sign()
        assert abs(outward.mean()) < 2e-4 * wanted.abs().mean()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(size=32), "size = 32"),
        (dict(g=torch.zeros(3, 2, 16)), "a decay a channel has no kernel"),
        (dict(S=torch.zeros(2, 16, 16, dtype=torch.float64)), "state is float32"),
        (dict(v=torch.zeros(3, 2, 16, dtype=torch.bfloat16)), "one type for the three"),
        (dict(beta=torch.zeros(2, 2)), "beta"),
        (dict(q=torch.zeros(3, 2, 16), k=torch.zeros(3, 2, 256)), "K = 256"),
        (dict(k=torch.zeros(3, 4, 16)), "multiple of Hk"),
        (dict(q=torch.zeros(0, 2, 16), k=torch.zeros(0, 2, 16)), "T > 0"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_is_not_supported_is_refused(change, message):
    same = {name: torch.zeros(3, 2, 16) for name in "qkv"}
    given = same | dict(g=torch.zeros(3, 2), beta=torch.zeros(3, 2), S=torch.zeros(2, 16, 16))
    with pytest.raises(Unsupported, match=message):
        chunked(**(given | change))


def test_the_bench_case_runs_kernel_and_twin_on_the_same_inputs(device):
    found = case(130, 1, 2, 32)
    contest = found.build(device, 1)
    assert contest.error() < contest.tolerance
    wide = 130 * (2 * 1 + 2 * 2) * 32
    assert found.bytes == 2 * wide + 4 * (2 * 130 * 2 + 2 * 2 * 32 * 32)
    for one, other in zip(contest.runs["kernel"](), contest.runs["plain"](), strict=True):
        assert one.shape == other.shape and error(one, other.double().cpu()) < contest.tolerance
