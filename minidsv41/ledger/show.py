"""The books as tables on a console."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from minidsv41.config import ModelConfig
from minidsv41.ledger.books import Book, books
from minidsv41.ledger.deployed import MODELS
from minidsv41.ledger.line import Line, plain
from minidsv41.ledger.parts import ANYWHERE

SCALES = {
    "B": (("GB", 10**9), ("MB", 10**6)),
    "FLOP": (("GFLOP", 10**9), ("MFLOP", 10**6)),
    "parameters": (("billion", 10**9), ("million", 10**6)),
}
FORMULAS_FROM = 110  # columns; a narrower console shows no formulas


def unit(line: Line) -> str:
    """The unit, with a large amount also in a larger decimal unit (GB = 10^9 B)."""
    kind = line.unit.replace("/", ",").split(",")[0]
    for larger, size in SCALES.get(kind, ()):
        if line.value >= size:
            return f"{line.unit} ({float(line.value / size):,.2f} {larger})"
    return line.unit


def digits(value: float) -> str:
    """Three decimals, and below 1 four digits."""
    return f"{value:.4g}" if abs(value) < 1 else f"{value:,.3f}".rstrip("0").rstrip(".")


def table(book: Book, *, formulas: bool) -> Table:
    out = Table(title=book.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    out.add_column("quantity", no_wrap=True)
    out.add_column("value", justify="right", no_wrap=True)
    out.add_column("unit", min_width=12)
    if formulas:
        out.add_column("formula", style="dim", ratio=1)
    for line in book.lines:
        cells = [line.name, digits(plain(line.value)), unit(line)]
        out.add_row(*cells, *([line.formula] if formulas else []))
    return out


def print_books(c: ModelConfig, console: Console) -> None:
    """One table for each book of `c`; formulas where the console is wide enough."""
    for book in books(c):
        console.print(table(book, formulas=console.width >= FORMULAS_FROM))


def print_models(console: Console, *, context: int = 131_072) -> None:
    """The deployed models side by side: what a token leaves, what a request holds, what a step reads, what divides."""
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    titles = (
        "model",
        "layout",
        "B/token",
        "fixed MB (+ open groups at most)",
        f"held, handed over at {context:,}, MB",
        "read a step, MB",
        "bytes divide",
        "a prefix ends",
    )
    for title in titles:
        numeric = title.startswith(("B/", "fixed", "held", "read"))
        out.add_column(title, justify="right" if numeric else "left", no_wrap=title == "model")
    for m in MODELS:
        megabytes = [float(line.value) / 1e6 for line in (m.per_request, m.held(context), m.reads(context))]
        divide = "; ".join(dict.fromkeys(part.split for part in m.parts))
        end = "; ".join(dict.fromkeys(part.prefix for part in m.parts if part.prefix != ANYWHERE)) or ANYWHERE
        name = f"{m.name} ({', '.join(m.assumed)} assumed)" if m.assumed else m.name
        cells = [f"{float(m.per_token.value):,.2f}".removesuffix(".00"), *(f"{x:,.1f}" for x in megabytes)]
        if m.open_groups.value:
            cells[1] += f" + {float(m.open_groups.value) / 1e6:.2g}"
        out.add_row(name, m.layout, *cells, divide, end)
    console.print(out)
