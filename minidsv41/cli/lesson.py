"""`minidsv41 lesson …`: the learner's copies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

lesson = typer.Typer(help="The learner's copies of the lessons.", no_args_is_help=True)
Into = Annotated[Path, typer.Option("--into", file_okay=False, help="The folder of the copies.")]


@lesson.command()
def fill(into: Into = Path("workbook")) -> None:
    """Copy every lesson that has no copy yet, outputs cleared; an edited copy is never overwritten."""
    from minidsv41.course import workbook

    for name, outcome in workbook.fill(workbook=into).items():
        typer.echo(f"{outcome:8}{into / name}")


@lesson.command()
def reset(
    number: Annotated[str, typer.Argument(help="The lesson's number, such as 00 or 05b.")],
    into: Into = Path("workbook"),
) -> None:
    """Renew one copy and keep the old one beside it."""
    from minidsv41.course import workbook

    copy, kept = workbook.reset(number, workbook=into)
    typer.echo(f"renewed {copy}" + (f"; yours is now {kept}" if kept else ""))
