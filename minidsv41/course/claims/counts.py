"""What is computed for article 1: arithmetic on the released config."""

from __future__ import annotations

from fractions import Fraction

from minidsv41.config import ModelConfig
from minidsv41.course.ced import break_even, row_layers
from minidsv41.course.claims.claim import Found
from minidsv41.course.staircase import Rebuild, reach
from minidsv41.formats import INDEX, MAIN, WINDOW
from minidsv41.ledger import params, traffic
from minidsv41.ledger.bytes import entries_per_token, kv_bytes_per_token, v4_record
from minidsv41.ledger.deployed import FP4_KEY, V4_ROW
from minidsv41.ledger.flops import flop_decode
from minidsv41.ledger.line import fields
from minidsv41.ledger.models import ratio_vs
from minidsv41.ledger.persistent import half_length, persistent_ratio_at_half
from minidsv41.ledger.tensors import tensors

FLASH = ModelConfig.preset("flash")
L, W = FLASH.num_hidden_layers, FLASH.sliding_window


def per_token() -> Found:
    entries, whole = entries_per_token(FLASH).value, kv_bytes_per_token(FLASH).value
    main, index = MAIN.row_bytes(FLASH.head_dim), INDEX.row_bytes(FLASH.index_head_dim)
    return Found(f"{float(entries)} × ({main} + {index}) = {whole} B", whole == entries * (main + index) == 890)


def against(ancestor, expected: float) -> Found:
    ratio = float(ratio_vs(FLASH, ancestor).value)
    return Found(f"{ratio:.2f} times", abs(ratio - expected) < 0.06)


def layouts() -> Found:
    width, rope = fields(FLASH, "head_dim qk_rope_head_dim")
    rows = MAIN.row_bytes(FLASH.head_dim), WINDOW.row_bytes(FLASH.head_dim), INDEX.row_bytes(FLASH.index_head_dim)
    v4 = int(v4_record(width, rope))
    return Found(f"V4's record {v4} B; V4.1 stores {', '.join(map(str, rows))} B", (v4, *rows) == (584, 288, 528, 68))


def parameters() -> Found:
    parts = [
        params.backbone_params(FLASH),
        params.engram_table_params(FLASH),
        params.active_prefill_encoder(FLASH),
        params.active_decode_full(FLASH),
    ]
    billions = [float(p.value) / 1e9 for p in parts]
    close = all(abs(b - said) < 1 for b, said in zip(billions, (552, 196, 8, 16), strict=True))
    return Found(", ".join(f"{b:.2f} B" for b in billions), close)


def owners() -> Found:
    owners = [o for o in FLASH.kv_source_layer_ids if o >= FLASH.decoder_start]
    readers = sum(FLASH.kv_owner(layer) == owners[0] for layer in range(FLASH.decoder_start, L))
    return Found(f"decoder owners {owners}, read by {readers} layers", (owners, readers) == ([20], 20))


def fused() -> Found:
    """Where the checkpoint has a projection for entries beside that for window rows."""
    names = {t.name for t in tensors(FLASH)}
    window = [layer for layer in range(L) if f"layers.{layer}.attn.wkv.weight" in names]
    own = [layer for layer in range(L) if f"layers.{layer}.attn.compressor.wkv.weight" in names]
    text = f"window projection in {len(window)} layers, the compressor's, a matrix of its own, in {own}"
    return Found(text, (len(window), own) == (L, list(FLASH.kv_source_layer_ids)))


def staircase() -> Found:
    one, bound = reach(L, W)[0], L * W
    return Found(f"{one:,} positions, itself included; the bound L·W is {bound:,}", (one, bound) == (5_081, 5_120))


def replay_costs() -> Found:
    turn = 50 * L
    bounded, rectangle, stairs = (
        Fraction(x, turn) for x in (L * W, L * L * W, sum(Rebuild(L, W, L * W, "staircase").run))
    )
    text = f"{float(bounded):.2f}, {float(rectangle):.1f} as a rectangle, {float(stairs):.2f} as a staircase"
    return Found(text, [round(float(x), 2) for x in (bounded, rectangle, stairs)] == [2.56, 102.4, 49.55])


def both_replays() -> Found:
    again = sum(row_layers(L, W, length=1_050, hit=1_000, held="entries", cut=True).values())
    times, even = again / (50 * L), break_even(W, L)
    return Found(f"{times:.2f} times at 50 tokens, even at {even}", round(times, 2) == 3.06 and even == 2 * W)


def last_exact() -> Found:
    exact = Rebuild(L, W, W, "rectangle").exact
    return Found(f"exact states after layers 0, 1, 2, …: {exact[:3]}", exact == [1] + [0] * (L - 1))


def seam_traffic() -> Found:
    rows = {form: int(traffic.mhc_rows_per_sublayer(FLASH, form)) for form in traffic.FORMS}
    return Found(", ".join(f"{n}d {form}" for form, n in rows.items()), list(rows.values()) == [20, 14, 10])


def engram() -> Found:
    orders = list(range(2, FLASH.engram_max_ngram_size + 1))
    text = f"n = {orders}, {FLASH.engram_n_heads} heads, layers {list(FLASH.engram_layer_ids)}"
    return Found(text, (orders, FLASH.engram_n_heads, tuple(FLASH.engram_layer_ids)) == ([2, 3, 4], 8, (1, 14)))


def dspark() -> Found:
    c = FLASH
    found = c.num_nextn_predict_layers, c.dspark_markov_rank, c.dspark_block_size, tuple(c.dspark_target_layer_ids)
    text = f"{found[0]} blocks, rank {found[1]}, {found[2]} tokens, features of layers {list(found[3])}"
    return Found(text, found == (3, 256, 5, (37, 38, 39)))


def persistent() -> Found:
    length, ratio = float(half_length().value), float(persistent_ratio_at_half(FLASH).value)
    return Found(f"1/{1 / ratio if ratio < 1 else ratio:.1f} at {length:,.0f} tokens", round(length) == 1_829)


def fallback() -> Found:
    whole = entries_per_token(FLASH).value * (V4_ROW + FP4_KEY)
    return Found(f"2.5 × ({V4_ROW} + {FP4_KEY}) = {float(whole):,.0f} B", whole == 1_630)


def growth() -> Found:
    near, far = (float(flop_decode(FLASH, n).value) for n in (4096, 1048576))
    text = f"{near / 1e9:.1f} → {far / 1e9:.1f} GFLOP, +{far / near - 1:.1%}"
    return Found(text, abs(far / near - 1.253) < 5e-4)
