"""The command `minidsv41`: each subcommand is a thin function over package code, imported when it is called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from minidsv41 import __version__

app = typer.Typer(
    help="DeepSeek-V4.1-Flash, small enough to read and exact enough to trust.",
    no_args_is_help=True,
    add_completion=False,
)


def run() -> None:
    """The entry point. An error that this package raises about its input is one line, not a traceback."""
    try:
        app()
    except Exception as error:
        if not type(error).__module__.startswith("minidsv41."):
            raise
        sys.exit(f"error: {error}")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"minidsv41 {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def doctor(
    port: Annotated[int, typer.Option(envvar="PORT", help="The port that `make lab` would use.")] = 8888,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check this machine and say how to mend each finding. Exit status 1 if something must be mended."""
    from minidsv41.course import doctor

    found = doctor.findings(port=port)
    typer.echo(doctor.as_json(found) if json else doctor.as_text(found))
    raise typer.Exit(doctor.exit_status(found))


@app.command()
def ledger(
    preset: Annotated[str, typer.Option(help="toy, small, geometry or flash.")] = "flash",
    config: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="A config.json instead.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print values, units and formulas as JSON.")] = False,
) -> None:
    """Print a model's books: bytes, parameters, checkpoint, FLOPs and memory traffic, with their formulas."""
    from json import dumps

    from rich.console import Console

    from minidsv41.config import ModelConfig
    from minidsv41.ledger.books import as_json
    from minidsv41.ledger.show import print_books

    c = ModelConfig.from_json(config) if config else ModelConfig.preset(preset)
    if json:
        typer.echo(dumps(as_json(c), indent=1))
    else:
        print_books(c, Console())


@app.command()
def parity(
    folder: Annotated[Path, typer.Argument(help="A folder laid out like tests/golden/v41_tiny.")],
    json: Annotated[bool, typer.Option("--json", help="Print every comparison as JSON.")] = False,
) -> None:
    """Compare the model with reference traces, stage by stage. Exit status 1 if any stage differs."""
    from rich.console import Console

    from minidsv41 import parity

    status = Console(stderr=True)
    with status.status("loading") as progress:
        rows = parity.parity(folder, progress=progress.update)
    if json:
        typer.echo(parity.to_json(rows))
    else:
        parity.show(rows, Console(width=None if status.is_terminal else 120))
    raise typer.Exit(any(r.verdict == "FAIL" for r in rows))


@app.command()
def tour(
    prompt: Annotated[str | None, typer.Option(help="Your own prompt instead of Hamlet's.")] = None,
    seed: Annotated[int, typer.Option(help="Of the continuation.")] = 0,
) -> None:
    """Follow one prompt through every mechanism, let it go on, and print what is left of it. Half a minute."""
    from rich.console import Console

    from minidsv41.course import tour

    tour.tour(Console(), prompt=prompt, seed=seed)


lesson = typer.Typer(help="The learner's copies of the lessons.", no_args_is_help=True)
app.add_typer(lesson, name="lesson")
Into = Annotated[Path, typer.Option("--into", help="The folder of the copies.")]


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
