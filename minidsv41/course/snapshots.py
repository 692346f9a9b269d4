"""Prefix reuse where a state cannot be cut: a hit reaches as far as the last state that was saved inside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from minidsv41.families import State

Prompt = tuple[int, ...]  # a number for each block of tokens; equal numbers are equal blocks
Policy = Callable[[Prompt, Sequence[Prompt], int], Iterable[int]]

MOST = 2  # states that a prompt may save


def reusable(shared: int, saved: Iterable[int]) -> int:
    """Tokens of a shared prefix that need not be run again, given the lengths at which states were saved."""
    return max((at for at in saved if at <= shared), default=0)


def cut(state: State, length: int) -> State:
    """The state of the first `length` tokens, out of rows alone. Raises ValueError where something is folded."""
    if state.fixed:
        raise ValueError(f"{sorted(state.fixed)} fold all tokens into one: nothing can be cut off; allowed are rows")
    return State(length=length, rows={name: rows[:length] for name, rows in state.rows.items()})


def common(a: Prompt, b: Prompt) -> int:
    """Blocks with which both begin."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@dataclass(frozen=True)
class Served:
    """Blocks of all prompts, and those that had to be run."""

    asked: int
    run: int


def traffic(*, seed: int = 0) -> list[Prompt]:
    """Conversations of two applications, interleaved: a long instruction each, then turns that nobody shares."""
    dice = torch.Generator().manual_seed(seed)

    def roll(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=dice))

    fresh = iter(range(10_000))
    instructions = [tuple(next(fresh) for _ in range(n)) for n in (29, 11)]
    talks = [instructions[n % 2] for n in range(12)]
    prompts = []
    for _ in range(60):
        who = roll(0, len(talks) - 1)
        talks[who] += tuple(next(fresh) for _ in range(roll(2, 20)))
        prompts.append(talks[who])
    return prompts


def serve(policy: Policy, prompts: Sequence[Prompt], *, most: int = MOST) -> Served:
    """Run all prompts; after each, states at up to `most` of the lengths that `policy` names are saved.

    A state exists only where this prompt was run: behind its hit and up to its end. Raises ValueError otherwise.
    """
    saved: set[Prompt] = set()
    run = 0
    for n, prompt in enumerate(prompts):
        hit = reusable(len(prompt), (len(s) for s in saved if prompt[: len(s)] == s))
        run += len(prompt) - hit
        places = [int(at) for at in policy(prompt, prompts[:n], hit)]
        if len(places) > most or any(not 0 < at <= len(prompt) for at in places):
            raise ValueError(f"places = {places}: allowed are at most {most}, from 1 to {len(prompt)}")
        saved |= {prompt[:at] for at in places if at > hit}
    return Served(sum(map(len, prompts)), run)


def at_the_end(prompt: Prompt, seen: Sequence[Prompt], hit: int) -> list[int]:
    return [len(prompt)]


def evenly(prompt: Prompt, seen: Sequence[Prompt], hit: int) -> list[int]:
    """In the middle of what is run, and at its end."""
    return [max(1, (hit + len(prompt)) // 2), len(prompt)]


def at_branches(prompt: Prompt, seen: Sequence[Prompt], hit: int) -> list[int]:
    """Where an earlier prompt left this one, and at the end."""
    forks = {common(prompt, other) for other in seen} - {0}
    return [*([max(forks)] if forks else []), len(prompt)]
