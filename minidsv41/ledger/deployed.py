"""Models as they are deployed: their attention layers by kind, in a named layout, and the books that follow.

Shapes are those of the released configs (`transformers` 5.24.0 and the models' own); what no source gives is listed
as assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

from minidsv41.config import ModelConfig
from minidsv41.ledger.line import Line, lift
from minidsv41.ledger.parts import (
    Compressed,
    DeltaState,
    HeadRows,
    LatentRows,
    Part,
    SharedEntries,
    Windows,
    windows_of,
)

V4_ROW, FP4_KEY, FP8_KEY = 584, 68, 132
CSA_OPEN, HCA_OPEN = 4 * 2 * (1024 + 256), 4 * 2 * 512  # values and scores in FP32: entries, and CSA's index keys
LATENT_BF16, LATENT_FP8 = 576 * 2, 656  # 512 + 64 rotated values; FP8 with scales, the rotated ones in BF16


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """A model in one layout. assumed: values that no source gives."""

    name: str
    layout: str
    parts: tuple[Part, ...]
    assumed: tuple[str, ...] = ()

    @property
    def per_token(self) -> Line:
        """Bytes that each token adds."""
        whole = sum((part.per_token for part in self.parts), start=lift(0))
        return whole.named("kv_bytes_per_token", f"B/token, {self.layout}")

    @property
    def per_request(self) -> Line:
        """Bytes of a request at any length (with its windows full)."""
        whole = sum((part.per_request for part in self.parts), start=lift(0))
        return whole.named("fixed_bytes_per_request", f"B, {self.layout}")

    @property
    def open_groups(self) -> Line:
        """Bytes of tokens whose groups are not whole, at most; neither `per_request` nor `held` counts them."""
        whole = sum((part.open_groups for part in self.parts if hasattr(part, "open_groups")), start=lift(0))
        return whole.named("open_group_bytes", "B, FP32")

    def held(self, context: int) -> Line:
        """Bytes of one request of `context` tokens: what it holds, and what a hand-over carries."""
        tokens = Line("context", context, "tokens")
        return (tokens * self.per_token + self.per_request).named("held_bytes", f"B, {self.layout}")

    def reads(self, context: int) -> Line:
        """Bytes of cache and state that a decode step moves, batch 1."""
        tokens = Line("context", context, "tokens")
        whole = sum((part.reads(tokens) for part in self.parts), start=lift(0))
        return whole.named("read_bytes_per_step", f"B, {self.layout}")

    @property
    def crossover(self) -> Line | None:
        """Tokens from which the growing part outweighs the fixed one; None where nothing is fixed."""
        if not self.per_request.value:
            return None
        return (self.per_request / self.per_token).named("crossover", "tokens")


FLASH = ModelConfig.preset("flash")


def qwen35(state_bytes: int) -> Deployed:
    """Qwen3.5-397B: 15 full layers, 45 of gated DeltaNet with a state of `state_bytes` a number."""
    delta = DeltaState(layers=45, heads=64, key_dim=128, value_dim=128, channels=12288, bytes=state_bytes)
    dtype = {2: "BF16", 4: "FP32"}[state_bytes]
    full = HeadRows(layers=15, kv_heads=2, head_dim=256)
    return Deployed(name="Qwen3.5-397B", layout=f"BF16 rows, {dtype} state", parts=(full, delta))


def kda(layers: int, heads: int) -> DeltaState:
    return DeltaState(layers=layers, heads=heads, key_dim=128, value_dim=128, channels=3 * heads * 128)


def v4(name: str, *, csa: int, hca: int, layers: int, topk: int, key: int = FP4_KEY) -> Deployed:
    parts = (
        Compressed(layers=csa, rate=4, row=V4_ROW, key=key, topk=topk, open_row=CSA_OPEN),
        Compressed(layers=hca, rate=128, row=V4_ROW, open_row=HCA_OPEN),
        Windows(layers=layers, window=128, row=V4_ROW),
    )
    return Deployed(name=name, layout=f"V4 rows, {'FP4' if key == FP4_KEY else 'FP8'} index", parts=parts)


MODELS = (
    Deployed(name="DeepSeek-67B", layout="BF16", parts=(HeadRows(layers=95, kv_heads=8, head_dim=128),)),
    Deployed(
        name="DeepSeek-V3.2",
        layout="FP8 latent, FP8 index",
        parts=(LatentRows(layers=61, row=LATENT_FP8, key=FP8_KEY, topk=2048),),
    ),
    v4("DeepSeek-V4-Flash", csa=21, hca=20, layers=43, topk=512),
    v4("DeepSeek-V4-Pro", csa=30, hca=31, layers=61, topk=1024),
    Deployed(
        name="DeepSeek-V4.1-Flash",
        layout="FP4 main + FP4 index, FP8 windows",
        parts=(SharedEntries(config=FLASH), windows_of(FLASH)),
    ),
    Deployed(name="Kimi K2", layout="BF16 latent", parts=(LatentRows(layers=61, row=LATENT_BF16),)),
    Deployed(
        name="Kimi-Linear-48B",
        layout="BF16 latent, FP32 state",
        parts=(LatentRows(layers=7, row=LATENT_BF16), kda(20, 32)),
    ),
    Deployed(
        name="Kimi K3",
        layout="BF16 latent, FP32 state",
        parts=(LatentRows(layers=24, row=LATENT_BF16), kda(69, 96)),
        assumed=("head_dim 128 of KDA",),
    ),
    Deployed(
        name="GLM-5",
        layout="BF16 latent, FP8 index",
        parts=(LatentRows(layers=78, row=LATENT_BF16, key=FP8_KEY, topk=2048),),
    ),
    Deployed(
        name="GLM-5.3-Flash",
        layout="BF16 latent without rotation, BF16 index, FP32 state",
        parts=(LatentRows(layers=11, row=512 * 2, key=128 * 2, topk=2048, pool=16), kda(34, 64)),
    ),
    qwen35(4),
)


def model(name: str) -> Deployed:
    """Raises KeyError with the names."""
    found = {m.name: m for m in MODELS}
    if name not in found:
        raise KeyError(f"no model {name!r}; there are {', '.join(found)}")
    return found[name]
