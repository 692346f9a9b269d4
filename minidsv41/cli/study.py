"""`minidsv41 study NAME`: the comparisons that lessons draw."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LIST = "list"


def study(
    names: Annotated[list[str], typer.Argument(help="Names of studies; `list` says what each compares.")],
    seeds: Annotated[int, typer.Option(min=1, help="Networks of each variant.")] = 3,
    side_by_side: Annotated[int, typer.Option(min=1, help="Processes at once, one thread each.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="Two steps each: does everything run?")] = False,
    runs: Annotated[Path, typer.Option(help="Where trained networks are kept, so that none is trained twice.")] = Path(
        "runs/study"
    ),
    into: Annotated[Path | None, typer.Option(help="The folder of the records; data/records if not given.")] = None,
) -> None:
    """Train the networks of a comparison from several seeds, measure them, and write data/records/study_NAME.json.

    What was finished before is not repeated.
    """
    import torch

    from minidsv41.paths import records_dir
    from minidsv41.study.base import QUICK, Sizes
    from minidsv41.study.catalogue import STUDIES
    from minidsv41.study.folder import Folder
    from minidsv41.study.runner import Runner
    from minidsv41.study.variant import StudyError

    if names == [LIST]:
        for made in STUDIES.values():
            typer.echo(f"{made.name}: {made.question}")
            for v in made.variants:
                typer.echo(f"    {v.name:14} {v.says}")
        return
    if unknown := [name for name in names if name not in STUDIES]:
        raise StudyError(f"{unknown[0]}: no study of that name; there are {', '.join(STUDIES)}")
    if device not in ("cpu", "cuda") or device == "cuda" and not torch.cuda.is_available():
        raise StudyError(f"device = {device}: cpu, or cuda on a machine that has a GPU")
    sizes = Sizes(device=device, **(QUICK if quick else {}))
    chosen = [STUDIES[name] for name in names]
    for line in Runner(chosen, range(seeds), Folder(runs, sizes), into or records_dir()).run(side_by_side):
        typer.echo(line)
