"""The command `minidsv41`: each subcommand is a thin function over package code, imported when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from minidsv41 import __version__

app = typer.Typer(
    help="DeepSeek-V4.1-Flash, small enough to read and exact enough to trust.",
    no_args_is_help=True,
    add_completion=False,
)


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
