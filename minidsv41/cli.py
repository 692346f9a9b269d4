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
) -> None:
    """Print a model's books: bytes, parameters, checkpoint, FLOPs and memory traffic; formulas from 110 columns on."""
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
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting, such as lr=0.01; may be repeated.")
    ] = None,
) -> None:
    """Train the backbone, then DSpark, and write the checkpoint to RUN/checkpoint. Ten minutes for `toy`."""
    from minidsv41.train.data import corpus
    from minidsv41.train.loop import TrainConfig, Trainer, fresh
    from minidsv41.train.product import deliver
    from minidsv41.train.runs import Run

    config = TrainConfig().changed(assignments or [])
    trainer = Trainer(config, fresh(preset, config.seed), corpus(), Run(folder or Path("runs") / preset))
    trainer.train(resume=resume)
    record = deliver(trainer, trainer.run.folder / "checkpoint")
    bits = record["validation_bits_per_byte"]["total"]
    typer.echo(f"{trainer.run.folder / 'checkpoint'}: {bits:.3f} bits per byte, {record['minutes']:.1f} minutes")


bench = typer.Typer(help="Measure, side by side with a plain Transformer.", no_args_is_help=True)
app.add_typer(bench, name="bench")


@bench.command("train")
def bench_train(
    preset: Annotated[str, typer.Option(help="toy or small.")] = "toy",
    minutes: Annotated[float, typer.Option(min=0.05, help="For each of the two.")] = 4.0,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    into: Annotated[Path | None, typer.Option(help="The folder of the record; data/records if not given.")] = None,
) -> None:
    """Train this model and a plain Transformer of equal active parameters on the same text for the same time."""
    from minidsv41.paths import records_dir
    from minidsv41.train import bench, bench_train

    config = bench_train.BenchConfig(preset=preset, minutes=minutes, threads=threads)
    results = {}
    for name, result in bench.side_by_side(bench_train.train, config):
        results[name] = result
        bits, speed = result["curve"][-1]["bits_per_byte"], result["tokens_per_second"]
        typer.echo(f"{name:10} {speed:8.0f} tokens/s  {bits:.3f} bits per byte  {result['peak_memory_mb']} MB")
    typer.echo(bench.write(bench.record("train", config, results), into or records_dir()))


@bench.command("decode")
def bench_decode(
    preset: Annotated[str, typer.Option(help="toy or small.")] = "toy",
    lengths: Annotated[
        list[int] | None, typer.Option("--context", min=1, help="Tokens before decoding; may repeat.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    into: Annotated[Path | None, typer.Option(help="The folder of the record; data/records if not given.")] = None,
) -> None:
    """Prefill and decode with this model and a plain Transformer of equal active parameters: time and bytes."""
    from minidsv41.paths import records_dir
    from minidsv41.train import bench, bench_decode

    chosen = {"lengths": tuple(lengths)} if lengths else {}
    config = bench_decode.DecodeConfig(preset=preset, threads=threads, **chosen)
    results = dict(bench.side_by_side(bench_decode.decode, config))
    for name, rows in results.items():
        for row in rows:
            speed = f"{row['prefill_tokens_per_second']:8.0f} prefill {row['decode_tokens_per_second']:8.1f} decode"
            typer.echo(f"{name:10} {row['context']:6} tokens {speed} tokens/s {row['cache_bytes']:10} B of cache")
    typer.echo(bench.write(bench.record("decode", config, results), into or records_dir()))


@bench.command("speculative")
def bench_speculative(
    prompts: Annotated[int, typer.Option(min=1, help="Of each kind of text.")] = 8,
    new: Annotated[int, typer.Option(min=2, help="Tokens to add to each.")] = 128,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    checkpoint: Annotated[Path | None, typer.Option(help="A checkpoint folder (default: the shipped toy).")] = None,
    into: Annotated[Path | None, typer.Option(help="The folder of the record; data/records if not given.")] = None,
) -> None:
    """Decode with drafts and without: accepted tokens a step and speed on plays, poems and code; the schedule."""
    from minidsv41 import checkpoint as checkpoints
    from minidsv41.paths import checkpoint_dir, records_dir
    from minidsv41.train import bench, bench_speculative
    from minidsv41.train.data import corpus

    config = bench_speculative.SpeculativeConfig(prompts=prompts, new=new, threads=threads)
    results = bench_speculative.measure(checkpoints.load(checkpoint or checkpoint_dir()), corpus(), config)
    for row in results["text"]:
        speed = f"{row['plain']:8.1f} plain {row['speculative']:8.1f} speculative tokens/s"
        typer.echo(f"{row['kind']:8} T = {row['temperature']} {row['tokens_per_step']:5.2f} tokens/step {speed}")
    typer.echo(bench.write(bench.record("speculative", config, results), into or records_dir()))


@bench.command("lifecycle")
def bench_lifecycle(
    prefix: Annotated[int, typer.Option(min=64, help="Tokens before a turn.")] = 10_000,
    lengths: Annotated[list[int] | None, typer.Option("--context", help="Of cold prompts; may repeat.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Served at once.")] = 8,
    new: Annotated[int, typer.Option(min=2, help="Tokens that each of them gets.")] = 64,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    checkpoint: Annotated[Path | None, typer.Option(help="A checkpoint folder (default: the shipped toy).")] = None,
    into: Annotated[Path | None, typer.Option(help="The folder of the record; data/records if not given.")] = None,
) -> None:
    """Time what a lost window costs, a cut prompt saves, a stored prefix saves, and drafts gain."""
    import torch

    from minidsv41 import checkpoint as checkpoints
    from minidsv41.paths import checkpoint_dir, records_dir
    from minidsv41.train import bench, bench_lifecycle
    from minidsv41.train.data import corpus

    chosen = {"lengths": tuple(lengths)} if lengths else {}
    sizes = dict(prefix=prefix, requests=requests, new=new, repeats=repeats, threads=threads)
    config = bench_lifecycle.LifecycleConfig(**sizes, **chosen)
    model = checkpoints.load(checkpoint or checkpoint_dir())
    results = bench_lifecycle.measure(model, torch.as_tensor(corpus().train.tokens).long(), config)
    for line in bench_lifecycle.lines(results):
        typer.echo(line)
    typer.echo(bench.write(bench.record("lifecycle", config, results), into or records_dir()))


@bench.command("flips")
def bench_flips(
    prompts: Annotated[int, typer.Option(min=1)] = 100,
    length: Annotated[int, typer.Option(min=2, help="Tokens of a prompt.")] = 200,
    seed: Annotated[int, typer.Option()] = 0,
    checkpoint: Annotated[Path | None, typer.Option(help="A checkpoint folder (default: the shipped toy).")] = None,
    into: Annotated[Path | None, typer.Option(help="The folder of the record; data/records if not given.")] = None,
) -> None:
    """Count prompts that float32 answers differently in pieces, or among others, with rounding and without."""
    import torch
    from tqdm import tqdm

    from minidsv41 import checkpoint as checkpoints
    from minidsv41.paths import checkpoint_dir, records_dir
    from minidsv41.serve import flips
    from minidsv41.train import bench, machine
    from minidsv41.train.data import corpus

    tokens = torch.cat([torch.as_tensor(s.tokens) for s in corpus().validation.values()]).long()
    results = {}
    for qat in (True, False):
        name = "with fake quantisation" if qat else "without"
        model, results[name] = checkpoints.load(checkpoint or checkpoint_dir(), qat=qat), {}
        for way, study in (("in pieces", flips.study), ("in a crowd", flips.study_crowd)):
            one_by_one = study(model, tokens, prompts=prompts, length=length, seed=seed)
            found = list(tqdm(one_by_one, total=prompts, desc=f"{name}, {way}", disable=None))
            flipped = sum(d.flipped for d in found)
            largest = max(d.error for d in found)
            results[name][way] = {"prompts": prompts, "flipped": flipped, "largest_error": largest}
            typer.echo(f"{name:24} {way} {flipped} of {prompts} beyond {flips.TOLERANCE} of scale")
    settings = {"length": length, "seed": seed, "tolerance": flips.TOLERANCE}
    content = {"kind": "flips", "settings": settings, "machine": machine.describe(threads=torch.get_num_threads())}
    typer.echo(bench.write(content | {"results": results}, into or records_dir()))


study = typer.Typer(help="Measure what a shortcut of the design costs and changes.", no_args_is_help=True)
app.add_typer(study, name="study")


@study.command("replay")
def study_replay(
    checkpoint: Annotated[
        list[Path] | None, typer.Option(help="A checkpoint folder (default: the shipped toy); may be repeated.")
    ] = None,
    prompts: Annotated[int, typer.Option(min=1)] = 40,
    hit: Annotated[int, typer.Option(min=1, help="Tokens of a prompt that came before.")] = 300,
    turn: Annotated[int, typer.Option(min=1, help="New tokens of a prompt.")] = 50,
    following: Annotated[int, typer.Option(min=2, help="True tokens whose predictions are compared.")] = 32,
    seed: Annotated[int, typer.Option()] = 0,
    into: Annotated[Path | None, typer.Option(help="The folder of the record; data/records if not given.")] = None,
) -> None:
    """Take in prompts cold, with exact and with bounded replay: row-layers, and how far the predictions move."""
    import torch

    from minidsv41.paths import checkpoint_dir, records_dir
    from minidsv41.train import bench, study_replay

    threads = torch.get_num_threads()
    sizes = dict(prompts=prompts, hit=hit, turn=turn, following=following, seed=seed)
    config, results = study_replay.ReplayStudy(**sizes, threads=threads), []
    for folder in checkpoint or [checkpoint_dir()]:
        results.append(found := study_replay.run(folder, config))
        typer.echo(f"{folder}: {found['trained'] or 'no record of its training'}")
        for way, row in found["ways"].items():
            moved = f"KL {row['kl']:.1e}  top-1 {row['top1_agreement']:6.1%}  perplexity {row['perplexity']:.2f}"
            typer.echo(f"  {way:28} {row['row_layers']:7.0f} row-layers  {moved}")
    typer.echo(bench.write(bench.record("replay", config, results), into or records_dir()))


lesson = typer.Typer(help="The learner's copies of the lessons.", no_args_is_help=True)
app.add_typer(lesson, name="lesson")
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
