"""The course in half a minute, without a browser: one prompt through every mechanism, a continuation, the books."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from rich import box
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer
from torch import Tensor

from minidsv41 import paths
from minidsv41.cache import Cache
from minidsv41.checkpoint import load
from minidsv41.config import ModelConfig
from minidsv41.ledger import bytes as books
from minidsv41.model import Model
from minidsv41.ops import Batch
from minidsv41.serve import generate, prefill

PROMPT_TOKENS, NEW_TOKENS = 160, 80
WIDE = 110  # columns; a narrower console shows no stages and shapes


class TourError(RuntimeError):
    """Why the tour cannot start, and what to do."""


@dataclass(frozen=True)
class Station:
    """One mechanism: the tensor that shows it and what it did to this prompt."""

    name: str
    stage: str
    tensor: Tensor
    said: str


def tour(console: Console, *, folder: Path | None = None, prompt: str | None = None, seed: int = 0) -> None:
    """Print the whole tour. Raises TourError without a checkpoint or for an empty prompt."""
    folder = folder or paths.checkpoint_dir("toy")
    if not (folder / "config.json").is_file():
        raise TourError(f"{folder}: no checkpoint here. Train one with `minidsv41 train --preset toy`")
    started = time.perf_counter()
    tokenizer = Tokenizer.from_file(str(paths.tokenizer_path()))
    model = load(folder)
    ids = prompt_ids(tokenizer, prompt)
    c = model.config
    size = sum(p.numel() for p in model.parameters()) / 1e6
    console.rule(f"{folder.name}: {size:.1f} million parameters, {c.num_hidden_layers} layers, {len(ids)} tokens")
    console.print(tokenizer.decode(ids.tolist()), style="dim", highlight=False)
    console.print(mechanisms(model, tokenizer, ids, wide=console.width >= WIDE))
    console.rule("it goes on")
    talk(console, model, tokenizer, ids, seed)
    console.rule("what is left")
    console.print(left_over(model, ids))
    flash = ModelConfig.preset("flash")
    per_token, windows = books.kv_bytes_per_token(flash), books.swa_bytes_per_sequence(flash)
    console.print(
        f"At the released size: {int(per_token):,} {per_token.unit}, kept for days; {int(windows):,} {windows.unit}, "
        f"each row of it dead {flash.sliding_window} tokens later. All books: minidsv41 ledger --preset flash",
        highlight=False,
    )
    console.print(f"{time.perf_counter() - started:.0f} s. Next: make lab, and open 00_tour", style="dim")


def prompt_ids(tokenizer: Tokenizer, prompt: str | None) -> Tensor:
    """[T] ids of the prompt, or of the beginning of a speech in the shipped plays."""
    if prompt is not None:
        ids = tokenizer.encode(prompt).ids
    else:
        hamlet = (paths.text_dir() / "plays" / "hamlet.txt").read_text(encoding="utf-8")
        ids = tokenizer.encode(hamlet[hamlet.index("To be, or not to be") :][:2000]).ids[:PROMPT_TOKENS]
    if len(ids) < 2:
        raise TourError(f"prompt = {prompt!r}: at least two tokens are needed")
    return torch.tensor(ids)


def mechanisms(model: Model, tokenizer: Tokenizer, ids: Tensor, *, wide: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("mechanism", style="bold", no_wrap=True)
    if wide:
        table.add_column("stage", style="cyan", no_wrap=True)
        table.add_column("shape", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("what it did here", ratio=1)
    for s in stations(model, tokenizer, ids):
        shape = " x ".join(map(str, s.tensor.shape))
        table.add_row(s.name, *([s.stage, shape] if wide else []), f"{s.tensor.nbytes:,}", s.said)
    return table


def stations(model: Model, tokenizer: Tokenizer, ids: Tensor) -> Iterator[Station]:
    """Every mechanism in the order in which the prompt meets it, from one trace."""
    c, t = model.config, model.trace(ids)

    def at(name: str, stage: str, said: str) -> Station:
        return Station(name, stage, t[stage], said)

    first, last = c.kv_source_layer_ids[0], c.candidate_source_layer_id
    again = next((i for i in range(last, c.num_hidden_layers) if c.mode(i) == "reindex"), None)
    gates = t[f"L{c.engram_layer_ids[0]}.engram.gate"]
    mix = t["L0.ffn.pre"].mean(0)
    yield at("residual streams", "L0.stream_after_attn", f"{c.hc_mult} streams a token instead of one")
    yield at(
        "delayed mix (mHC)", "L0.ffn.pre", "mean weights " + " ".join(f"{m:.2f}" for m in mix) + ", used one later"
    )
    yield at("Engram", f"L{c.engram_layer_ids[0]}.engram.rows", f"table rows by hash; mean gate {gates.mean():.2f}")
    yield at("window", "L0.attn.win_kv", f"one row a token and layer, dead after {c.sliding_window} tokens")
    yield at(
        "compressor", f"L{first}.cmp.entry", f"{c.ratio(first)} tokens an entry, read by layers {readers(c, first)}"
    )
    yield at("index keys", f"L{first}.idx.k", f"{c.index_head_dim} wide: by them entries are found")
    yield at("selection", f"L{first}.idx.topk", chosen(t, first, c.ratio(first), len(ids)))
    yield at("encoder's output", f"L{last}.cmp.entry", f"one entry a token, read by layers {readers(c, last)}")
    pool = int(t[f"L{last}.idx.candidates"][-1].sum())
    yield at("candidate pool", f"L{last}.idx.candidates", f"{pool} of {len(ids)} entries stay candidates")
    if again is not None:
        new = set(t[f"L{again}.idx.topk"][-1].tolist()) - set(t[f"L{last}.idx.topk"][-1].tolist())
        said = f"{chosen(t, again, 1, len(ids))}, {len(new)} of them not in layer {last}'s"
        yield at("Reindex", f"L{again}.idx.topk", said)
    yield at("attention", f"L{last}.attn.heads", "window and entries in one softmax, one key for all heads")
    ids_of = t[f"L{last}.ffn.expert_ids"]
    busy = ids_of.flatten().bincount().max() / ids_of.numel()
    yield at("experts", f"L{last}.ffn.expert_ids", f"of {c.n_routed_experts}; the busiest takes {busy:.0%}")
    loss = F.cross_entropy(t["logits"][:-1].float(), ids[1:])
    word = tokenizer.decode([int(t["logits"][-1].argmax())])
    yield at("next token", "logits", f"{loss:.3f} nats a token here; now {word!r}")
    yield drafted(model, tokenizer, ids)


def readers(c: ModelConfig, owner: int) -> str:
    layers = [i for i in range(c.num_hidden_layers) if c.kv_owner(i) == owner]
    return f"{layers[0]}–{layers[-1]}"


def chosen(trace: dict[str, Tensor], layer: int, ratio: int, tokens: int) -> str:
    count = int((trace[f"L{layer}.idx.topk"][-1] >= 0).sum())
    return f"the last token reads {count} of {tokens // ratio} entries"


@torch.no_grad()
def drafted(model: Model, tokenizer: Tokenizer, ids: Tensor) -> Station:
    """What DSpark guesses after the next token, and how much of it the backbone would have said."""
    cache = Cache(model.config, dtype=model.dtype)
    state = cache.new()
    anchor = prefill(model, cache, state, ids).argmax()[None]
    keys = cache.keys([state], Batch.ragged([ids[:0]], [len(ids)]))
    where = torch.tensor([0]), torch.tensor([len(ids) - 1])
    draft = model.mtp.draft(anchor, *where, model.embed, model.head, keys)
    plain = list(generate(model, torch.cat([ids, anchor]), max_new=draft.tokens.shape[1]))
    same = torch.tensor(plain) == draft.tokens[0, : len(plain)]
    right = int(same.long().cumprod(0).sum())
    said = f"{tokenizer.decode(draft.tokens[0].tolist())!r}: the first {right} would be accepted (greedy)"
    return Station("draft (DSpark)", "mtp.draft", draft.logits[0], said)


def talk(console: Console, model: Model, tokenizer: Tokenizer, ids: Tensor, seed: int) -> None:
    """Stream a continuation; only complete characters are printed."""
    started, tokens, shown = time.perf_counter(), [], ""
    generator = torch.Generator().manual_seed(seed)
    for token in generate(model, ids, max_new=NEW_TOKENS, temperature=0.7, top_p=0.9, generator=generator):
        tokens.append(token)
        text = tokenizer.decode(tokens)
        if not text.endswith("\ufffd"):
            console.print(text[len(shown) :], end="", highlight=False, markup=False, soft_wrap=True)
            shown = text
    speed = len(tokens) / (time.perf_counter() - started)
    console.print(f"\n{len(tokens)} tokens, {speed:.0f} tokens/s", style="dim")


def left_over(model: Model, ids: Tensor) -> Table:
    """Bytes of the prompt by kind: measured in a packed cache, and by the ledger's arithmetic."""
    cache = Cache(model.config, dtype=model.dtype, cache_format="packed")
    state = cache.new()
    prefill(model, cache, state, ids)
    measured = cache.nbytes(state)
    expected = dict.fromkeys(measured, 0)
    for line in books.state_lines(model.config, len(ids)):
        kind = "entry" if "_main_" in line.name else "index" if "_index_" in line.name else None
        expected[kind or line.name.removesuffix("_bytes").replace("_", " ")] += int(line)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("kept after these tokens", style="bold")
    table.add_column("measured, B", justify="right")
    table.add_column("ledger, B", justify="right")
    for kind, size in measured.items():
        table.add_row(kind, f"{size:,}", f"{expected[kind]:,}")
    table.add_row("in all", f"{sum(measured.values()):,}", f"{sum(expected.values()):,}")
    return table
