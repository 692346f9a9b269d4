"""Stored rows inside attention kernels: where a key lies, its bytes, and its values.

Columns come in the order of `columns`: runs of eight, the even runs first, then the odd ones. A thread that decodes
eight bytes of FP4 then holds two whole runs, one of each half, and nothing has to be interleaved. Where it decodes
sixteen bytes, RUNS is 4 instead of 2: every fourth run first, so that the runs that neighbouring threads write to
shared memory at once are neighbours, too, in different banks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.formats import MAIN, WINDOW, Format
from minidsv41.kernels import codes
from minidsv41.kernels.launch import INTERPRETED, capability, dot_type, native_fp8, require
from minidsv41.ops.rows import Rows, Span

LARGE = (9, 10)  # generations of cards with 227 KB of shared memory a program
LOG2E = tl.constexpr(1.4426950408889634)
LIFT = tl.constexpr(2.0**118)  # 2**126 times the largest scale would be infinite
UNIT = tl.constexpr(2.0**8)  # of packed values as `decoded` gives them: what LIFT lacks of 2**126


def decode_fp4() -> str:
    """PTX: eight bytes of FP4 ($8, $9, low nibble first) to two runs of eight bfloat16 ($0..3, $4..7) times $10.

    Sign to bit 15, magnitude to bits 6..8 is the value times 2**-126; LIFT, in the scale $10, undoes it all but UNIT.
    """
    lines = ["{ .reg .b32 t, u, s, none; mov.b32 none, 0x80008000;"]
    for word in (8, 9):
        lines.append(f"shl.b32 u, ${word}, 4;")  # low nibbles in place of high ones
        for byte in range(4):
            bytes_ = (4 + byte) * 0x1100 + byte * 0x11
            lines.append(
                f"prmt.b32 t, u, ${word}, {bytes_:#x}; shr.u32 s, t, 6; and.b32 s, s, 0x01c001c0;"
                f"lop3.b32 t, t, none, s, 0xea; fma.rn.bf16x2 ${4 * (word - 8) + byte}, t, $10, none;"
            )
    return "\n".join([*lines, "}"])


DECODE_FP4 = tl.constexpr(decode_fp4())
REGISTERS = tl.constexpr(",".join(["=&r"] * 8 + ["r"] * 6))
REGISTERS_OF_WORDS = tl.constexpr(",".join(["=&r"] * 8 + ["r"] * 3))
TWO, EIGHT = tl.constexpr((tl.bfloat16,) * 2), tl.constexpr((tl.bfloat16,) * 8)


@triton.jit
def columns(HALF: tl.constexpr, RUNS: tl.constexpr = 2):
    """[2 * HALF] which column stands at each place."""
    place = tl.arange(0, 2 * HALF)
    i = place % (2 * HALF // RUNS)
    return tl.max_contiguous(tl.multiple_of(i // 8 * (8 * RUNS) + place // (2 * HALF // RUNS) * 8 + i % 8, 8), 8)


@triton.jit
def places_of(HALF: tl.constexpr, RUNS: tl.constexpr):
    """[2 * HALF] at which place each column stands."""
    c = tl.arange(0, 2 * HALF)
    place = c // 8 % RUNS * (2 * HALF // RUNS) + c // (8 * RUNS) * 8 + c % 8
    return tl.max_contiguous(tl.multiple_of(place, 8), 8)


@triton.jit
def in_order(x, HALF: tl.constexpr, RUNS: tl.constexpr = 2):
    """[rows, 2 * HALF] with its columns back in their order."""
    ROWS: tl.constexpr = x.shape[0]
    return x.reshape(ROWS, RUNS, HALF // (4 * RUNS), 8).permute(0, 2, 1, 3).reshape(ROWS, 2 * HALF)


@triton.jit
def located(table, pages, page, seq, index):
    """Physical rows (int32) of rows `index` of the sequence `seq`; -1 where index < 0."""
    at = tl.maximum(index, 0).to(tl.int32)
    physical = tl.load(table + seq * pages + at // page, index >= 0, other=0)
    return tl.where(index >= 0, physical * page + at % page, -1).to(tl.int32)


@triton.jit
def fetch(
    data, scales, row, D: tl.constexpr, HALF: tl.constexpr, FORMAT: tl.constexpr, PACKED: tl.constexpr,
    RUNS: tl.constexpr = 2,
):  # fmt: skip
    """What is stored of N rows: values, codes or packed codes [N, .], and scale codes [N, .]; zeros where row is -1."""
    FULL: tl.constexpr = D == 2 * HALF
    real, row = (row >= 0)[:, None], row.to(tl.int64)
    if FORMAT == "main" and PACKED:
        byte, group = tl.arange(0, HALF), tl.arange(0, HALF // 8)
        codes_real = real if FULL else real & (byte < D // 2)[None, :]
        scale_real = real if FULL else real & (group < D // 16)[None, :]
        stored = tl.load(data + row[:, None] * (D // 2) + byte[None, :], codes_real, other=0)
        place = tl.max_contiguous(row[:, None] * (D // 16) + group[None, :], [1, 2])  # in the order of the codes
        scale = tl.load(scales + place, scale_real, other=0)
    else:
        column, group = columns(HALF, RUNS), tl.arange(0, HALF // 16)
        codes_real = real if FULL else real & (column < D)[None, :]
        if FORMAT == "main":
            stored = tl.load(data + row[:, None] * (D // 2) + (column // 2)[None, :], codes_real, other=0)
            stored = (stored >> (column % 2 * 4).to(tl.uint8)[None, :]) & 15
            scale = tl.load(scales + row[:, None] * (D // 16) + (column // 16)[None, :], codes_real, other=0)
        else:
            stored = tl.load(data + row[:, None] * D + column[None, :], codes_real, other=0)
            scale = row
            if FORMAT == "window":
                scale_real = real if FULL else real & (group < D // 32)[None, :]
                scale = tl.load(scales + row[:, None] * (D // 32) + group[None, :], scale_real, other=0)
    return stored, scale


@triton.jit
def fetch_words(data, scales, row, HALF: tl.constexpr):
    """As `fetch`, of packed rows of width 2 * HALF: codes in words of four bytes, scales in pairs.

    Where a loop carries them, these stay whole in registers; bytes would take a register each.
    """
    N: tl.constexpr = row.shape[0]
    real, row = (row >= 0)[:, None], row.to(tl.int64)[:, None]
    word, group = tl.arange(0, HALF // 4), tl.arange(0, HALF // 8)
    words = tl.load(data.to(tl.pointer_type(tl.int32)) + row * (HALF // 4) + word[None, :], real, other=0)
    scale = tl.load(scales + tl.max_contiguous(row * (HALF // 8) + group[None, :], [1, 2]), real, other=0)
    first, second = scale.to(tl.int16).reshape(N, HALF // 16, 2).split()
    return words, first | (second << 8)


@triton.jit
def decoded_words(words, pairs, HALF: tl.constexpr, FP8: tl.constexpr):
    """Values [N, 2 * HALF] of fetched words in UNITs; register k of two words holds their values 2 k and 2 k + 1."""
    N: tl.constexpr = words.shape[0]
    groups = tl.join((pairs & 255).to(tl.uint8), ((pairs >> 8) & 255).to(tl.uint8))
    factor = (codes.e4m3_decode(groups, FP8).to(tl.float32) * LIFT).to(tl.bfloat16).reshape(N, HALF // 8)
    factor = factor[:, :, None].broadcast_to(N, HALF // 8, 2).reshape(N, HALF // 4)
    a, b, c, d, e, f, g, h = tl.inline_asm_elementwise(DECODE_FP4, REGISTERS_OF_WORDS, [words, factor], EIGHT, True, 2)
    first, second = tl.join(tl.join(a, b), tl.join(c, d)), tl.join(tl.join(e, f), tl.join(g, h))
    values = tl.join(first, second).reshape(N, HALF // 16, 2, 2, 2, 2, 2)  # four words, half of a register, k
    return values.permute(0, 2, 6, 1, 5, 4, 3).reshape(N, 2 * HALF)


@triton.jit
def decoded(
    stored, scale, HALF: tl.constexpr, FORMAT: tl.constexpr, DOT: tl.constexpr, FP8: tl.constexpr,
    PACKED: tl.constexpr, RUNS: tl.constexpr = 2,
):  # fmt: skip
    """Values [N, 2 * HALF] of fetched rows, those of packed codes in UNITs, in the type that is multiplied; exact."""
    N: tl.constexpr = stored.shape[0]
    if FORMAT == "main" and PACKED:
        factor = (codes.e4m3_decode(scale, FP8).to(tl.float32) * LIFT).to(tl.bfloat16)
        factor = factor[:, :, None].broadcast_to(N, HALF // 8, 8).reshape(N, HALF)
        first, second = tl.inline_asm_elementwise(DECODE_FP4, REGISTERS, [stored, factor], TWO, True, 8)
        values = tl.join(first, second).reshape(N, 2 * HALF // (8 * RUNS), RUNS // 2, 8, 2)
        values = values.permute(0, 2, 4, 1, 3).reshape(N, 2 * HALF)
    elif FORMAT == "main":
        values = codes.e2m1_decode(stored).to(DOT) * codes.e4m3_decode(scale, FP8).to(DOT)
    elif FORMAT == "window":
        GROUP: tl.constexpr = 32 // RUNS  # values of a group that are neighbours
        factor = codes.ue8m0_decode(scale)[:, None, :, None].broadcast_to(N, RUNS, HALF // 16, GROUP)
        factor = factor.reshape(N, 2 * HALF)
        values = (codes.e4m3_decode(stored, FP8).to(tl.float32) * factor).to(DOT)
    else:
        values = stored.to(DOT)
    return values


def arguments(prefix: str, rows: Rows) -> dict[str, object]:
    """The arguments `{prefix}_data`, ... of a kernel that reads these rows."""
    table = rows.table.contiguous()
    return {
        f"{prefix}_data": rows.data,
        f"{prefix}_scales": rows.scales,
        f"{prefix}_table": table,
        f"{prefix}_pages": table.shape[1],
        f"{prefix}_page": rows.page,
        f"{prefix.upper()}_FORMAT": {None: "plain", MAIN: "main", WINDOW: "window"}[rows.format],
    }


def common(q: Tensor, keys: int, warps: int) -> dict[str, object]:
    """The constants of kernels that multiply queries [T, H, D] with tiles of `keys` rows.

    PACKED, `decode_fp4` decodes: a thread must hold whole groups of eight bytes, as it does where it loads sixteen.
    """
    bf16 = dot_type(q.dtype) == tl.bfloat16
    wide = q.shape[2] == 512 and keys * 256 >= 16 * 32 * warps
    return dict(
        H=q.shape[1],
        D=q.shape[2],
        HALF=max(16, triton.next_power_of_2(q.shape[2] // 2)),
        DOT=dot_type(q.dtype),
        PRECISION="tf32" if bf16 else "ieee",
        FP8=native_fp8(q.device),
        PACKED=bf16 and wide and not INTERPRETED,
    )


def check(q: Tensor, sink: Tensor, span: Span, rotation: tuple[Tensor, Tensor] | None, **given: Rows | None) -> None:
    """Raises Unsupported for what the attention kernels do not take."""
    dot_type(q.dtype)
    tokens, heads, width = q.shape
    require(width % 32 == 0 and width <= 512, f"D = {width}: allowed are multiples of 32 up to 512")
    require(sink.shape == (heads,), f"sink.shape = {tuple(sink.shape)}: allowed is ({heads},), one a head")
    require(len(span.last) == tokens, f"span has {len(span.last)} queries: allowed are the {tokens} of q")
    for name, rows in given.items():
        if rows is None:
            continue
        require(rows.format in (None, MAIN, WINDOW), f"{name}.format = {rows.format}: allowed are main and window rows")
        stored = width // 2 if rows.format == MAIN else width
        found = rows.data.shape[1]
        require(found == stored, f"{name}.data.shape[1] = {found}: allowed is {stored} at width {width}")
        require(rows.data.is_contiguous(), f"{name}.data: allowed are contiguous rows")
        aligned = rows.data.is_meta or rows.data.data_ptr() % 16 == 0  # decoded in groups of 16 bytes a thread
        require(aligned, f"{name}.data: allowed are rows that begin at a multiple of 16 bytes")
        require(rows.scales is None or rows.scales.is_contiguous(), f"{name}.scales: allowed are contiguous rows")
        if rows.format is None:
            require(rows.data.dtype == q.dtype, f"{name}.data.dtype = {rows.data.dtype}: allowed is q's, {q.dtype}")
    if rotation is not None:
        shape = tuple(rotation[0].shape)
        allowed = len(shape) == 2 and shape[0] == tokens and 2 * shape[1] <= width and rotation[1].shape == shape
        require(allowed, f"rotation of shape {shape}: allowed are cos and sin [{tokens}, R / 2] with R <= {width}")


def generation(device: torch.device) -> int:
    """The first number of a card's capability; Hopper's where there is no card."""
    return capability(device)[0] or 9


def places(span: Span) -> dict[str, Tensor]:
    """The arguments that say which window rows a query reads."""
    return dict(seq=span.seq.contiguous(), first=span.first.contiguous(), last=span.last.contiguous())


def pairs(rotation: tuple[Tensor, Tensor] | None) -> dict[str, object]:
    """The arguments of a rotation; without a rotation there are no pairs."""
    if rotation is None:
        return dict(cos=None, sin=None, PAIRS=0)
    cos, sin = (t.contiguous() for t in rotation)
    return dict(cos=cos, sin=sin, PAIRS=cos.shape[1])


def specimen_rows(width: int, format: Format, sequences: int = 32) -> Rows:
    """Stored rows on the meta device, to compile kernels with."""
    codes = format.row_bytes(width) - width // format.group
    data = torch.empty(1 << 16, codes, dtype=torch.uint8, device="meta")
    scales = torch.empty(1 << 16, width // format.group, dtype=torch.uint8, device="meta")
    table = torch.empty(sequences, 64, dtype=torch.int64, device="meta")
    return Rows(data, table, 64, scales, format, torch.bfloat16)
