"""The claims as a table on a console and as a page."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from minidsv41.course.claims import CLAIMS, Claim, Found

HEAD = """# What the articles say, checked

Two background articles explain DeepSeek-V4.1-Flash (1) and how attention became a matter of state (2). Each row is one
of their statements in our words, the verdict, what is so instead, and the value that `minidsv41 claims` computed when
it wrote this page. *Sourced* and *no source found* are verdicts of their own: nothing here computes them.

| | the article says | verdict | instead | computed | proven at length in |
|---|---|---|---|---|---|
"""


def checked() -> Iterator[tuple[Claim, Found | None]]:
    """Every claim with what its computation finds, None where there is none."""
    for claim in tqdm(CLAIMS, desc="claims", disable=None):
        yield claim, claim.compute() if claim.compute else None


def mark(claim: Claim, found: Found | None) -> str:
    return claim.verdict if found is None or found.holds else f"NOT BORNE OUT ({claim.verdict})"


def show(results: list[tuple[Claim, Found | None]], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, style in (("", ""), ("the article says", ""), ("verdict", "bold"), ("instead", ""), ("computed", "dim")):
        table.add_column(name, style=style, no_wrap=not name)
    for claim, found in results:
        table.add_row(
            claim.number, claim.said, mark(claim, found), claim.instead, found.value if found else claim.proof
        )
    console.print(table)


def page(results: list[tuple[Claim, Found | None]]) -> str:
    """The same as Markdown."""
    lines = [
        f"| {c.number} | {c.said} | {mark(c, f)} | {c.instead} | {f.value if f else ''} | {c.proof} |"
        for c, f in results
    ]
    return HEAD + "\n".join(lines) + "\n"
