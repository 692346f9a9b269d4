"""`minidsv41 plan`: a machine for a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def plan(
    model: Annotated[str, typer.Option(help="flash, geometry, small, toy; or v4-flash, v3.2, 67b.")] = "flash",
    gpu: Annotated[str, typer.Option(help="H20, H100, H200, 'H200 measured' or laptop.")] = "H200",
    gpus: Annotated[int, typer.Option(help="How many of them.")] = 8,
    record: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A record of `bench machine` instead of --gpu.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens of a session (default: 131072, or as many as the model reads).")
    ] = None,
    sessions: Annotated[int, typer.Option(help="Sessions that are wanted at once.")] = 1000,
    hit: Annotated[int, typer.Option(help="Tokens of a prompt whose entries are found.")] = 0,
    tables: Annotated[str, typer.Option(help="Where Engram's rows lie: host or gpu.")] = "host",
    free: Annotated[int, typer.Option(help="Percent of the memory that is left to activations.")] = 10,
    price: Annotated[float, typer.Option(help="Of a TB on disk for a month, in any currency: your assumption.")] = 20.0,
    json: Annotated[bool, typer.Option("--json", help="Print values, units and formulas as JSON.")] = False,
) -> None:
    """How many sessions fit, what binds a step, how long a prompt takes, what retention costs. Times are floors."""
    from fractions import Fraction
    from json import dumps
    from math import isfinite

    from rich.console import Console

    from minidsv41.ledger import plan as planner
    from minidsv41.ledger.books import entry
    from minidsv41.ledger.findings import findings
    from minidsv41.ledger.show import table

    if not isfinite(price):
        raise planner.PlanError(f"price = {price}: a finite number, 0 or more")
    machine = planner.machine_recorded(record) if record else planner.machine_named(gpu)
    wanted = planner.planned(model)
    order = planner.Order(
        model=wanted,
        machine=machine,
        gpus=gpus,
        context=min(131_072, wanted.longest) if context is None else context,
        sessions=sessions,
        hit=hit,
        tables=tables,
        free=free,
        price=Fraction(price),
    )
    found = planner.plan(order)
    if json:
        lines = {book.title: {line.name: entry(line) for line in book.lines} for book in planner.books(found)}
        typer.echo(dumps({"findings": findings(found), "lines": lines}, indent=1))
        return
    console = Console()
    for book in planner.books(found):
        console.print(table(book, formulas=console.width >= 110))
    for text in findings(found):
        console.print(text, highlight=False)
    console.print(f"{machine.name}: {machine.basis}, {machine.source}", style="dim", highlight=False)
