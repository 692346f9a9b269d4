"""`minidsv41 bench …`: measurements that leave a record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minidsv41.cli.allowed import require_device

bench = typer.Typer(help="Measure, side by side with a plain Transformer.", no_args_is_help=True)


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


@bench.command("verify")
def bench_verify(
    requests: Annotated[list[int] | None, typer.Option(min=1, help="Requests in a step; may repeat.")] = None,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    checkpoint: Annotated[Path | None, typer.Option(help="A checkpoint folder (default: the shipped toy).")] = None,
    into: Annotated[Path | None, typer.Option(help="The folder of the record; data/records if not given.")] = None,
) -> None:
    """Time drafting, and verifying 0 to a block of drafts, by the number of requests; on one thread."""
    import torch

    from minidsv41 import checkpoint as checkpoints
    from minidsv41.paths import checkpoint_dir, records_dir
    from minidsv41.train import bench, bench_verify
    from minidsv41.train.data import corpus

    chosen = {"loads": tuple(requests)} if requests else {}
    config = bench_verify.VerifyConfig(repeats=repeats, **chosen)
    model = checkpoints.load(checkpoint or checkpoint_dir())
    results = bench_verify.measure(model, torch.as_tensor(corpus().train.tokens).long(), config)
    for line in bench_verify.lines(results):
        typer.echo(line)
    typer.echo(bench.write(bench.record("verify", config, results), into or records_dir()))


@bench.command("absorption")
def bench_absorption(
    prefix: Annotated[int, typer.Option(min=1, help="Cached tokens.")] = 4096,
    queries: Annotated[list[int] | None, typer.Option(min=1, help="New tokens; may repeat, ascending.")] = None,
    heads: Annotated[int, typer.Option(min=1)] = 4,
    repeats: Annotated[int, typer.Option(min=1)] = 7,
    device: Annotated[str, typer.Option(help="cpu (in float32) or cuda (in bfloat16).")] = "cpu",
    into: Annotated[Path | None, typer.Option(help="The folder of the record; data/records if not given.")] = None,
) -> None:
    """Time MLA with expanded rows and with absorbed matrices, by the number of new queries; on one thread or a GPU."""
    from minidsv41.paths import records_dir
    from minidsv41.train import bench, bench_absorption

    require_device(device)
    chosen = {"queries": tuple(queries)} if queries else {}
    config = bench_absorption.AbsorptionConfig(prefix=prefix, heads=heads, repeats=repeats, device=device, **chosen)
    results = bench_absorption.measure(config)
    for line in bench_absorption.lines(results):
        typer.echo(line)
    kind = "absorption" if device == "cpu" else "absorption_gpu"
    typer.echo(bench.write(bench.record(kind, config, results), into or records_dir()))


@bench.command("machine")
def bench_machine(
    rounds: Annotated[int, typer.Option(min=1, help="The best of them counts.")] = 15,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    into: Annotated[Path | None, typer.Option(help="The folder of the record; data/records if not given.")] = None,
) -> None:
    """Measure what this machine reaches at best: bytes copied and float32 FLOP in a second."""
    from minidsv41.paths import records_dir
    from minidsv41.train import bench, bench_machine

    config = bench_machine.MachineConfig(rounds=rounds, threads=threads)
    results = bench_machine.measure(config)
    for line in bench_machine.lines(results):
        typer.echo(line)
    typer.echo(bench.write(bench.record("machine", config, results), into or records_dir()))


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


@bench.command("prefetch")
def bench_prefetch(
    tokens: Annotated[int, typer.Option(min=1, help="Of the prompt.")] = 1024,
    repeats: Annotated[int, typer.Option(min=1)] = 7,
    checkpoint: Annotated[Path | None, typer.Option(help="A checkpoint folder (default: the shipped toy).")] = None,
    into: Annotated[Path | None, typer.Option(help="The folder of the record; data/records if not given.")] = None,
) -> None:
    """Take in a prompt while Engram's rows come from a store that is made slow: how long does the network wait?"""
    import torch

    from minidsv41 import checkpoint as checkpoints
    from minidsv41.paths import checkpoint_dir, records_dir
    from minidsv41.train import bench, bench_prefetch
    from minidsv41.train.data import corpus

    config = bench_prefetch.PrefetchConfig(tokens=tokens, repeats=repeats)
    model = checkpoints.load(checkpoint or checkpoint_dir())
    results = bench_prefetch.measure(model, torch.as_tensor(corpus().train.tokens).long(), config)
    for line in bench_prefetch.lines(results):
        typer.echo(line)
    typer.echo(bench.write(bench.record("prefetch", config, results), into or records_dir()))


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


@bench.command("replay")
def bench_replay(
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
    from minidsv41.train import bench, bench_replay

    threads = torch.get_num_threads()
    sizes = dict(prompts=prompts, hit=hit, turn=turn, following=following, seed=seed)
    config, results = bench_replay.ReplayConfig(**sizes, threads=threads), []
    for folder in checkpoint or [checkpoint_dir()]:
        results.append(found := bench_replay.run(folder, config))
        typer.echo(f"{folder}: {found['trained'] or 'no record of its training'}")
        for way, row in found["ways"].items():
            moved = f"KL {row['kl']:.1e}  top-1 {row['top1_agreement']:6.1%}  perplexity {row['perplexity']:.2f}"
            typer.echo(f"  {way:28} {row['row_layers']:7.0f} row-layers  {moved}")
    typer.echo(bench.write(bench.record("replay", config, results), into or records_dir()))
