"""The ancestors as the planner asks for them: published shapes, weights by assumed formats, deployed layouts."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from minidsv41.ledger.deployed import Deployed, model
from minidsv41.ledger.line import Books, Line, fields, lift, total
from minidsv41.ledger.models import V1, V1_67B, V3_2, V4_FLASH, V32
from minidsv41.ledger.parts import Part
from minidsv41.ledger.persistent import SNAPSHOTS
from minidsv41.ledger.planned import Experts, Work
from minidsv41.ledger.v4_flash import V4Flash

FP4_BYTE = Line("fp4_expert_byte", Fraction(17, 32), "B/parameter", "4 bits and a scale byte for 32")


@dataclass(frozen=True)
class Ancestor:
    """record: shapes; deployed: rows and reads; byte: of one parameter outside the routed experts, `expert` of one
    inside; routed: layers with routed experts."""

    name: str
    record: V4Flash | V32 | V1
    deployed: Deployed
    longest: int
    byte: Line
    expert: Line
    routed: int = 0
    assumed: tuple[str, ...] = ()

    def books(self) -> Books:
        return self.record.books()

    def parameters(self) -> Line:
        names = ("backbone_params_matrices", "params_matrices", "params")
        return next(line for name, line in self.books().items() if name in names)

    def routed_parameters(self) -> Line:
        if not self.routed:
            return lift(0)
        layers, number = Line("routed_layers", self.routed), fields(self.record, "experts")[0]
        return layers * number * self.books()["expert_params"]

    def weights(self) -> Line:
        routed = self.routed_parameters()
        return ((self.parameters() - routed) * self.byte + routed * self.expert).named("weight_bytes", "B")

    def tables(self) -> Line:
        return Line("table_bytes", 0, "B", "no conditional memory")

    def dense_read(self) -> Line:
        """All but routed experts and the embedding, which is read by row."""
        vocab, d = fields(self.record, "vocab d")
        read = (self.parameters() - self.routed_parameters() - vocab * d) * self.byte
        return read.named("dense_read_bytes", "B/step")

    def experts(self) -> Experts | None:
        if not self.routed:
            return None
        number, chosen = fields(self.record, "experts topk_e")
        size = (self.books()["expert_params"] * self.expert).named("expert_bytes", "B")
        return Experts(Line("routed_layers", self.routed), number, chosen, size)

    def session(self, context: int) -> list[Line]:
        tokens = Line("context", context, "tokens")
        line = tokens * self.kept("per_token") + self.kept("per_request") + self.kept("open_groups")
        return [line.named("held_bytes", f"B, {self.deployed.layout}")]

    def kept(self, name: str) -> Line:
        """The sum of `per_token`, `per_request` or `open_groups` over the parts, each with a name of its own."""
        parts = [(kind, part) for kind, part in self.parts() if hasattr(part, name)]
        return total(getattr(part, name).named(f"{kind}_bytes_{name}", "B") for kind, part in parts)

    def parts(self) -> list[tuple[str, Part]]:
        return [(f"{type(part).__name__.lower()}_{part.layers}", part) for part in self.deployed.parts]

    def reads(self, context: int) -> list[Line]:
        tokens = Line("context", context, "tokens")
        read = total(part.reads(tokens).named(f"{kind}_read_bytes", "B/step") for kind, part in self.parts())
        return [read.named("cache_read_bytes", f"B/step, {self.deployed.layout}")]

    def stored(self, context: int) -> Line:
        """V4 keeps its windows at the end of the prompt and of the output."""
        tokens = Line("context", context, "tokens")
        line = tokens * self.kept("per_token") + SNAPSHOTS * self.kept("per_request")
        return line.named("stored_bytes", f"B, {self.deployed.layout}")

    def token_flops(self, context: int, *, fp8: bool) -> Line:
        """Of the record's own count; without FP8 units twice that, but for the 67B model, which is BF16."""
        if isinstance(self.record, V1):
            layers, heads, width, vocab, d = fields(self.record, "layers heads head_dim vocab d")
            tokens = Line("context", context, "tokens")
            return 2 * (self.books()["params"] - vocab * d) + 4 * heads * width * tokens * layers
        books = self.record.decode_flops(self.books()["flop_weights"], context)
        line = next(line for name, line in books.items() if name.startswith("flop_decode"))
        return line if fp8 else 2 * line

    def step_flops(self, context: int, *, fp8: bool) -> Line:
        return self.token_flops(context, fp8=fp8).named("step_flops", "FLOP/token")

    def prefill(self, length: int, hit: int, *, fp8: bool) -> dict[str, Work]:
        """Every new token through all layers, at the mean position."""
        mean = self.token_flops((length + hit) // 2, fp8=fp8)
        new = (Line("context", length, "tokens") - Line("hit", hit, "tokens")).named("new_tokens", "tokens")
        flops = (new * mean).named("prefill_flops", "FLOP")
        return {"all_layers": Work(flops, new, Line("share_of_layers", 1))}


ONE, TWO = Line("fp8_byte", 1, "B/parameter"), Line("bf16_bytes", 2, "B/parameter")
V4_ASSUMED = ("routed experts in FP4, other matrices in FP8, embedding and head too", "no draft module")
BEFORE = {
    "v4-flash": Ancestor(
        "DeepSeek-V4-Flash",
        V4_FLASH,
        model("DeepSeek-V4-Flash"),
        1_048_576,
        ONE,
        FP4_BYTE,
        V4_FLASH.layers,
        V4_ASSUMED,
    ),
    "v3.2": Ancestor(
        "DeepSeek-V3.2",
        V3_2,
        model("DeepSeek-V3.2"),
        163_840,
        ONE,
        ONE,
        V3_2.layers - V3_2.dense_layers,
        ("all matrices in FP8, embedding and head too", "no draft module"),
    ),
    "67b": Ancestor("DeepSeek-67B", V1_67B, model("DeepSeek-67B"), 4_096, TWO, TWO),
}
