"""The seam kernel is `ops.seam`, forward and backward, for every number of tokens and way to share the work."""

from contextlib import contextmanager

import pytest
import torch

pytest.importorskip("triton")

from minidsv41.kernels import seam as file  # noqa: E402
from minidsv41.kernels.bench import seam as bench  # noqa: E402
from minidsv41.kernels.launch import Unsupported  # noqa: E402
from minidsv41.kernels.seam import Tile, seam  # noqa: E402
from minidsv41.kernels.seam_backward import Tile as BackTile  # noqa: E402
from minidsv41.kernels.seam_backward import seam_backward  # noqa: E402
from minidsv41.kernels.seam_steps import Tile as StepTile  # noqa: E402
from minidsv41.kernels.seam_steps import seam_in_steps  # noqa: E402
from minidsv41.ops.seam import Next, collapse, predict, rms_norm  # noqa: E402
from minidsv41.ops.seam import seam as plain  # noqa: E402

WIDE = Tile(16, 64, warps=4)
TURNED = Tile(64, 32, warps=4, turned=True)
NAMES = ("X", "F", "pre", "post", "comb", "fn", "base", "scale", "norm")
RESULTS = ("X'", "x", "pre'", "post'", "comb'")


def inputs(T, C, dtype, generator, device, *, updated=True, spread=1.0, iters=4):
    """X, F, pre, post, comb as a seam meets them, and what the next sublayer brings."""

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    given = [normal(T, 4, C).to(dtype), normal(T, C).to(dtype), normal(T, 4).sigmoid()]
    given += [2 * normal(T, 4).sigmoid(), normal(T, 4, 4).softmax(-2)]
    brought = [normal(24, 4 * C) * C**-0.5, normal(24) * spread, 0.5 + normal(3).sigmoid(), 1 + 0.1 * normal(C)]
    given, brought = ([t.to(device) for t in ts] for ts in (given, brought))
    if not updated:
        given = [given[0], None, given[2], None, None]
    return given, Next(*brought, 1e-20, 1e-6, iters)


def leaves(given, into, dtype=None):
    """The same numbers as leaves that want a gradient, float64 where asked for."""
    tensors = [t if t is None else t.detach().to(dtype or t.dtype).requires_grad_() for t in (*given, *into[:4])]
    return tensors[:5], Next(*tensors[5:], *into[4:])


def gradients(run, given, into, out_grads, dtype=None):
    """Results of run, and gradients of all inputs that are there."""
    given, into = leaves(given, into, dtype)
    out = run(*given, into)
    torch.autograd.backward(out, [g.to(o.dtype) for g, o in zip(out_grads, out, strict=True)])
    found = {n: t.grad for n, t in zip(NAMES, (*given, *into[:4]), strict=True) if t is not None}
    return dict(zip(RESULTS, (o.detach() for o in out), strict=True)) | found


def relative(found, wanted):
    return {n: float((found[n].double() - w).norm() / w.norm()) for n, w in wanted.items()}


@contextmanager
def poisoned():
    """What nobody writes is NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch._C._set_deterministic_algorithms(True, warn_only=True)  # the public call imports inductor, for seconds
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(before)


CASES = {
    "one token": (1, 64, True, WIDE),
    "odd, several tiles": (35, 64, True, WIDE),
    "channels in parts": (11, 192, True, WIDE._replace(splits=3, finish=16, heads=2)),
    "more parts than blocks": (5, 128, True, WIDE._replace(splits=3, finish=4)),
    "width no multiple of a block": (17, 80, True, WIDE),
    "streams up to date": (18, 128, False, WIDE),
    "up to date, in parts": (18, 128, False, WIDE._replace(splits=2, finish=16)),
    "as chosen for its shape": (3, 64, True, None),
}


@pytest.mark.parametrize("case", CASES)
def test_float32_results_and_gradients_are_those_of_the_plain_twin_in_float64(case, device, generator):
    T, C, updated, tile = CASES[case]
    given, into = inputs(T, C, torch.float32, generator, device, updated=updated)
    grads = [torch.randn(s, generator=generator).to(device) for s in ((T, 4, C), (T, C), (T, 4), (T, 4), (T, 4, 4))]
    with poisoned():
        found = gradients(lambda *args: seam(*args, tile=tile), given, into, grads)
    for name, error in relative(found, gradients(plain, given, into, grads, torch.float64)).items():
        assert error < 2e-6, name


PAIRS = {
    "weights parted by every program": (19, 128, True, WIDE),
    "weights parted beforehand": (19, 128, True, WIDE._replace(packed=True)),
    "each kernel starts early": (19, 128, True, WIDE._replace(splits=2, packed=True, early=True)),
    "the first starts early too": (19, 128, True, WIDE._replace(splits=2, first=True)),
    "streams up to date, in parts": (19, 128, False, WIDE._replace(splits=2, packed=True, finish=16, heads=4)),
    "tokens as rows of the product": (70, 80, True, TURNED),
    "tokens as rows, in parts": (70, 80, True, TURNED._replace(splits=2, finish=16)),
    "tokens as rows, streams up to date": (70, 64, False, TURNED),
}


@pytest.mark.parametrize("case", PAIRS)
def test_bfloat16_is_as_near_to_float64_as_the_plain_twin_in_bfloat16(case, device, generator):
    """At most 1.5 times its error; gradients of float32 tensors may have another 5e-4 of their own (tf32)."""
    T, C, updated, tile = PAIRS[case]
    given, into = inputs(T, C, torch.bfloat16, generator, device, updated=updated)
    grads = [torch.randn(s, generator=generator).to(device) for s in ((T, 4, C), (T, C), (T, 4), (T, 4), (T, 4, 4))]
    grads = [g.bfloat16() if i < 2 else g for i, g in enumerate(grads)]
    with poisoned():
        found = relative(
            gradients(lambda *args: seam(*args, tile=tile), given, into, grads),
            wanted := gradients(plain, given, into, grads, torch.float64),
        )
    allowed = relative(gradients(plain, given, into, grads), wanted)
    for name, error in found.items():
        assert error <= 1.5 * allowed[name] + (2e-5 if name in RESULTS else 5e-4), name


def test_backward_in_other_tiles_gives_the_same(device, generator):
    T, C = 35, 80
    given, into = inputs(T, C, torch.bfloat16, generator, device)
    grads = [torch.randn(s, generator=generator).to(device) for s in ((T, 4, C), (T, C), (T, 4), (T, 4), (T, 4, 4))]
    grads = [g.bfloat16() if i < 2 else g for i, g in enumerate(grads)]
    out = file.crossed(*given, into, tile=WIDE)
    tiles = (
        BackTile(16, 64, 4, groups=1, dots=16, depth=16, columns=64),
        BackTile(32, 64, 8, groups=3, dots=2),
    )
    with poisoned():
        a, b = (seam_backward(*grads, tuple(given), into, out.new, out.x, out.kept, tile=t) for t in tiles)
    for name, found, wanted in zip(NAMES, a, b, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-2 if name in "XF" else 1e-4, atol=1e-4, msg=name)


def test_released_widths(device, generator):
    given, into = inputs(3, 5120, torch.bfloat16, generator, device, iters=20)
    tile = Tile(16, 128, splits=2, packed=True, warps=4, stages=1, finish=4)
    with poisoned():
        found = dict(zip(RESULTS, seam(*given, into, tile=tile), strict=True))
    exact = [t.double() for t in given], Next(*(t.double() for t in into[:4]), *into[4:])
    wanted = dict(zip(RESULTS, plain(*exact[0], exact[1]), strict=True))
    allowed = relative(dict(zip(RESULTS, plain(*given, into), strict=True)), wanted)
    for name, error in relative(found, wanted).items():
        assert error <= 1.5 * allowed[name] + 2e-5, name


def test_sinkhorn_keeps_to_the_plain_twin_where_logits_are_far_apart(device, generator):
    """Of 10 rows at logits of spread 12, gradients included: shares down to 1e-6 and steps that hardly converge."""
    given, into = inputs(10, 64, torch.float32, generator, device, spread=12.0, iters=20)
    grads = [
        torch.randn(s, generator=generator).to(device) for s in ((10, 4, 64), (10, 64), (10, 4), (10, 4), (10, 4, 4))
    ]
    found = gradients(lambda *args: seam(*args, tile=WIDE), given, into, grads)
    wanted = gradients(plain, given, into, grads, torch.float64)
    single = relative(gradients(plain, given, into, grads), wanted)
    for name, error in relative(found, wanted).items():
        assert error < 1e-5 + 3 * single[name], name


def test_rounding_has_no_bias(device, generator):
    """Mean distance to the exact value, in units of the last place: 0 when ties go to even, -0.5 when bits are cut."""
    given, into = inputs(16, 256, torch.bfloat16, generator, device)
    new, x, *_ = seam(*given, into, tile=WIDE)
    exact = plain(*(t.double() for t in given), Next(*(t.double() for t in into[:4]), *into[4:]))
    y = collapse(new, given[2]).double()  # what the norm is given is rounded once itself
    for found, wanted in ((new, exact[0]), (x, rms_norm(y, into.norm.double(), into.eps))):
        place = torch.exp2(wanted.abs().log2().floor() - 7)
        assert abs(float(((found.double().abs() - wanted.abs()) / place).mean())) < 0.02


def test_streams_of_one_memory_and_no_tokens(device, generator):
    given, into = inputs(5, 64, torch.float32, generator, device, updated=False)
    X = given[0][:, :1].expand(-1, 4, -1)
    X2, x, *rest = seam(X, None, given[2], None, None, into, tile=WIDE)
    assert X2 is X
    for found, wanted in zip((x, *rest), plain(X, None, given[2], None, None, into)[1:], strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    nothing, into = leaves(*inputs(0, 64, torch.float32, generator, device))
    out = seam(*nothing, into)
    assert [o.shape for o in out] == [(0, 4, 64), (0, 64), (0, 4), (0, 4), (0, 4, 4)]
    torch.autograd.backward(out, out)
    assert not into.fn.grad.any() and not into.norm.grad.any()


def test_coefficients_that_nothing_is_updated_by_are_not_used(device, generator):
    (X, _, pre, post, comb), into = leaves(*inputs(5, 64, torch.float32, generator, device))
    for found, wanted in zip(
        seam(X, None, pre, post, comb, into, tile=WIDE), seam(X, None, pre, None, None, into, tile=WIDE), strict=True
    ):
        assert torch.equal(found, wanted)
    sum(found.sum() for found in seam(X, None, pre, post, comb, into)[1:]).backward()
    assert pre.grad.any() and post.grad is None and comb.grad is None


def test_coefficients_need_not_begin_at_sixteen_bytes(device, generator):
    given, into = inputs(5, 64, torch.float32, generator, device)
    moved = [torch.cat((t.new_zeros(1), t.flatten()))[1:].view_as(t) for t in given]
    moved[2] = torch.from_dlpack(moved[2])  # which begins there by its pointer, not by an offset
    assert moved[2].storage_offset() == 0 and moved[2].data_ptr() % 16
    for found, wanted in zip(seam(*moved, into, tile=WIDE), seam(*given, into, tile=WIDE), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("delayed", [True, False])
def test_three_steps_come_to_the_same_and_can_mix_without_delay(delayed, device, generator):
    given, into = inputs(9, 128, torch.float32, generator, device)
    tile = StepTile(4, 64, 2, cross=WIDE)
    with poisoned():
        found = seam_in_steps(*given, into, delayed=delayed, tile=tile)
    wanted = list(plain(*given, into))
    if not delayed:
        wanted[1] = rms_norm(collapse(wanted[0], predict(wanted[0], into)[0]), into.norm, into.eps)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(X=torch.zeros(2, 3, 64)), "X.shape = (2, 3, 64): allowed are four streams"),
        (dict(X=torch.zeros(2, 4, 40), F=torch.zeros(2, 40)), "C = 40: allowed are multiples of 16"),
        (dict(F=torch.zeros(2, 64).bfloat16()), "F.dtype = torch.bfloat16: allowed is torch.float32"),
        (dict(pre=torch.zeros(2, 5)), "pre.shape = (2, 5): allowed is (2, 4)"),
        (dict(post=None), "post = None: allowed where F is None"),
        (dict(X=torch.zeros(2, 4, 64).double()), "dtype torch.float64"),
        (dict(hc_eps=1e-20), "into.hc_eps = 1e-20: allowed are 1e-12 and more"),
    ],
)
def test_what_is_not_supported_is_refused(change, message, generator):
    (X, F, pre, post, comb), into = inputs(2, 64, torch.float32, generator, "cpu")
    args = dict(X=X, F=F, pre=pre, post=post, comb=comb, into=into) | change
    if small := args.pop("hc_eps", None):
        args["into"] = into._replace(hc_eps=small)
    with pytest.raises(Unsupported) as refusal:
        seam(*args.values())
    assert message in str(refusal.value)


def test_tiles_that_no_kernel_has_are_refused(generator):
    given, into = inputs(40, 64, torch.float32, generator, "cpu")
    with pytest.raises(Unsupported, match="allowed are 16 a warp, and 32 channels"):
        seam(*given, into, tile=TURNED._replace(channels=64))


@pytest.mark.parametrize("make", [bench.forward, bench.backward])
def test_bench_cases_build_and_hold_their_tolerance(make, device, monkeypatch):
    """At a width and a number of steps that tests above have compiled: of 20 steps, that takes longest of all."""
    monkeypatch.setattr(bench, "ITERS", 4)
    contest = make(5, 128).build(device, 0)
    assert next(iter(contest.runs)) == "kernel"
    for name, run in contest.runs.items():
        if name != "compile":
            run()
    assert contest.error() < contest.tolerance
