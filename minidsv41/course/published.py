"""Times of MLA decode that others published, and the rates that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

from minidsv41.course.intensity import Work, layer_of


@dataclass(frozen=True, kw_only=True)
class Published:
    """Somebody's time of one layer of absorbed MLA decode in BF16; not measured again here."""

    card: str
    source: str
    batch: int
    context: int
    heads: int
    queries: int
    milliseconds: float

    @property
    def work(self) -> Work:
        """Of the whole batch."""
        one = layer_of(self.heads).work(self.context, queries=self.queries)
        return Work(held=self.batch * one.held, read=self.batch * one.read, flops=self.batch * one.flops)

    @property
    def tflops(self) -> float:
        return self.work.flops / self.milliseconds / 1e9

    @property
    def terabytes(self) -> float:
        """TB/s of cache rows; queries and outputs come on top."""
        return self.work.read / self.milliseconds / 1e9


ARTICLE = Published(card="H20", source="the article", batch=32, context=32_768, heads=128, queries=1, milliseconds=3.2)
FLASHMLA = tuple(
    Published(
        card=card, source=source, batch=128, context=context, heads=heads, queries=queries, milliseconds=milliseconds
    )
    for card, source, context, heads, queries, milliseconds in (
        ("H20", "FlashMLA issue 30", 8_192, 64, 3, 3.407),
        ("H20", "FlashMLA issue 30", 8_192, 64, 6, 6.748),
        ("H100", "achatbot PR 123", 4_096, 16, 1, 0.215),
        ("H100", "achatbot PR 123", 4_096, 64, 1, 0.223),
    )
)
