"""The command `minidsv41`: each subcommand is a thin function over package code, imported when it is called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from minidsv41 import __version__
from minidsv41.cli.allowed import require_device, require_versions
from minidsv41.cli.bench import bench
from minidsv41.cli.kernels import bench_kernels, bench_model, bench_train_gpu, kernels
from minidsv41.cli.lesson import lesson
from minidsv41.cli.plan import plan
from minidsv41.cli.study import study

app = typer.Typer(
    help="DeepSeek-V4.1-Flash, small enough to read and exact enough to trust.",
    no_args_is_help=True,
    add_completion=False,
)
app.add_typer(bench, name="bench")
app.add_typer(lesson, name="lesson")
bench.command("kernels")(bench_kernels)
bench.command("model")(bench_model)
bench.command("train-gpu")(bench_train_gpu)
app.command()(kernels)
app.command()(study)
app.command()(plan)


def run() -> None:
    """The entry point. An error about the input, or about a file, is one line, not a traceback."""
    try:
        app()
    except Exception as error:
        if isinstance(error, OSError) and error.filename and error.strerror:
            sys.exit(f"error: {error.filename}: {error.strerror}")
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
    port: Annotated[
        int, typer.Option(min=0, max=65535, envvar="PORT", help="The port that `make lab` would use.")
    ] = 8888,
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
    models: Annotated[bool, typer.Option("--models", help="Instead, eleven deployed models side by side.")] = False,
) -> None:
    """Print a model's books: bytes, parameters, checkpoint, FLOPs and memory traffic; formulas from 110 columns on."""
    from json import dumps

    from rich.console import Console

    from minidsv41.config import ModelConfig
    from minidsv41.ledger.books import as_json
    from minidsv41.ledger.show import print_books, print_models

    if models:
        return print_models(Console() if Console().is_terminal else Console(width=200))
    c = ModelConfig.from_json(config) if config else ModelConfig.preset(preset)
    if json:
        typer.echo(dumps(as_json(c), indent=1))
    else:
        print_books(c, Console())


@app.command()
def parity(
    folder: Annotated[Path, typer.Argument(help="A folder laid out like tests/golden/v41_tiny.")],
    json: Annotated[bool, typer.Option("--json", help="Print every comparison as JSON.")] = False,
    device: Annotated[str, typer.Option(help="cpu, or cuda, where float32 runs on the kernels.")] = "cpu",
    versions: Annotated[str, typer.Option(help="Of the operations in float32: auto, plain or kernels.")] = "auto",
    case: Annotated[str, typer.Option(help="Only cases whose name contains this, such as decode or noqat.")] = "",
) -> None:
    """Compare the model with reference traces, stage by stage. Exit status 1 if any stage differs."""
    from rich.console import Console

    from minidsv41 import ops, parity

    require_device(device)
    require_versions(versions)
    status = Console(stderr=True)
    with status.status("loading") as progress, ops.versions() as seen:
        rows = parity.parity(folder, device=device, versions=versions, only=case, progress=progress.update)
    if json:
        typer.echo(parity.to_json(rows))
    else:
        console = Console(width=None if status.is_terminal else 120)
        parity.show(rows, console)
        console.print(parity.ran(seen), soft_wrap=True)
    raise typer.Exit(any(r.verdict == "FAIL" for r in rows))


@app.command()
def claims(
    page: Annotated[Path | None, typer.Option(help="Write the table to this file, as Markdown.")] = None,
) -> None:
    """Check what two background articles say about the model. Exit status 1 if a verdict is not borne out."""
    from rich.console import Console

    from minidsv41.course.claims import page as pages

    if page and not page.parent.is_dir():
        raise typer.BadParameter(f"{page}: there is no folder {page.parent}", param_hint="--page")
    results = list(pages.checked())
    if page:
        page.write_text(pages.page(results), encoding="utf-8")
    pages.show(results, Console() if Console().is_terminal else Console(width=160))
    raise typer.Exit(not all(found is None or found.holds for _, found in results))


@app.command()
def tour(
    prompt: Annotated[str | None, typer.Option(help="Your own prompt instead of Hamlet's.")] = None,
    seed: Annotated[int, typer.Option(help="Of the continuation.")] = 0,
) -> None:
    """Follow one prompt through every mechanism, let it go on, and print what is left of it. Half a minute."""
    from rich.console import Console

    from minidsv41.course import tour

    tour.tour(Console(), prompt=prompt, seed=seed)


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue.")],
    checkpoint: Annotated[Path | None, typer.Option(help="A checkpoint folder (default: the shipped toy).")] = None,
    max_new: Annotated[int, typer.Option(help="Most tokens to add.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.7,
    top_p: Annotated[float, typer.Option(help="Sample from the likeliest tokens that hold this much.")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="The same seed gives the same text.")] = 0,
    speculative: Annotated[
        bool, typer.Option("--speculative", help="Draft with DSpark, several tokens a step.")
    ] = False,
) -> None:
    """Continue a text, in English, Chinese or Python."""
    import torch

    from minidsv41 import checkpoint as checkpoints
    from minidsv41 import paths
    from minidsv41.serve import speak
    from minidsv41.tokens import load_tokenizer

    folder = checkpoint or paths.checkpoint_dir()
    own = folder / "tokenizer.json"
    model, tokenizer = checkpoints.load(folder), load_tokenizer(own if own.exists() else None)
    generator = torch.Generator().manual_seed(seed)
    settings = dict(max_new=max_new, temperature=temperature, top_p=top_p, speculative=speculative)
    pieces = speak(model, tokenizer, prompt, generator=generator, **settings)
    typer.echo(prompt, nl=False)
    try:
        for piece in pieces:
            typer.echo(piece, nl=False)
    except KeyboardInterrupt:
        pass
    typer.echo()


@app.command("serve-demo")
def serve_demo(
    agents: Annotated[int, typer.Option(min=1, max=16, help="How many share the prefix.")] = 4,
    new: Annotated[int, typer.Option(min=1, help="Tokens of a turn.")] = 32,
    store: Annotated[Path | None, typer.Option(help="A folder for the store, which serves the next demo too.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="A checkpoint folder (default: the shipped toy).")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="The same seed gives the same text.")] = 0,
) -> None:
    """Watch agents share a prefix: hits from disk and memory, replay, drafts, and what is stored. Half a minute."""
    from rich.console import Console

    from minidsv41 import checkpoint as checkpoints
    from minidsv41 import paths
    from minidsv41.serve import demo
    from minidsv41.tokens import load_tokenizer

    folder = checkpoint or paths.checkpoint_dir()
    own = folder / "tokenizer.json"
    model, tokenizer = checkpoints.load(folder), load_tokenizer(own if own.exists() else None)
    console = Console() if Console().is_terminal else Console(width=120)
    demo.demo(console, model, tokenizer, agents=agents, new=new, folder=store, seed=seed)


@app.command()
def train(
    preset: Annotated[str, typer.Option(help="toy or small.")] = "toy",
    folder: Annotated[
        Path | None, typer.Option("--run", help="The folder of the run; runs/PRESET if not given.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in that folder.")] = False,
    device: Annotated[str, typer.Option(help="cpu, or cuda: bfloat16 and the kernels, states in float32.")] = "cpu",
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting, such as lr=0.01; may be repeated.")
    ] = None,
) -> None:
    """Train the backbone, then DSpark, and write the checkpoint to RUN/checkpoint. Ten minutes for `toy`."""
    from minidsv41.train.data import corpus
    from minidsv41.train.loop import ON_GPU, TrainConfig, Trainer, fresh
    from minidsv41.train.product import deliver
    from minidsv41.train.runs import Run

    require_device(device)
    config = TrainConfig().changed([*(ON_GPU if device == "cuda" else []), *(assignments or [])])
    trainer = Trainer(config, fresh(preset, config.seed), corpus(), Run(folder or Path("runs") / preset))
    trainer.train(resume=resume)
    record = deliver(trainer, trainer.run.folder / "checkpoint")
    bits = record["validation_bits_per_byte"]["total"]
    typer.echo(f"{trainer.run.folder / 'checkpoint'}: {bits:.3f} bits per byte, {record['minutes']:.1f} minutes")
