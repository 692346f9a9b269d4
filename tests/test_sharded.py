"""A table in parts is the table: rows, gradients and updates, over threads and over processes."""

from __future__ import annotations

import os
import time
from threading import BrokenBarrierError

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minidsv41.train.group import Group, GroupError, in_processes, in_threads
from minidsv41.train.optim import Optimizer, sinkhorn_balance
from minidsv41.train.sharded import Shard, owner, share


def learn(group: Group, table: torch.Tensor, ids: torch.Tensor, target: torch.Tensor, steps: int) -> torch.Tensor:
    """Each member fits its part of the batch [T, columns]."""
    shard = Shard(table, group)
    optimizer = Optimizer([("engram.embed.weight", shard.weight)], stacks={}, total=group.total)
    mine, wanted = ids.chunk(group.size)[group.rank], target.chunk(group.size)[group.rank]
    for _ in range(steps):
        fetched = shard.fetch(mine)
        (fetched.rows[fetched.index] - wanted).square().sum().backward()
        shard.give_back(fetched)
        optimizer.step(0.1)
    return shard.weight.detach()


def problem(rows: int, tokens: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    table = torch.randn(rows, 4, generator=g, dtype=torch.float64)
    ids = torch.randint(0, rows, (tokens, 3), generator=g)
    return table, ids, torch.randn(tokens, 3, 4, generator=g, dtype=torch.float64)


def plain(table: torch.Tensor, ids: torch.Tensor, target: torch.Tensor, steps: int) -> torch.Tensor:
    """The same without a group, by autograd alone."""
    weight = torch.nn.Parameter(table.clone())
    optimizer = Optimizer([("engram.embed.weight", weight)], stacks={})
    for _ in range(steps):
        (weight[ids] - target).square().sum().backward()
        optimizer.step(0.1)
    return weight.detach()


@settings(deadline=None, max_examples=25)
@given(rows=st.integers(4, 40), size=st.integers(1, 3), seed=st.integers(0, 99))
def test_a_table_in_parts_learns_as_one(rows: int, size: int, seed: int):
    job = problem(rows, 9, seed)
    parts = in_threads(learn, *job, 3, size=size)
    assert [len(p) for p in parts] == [min(share(rows, size), rows - r * share(rows, size)) for r in range(size)]
    torch.testing.assert_close(torch.cat(parts), plain(*job, 3), rtol=0, atol=1e-11)


def test_two_processes_learn_as_one():
    job = problem(31, 10)
    parts = in_processes(learn, *job, 4, size=2)
    torch.testing.assert_close(torch.cat(parts), plain(*job, 4), rtol=0, atol=1e-11)


def test_a_member_fetches_a_row_once_and_by_its_number():
    def work(group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        table = torch.arange(14.0).view(7, 2)
        ids = torch.tensor([[6, 0, 6], [3, 0, 0]])
        fetched = Shard(table, group).fetch(ids)
        return table[ids], fetched.rows[fetched.index], len(fetched.rows)

    for want, got, count in in_threads(work, size=3):
        assert torch.equal(want, got) and count == 3


@pytest.mark.parametrize(("rows", "size"), [(10, 4), (12, 4), (7, 1), (384_006_168, 8)])
def test_every_row_has_one_owner(rows: int, size: int):
    for row in {0, share(rows, size) - 1, rows // 2, rows - 1}:
        member, own = owner(row, rows, size)
        assert 0 <= member < size and member * share(rows, size) + own == row
    assert owner(rows - 1, rows, size)[0] == size - 1


def test_balancing_parts_needs_sums_alone():
    """The sums are one of two numbers, for the threshold, and five of one number a column."""
    u, summed = torch.randn(9, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64), []

    def work(group: Group) -> torch.Tensor:
        def total(x: torch.Tensor) -> torch.Tensor:
            if group.rank == 0:
                summed.append(len(x))
            return group.total(x)

        return sinkhorn_balance(u.chunk(2)[group.rank], total=total)

    torch.testing.assert_close(torch.cat(in_threads(work)), sinkhorn_balance(u), rtol=0, atol=1e-12)
    assert summed == [2, 4, 4, 4, 4, 4]


def fails(group: Group) -> None:
    if group.rank == 1:
        raise ValueError("no such row")
    group.total(torch.ones(1))


def dies(group: Group) -> None:
    if group.rank == 1:
        os._exit(3)
    group.total(torch.ones(1))


def sleeps(group: Group) -> None:
    time.sleep(600)


@pytest.mark.parametrize(("work", "said"), [(fails, "member [01] failed"), (dies, "member [01] (failed|died)")])
def test_a_lost_member_is_an_error_and_no_wait(work, said: str):
    with pytest.raises(GroupError, match=said):
        in_processes(work, timeout=60)


def test_a_member_that_hangs_is_ended():
    began = time.monotonic()
    with pytest.raises(GroupError, match="member 0 was not done in time"):
        in_processes(sleeps, timeout=5)
    assert time.monotonic() - began < 60


def test_a_failing_thread_sets_the_others_free():
    began = time.monotonic()
    with pytest.raises(BrokenBarrierError):
        in_threads(fails, timeout=60)
    assert time.monotonic() - began < 30
