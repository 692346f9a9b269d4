"""A cache's life, watched: agents that share a long prefix are served at once, and come back for another turn."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from tokenizers import Tokenizer
from torch import Tensor

from minidsv41 import paths
from minidsv41.cache import Cache
from minidsv41.cache.pages import identity
from minidsv41.cache.shelf import Shelf
from minidsv41.cache.store import Store
from minidsv41.model import Model
from minidsv41.serve.engine import Engine
from minidsv41.serve.request import Request
from minidsv41.serve.text import encode

ROLES = ("Ham.", "Hor.", "Oph.", "Queen.", "Pol.", "Ghost.", "Laer.", "King.")
SHOWN = 40  # characters of a request's text
SHELF = dict(ttl=300, budget=64 << 20)  # seconds, bytes


def demo(
    console: Console,
    model: Model,
    tokenizer: Tokenizer,
    *,
    agents: int = 4,
    shared: int = 6000,
    new: int = 32,
    folder: Path | None = None,
    seed: int = 0,
) -> Engine:
    """Show three acts: one prompt cold, `agents` that begin like it, and a second turn of each -> the engine, closed.

    shared: characters of the play that all begin with; new: tokens a turn; folder: a store that stays, and
    serves the next demo too.
    """
    with TemporaryDirectory() as passing:
        cache = Cache(model.config, dtype=model.dtype, cache_format="packed" if model.config.qat else "float")
        shelf = Shelf(cache, **SHELF)
        with (
            Store(folder or passing, identity(model, cache)) as store,
            Engine(model, tokenizer, cache=cache, shelf=shelf, store=store, speculative=True) as engine,
        ):
            begin = (paths.text_dir() / "plays" / "hamlet.txt").read_text(encoding="utf-8")[:shared]
            names = [ROLES[i % len(ROLES)] for i in range(agents)]
            play(console, engine, "the play's beginning", [encode(model, tokenizer, begin)], new=0)
            shelf.clear()
            prompts = [encode(model, tokenizer, f"{begin}\n\n{name}\n") for name in names]
            title = "agents that share it: entries from the store, one window run again"
            first = play(console, engine, title, prompts, new=new, seed=seed)
            prompts = [behind(r, model, tokenizer, f"\n\n{name}\n") for r, name in zip(first, names[::-1], strict=True)]
            play(console, engine, "their next turn: windows are still there", prompts, new=new, seed=seed)
    return engine


def behind(request: Request, model: Model, tokenizer: Tokenizer, text: str) -> Tensor:
    """Ids of all that a request holds, and of a text after it."""
    said = [token for token in request.tokens if token != model.config.eos_token_id]
    return torch.tensor([*request.prompt.tolist(), *said, *tokenizer.encode(text).ids], device=model.device)


def play(
    console: Console, engine: Engine, title: str, prompts: list[Tensor], *, new: int, seed: int = 0
) -> list[Request]:
    """Serve prompts, one joining at each step, and show them meanwhile, or in the end if this is no terminal."""
    console.rule(title)
    requests, began = [], time.perf_counter()
    with Live(console=console, auto_refresh=False) as live:
        while len(requests) < len(prompts) or engine.running:
            if (i := len(requests)) < len(prompts):
                generator = torch.Generator(engine.model.device).manual_seed(seed + i)
                settings = dict(max_new=new, temperature=0.7, top_p=0.95, generator=generator)
                requests.append(engine.submit(prompts[i], **settings))
            engine.step()
            live.update(Group(table(requests), *books(engine, time.perf_counter() - began)), refresh=True)
    if not console.is_terminal:
        console.print()  # Live leaves the last line of a file open
    return requests


def table(requests: list[Request]) -> Table:
    out = Table(box=box.SIMPLE, expand=True)
    for name in ("prompt", "known", "run again", "new"):
        out.add_column(name, justify="right", no_wrap=True)
    out.add_column("text", no_wrap=True, ratio=1)
    for r in requests:
        numbers = map(str, (len(r.prompt), r.hit, r.replayed, len(r.tokens)))
        out.add_row(*numbers, Text(" ".join(r.text.split())[-SHOWN:]))
    return out


def books(engine: Engine, seconds: float) -> list[str]:
    """Lines of what the engine has counted since its start."""
    c, prefixes = engine.counters, engine.prefixes
    fed = f"{c.prompt_rows} prompt rows and {c.decode_rows} decode rows for {c.new_tokens} new tokens"
    kept = f"{c.accepted} of {c.drafted} drafts accepted"
    return [
        f"{seconds:.1f} s; so far {fed}, {kept}",
        f"prefixes: {c.cold} cold, {c.store_hits} from the store, {c.shelf_hits} from the shelf",
        f"store: {prefixes.store.nbytes:,} B ({c.bytes_written:,} B of pages written, {c.bytes_read:,} B read); "
        f"shelf: {prefixes.shelf.nbytes:,} B in {len(prefixes.shelf.states)} sequences",
    ]
