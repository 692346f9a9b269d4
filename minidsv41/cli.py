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
