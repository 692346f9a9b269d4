"""What lesson 08b says about tables: bytes, rare rows, parts that equal the whole, waiting."""

from __future__ import annotations

import pytest
import torch

from minidsv41.config import ModelConfig
from minidsv41.course import figures, prefetching, residence
from minidsv41.course.lessons import l08b
from minidsv41.course.pictures import prefetching as pictures
from minidsv41.course.records import by_variant, record
from minidsv41.course.sabotage import sabotage
from minidsv41.course.shards import Lesson, relearn
from minidsv41.ledger import checkpoint, machines, params, traffic
from minidsv41.train.group import in_threads
from minidsv41.train.optim import Optimizer
from tests.tiny import prompt, tiny

FLASH = ModelConfig.preset("flash")


@pytest.fixture(scope="module")
def lesson() -> Lesson:
    return Lesson.of(tiny(), prompt(24), seed=0)


def test_bytes_of_the_tables():
    stored = {line.name: int(line.value) for line in checkpoint.checkpoint_lines(FLASH)}
    rows = sum(FLASH.engram_num_embeddings)
    assert prefetching.row_bytes(FLASH) == 264
    assert stored["checkpoint_fp8_engram_rows"] == rows * 264 == 202_758_032_400
    assert int(params.engram_table_params(FLASH).value) == rows * 256 == 196_613_849_600
    assert int(traffic.engram_bytes_per_token(FLASH).value) == 2 * FLASH.engram_columns * 264 == 12_672


def test_one_number_of_state_where_adamw_has_two():
    p = torch.nn.Parameter(torch.zeros(5, 4))
    p.grad = torch.ones_like(p)
    adam = torch.optim.AdamW([p])
    adam.step()
    two = sum(x.nbytes for x in adam.state[p].values() if x.dim())
    assert two == 2 * sum(x.nbytes for x in Optimizer([("engram.embed.weight", p)], stacks={}).momentum.values())


@pytest.mark.parametrize("size", [2, 3])
def test_a_table_learned_in_parts_is_the_table_learned_whole(lesson: Lesson, size: int):
    (one,) = in_threads(relearn, lesson, 4, 0.02, size=1)
    parts = in_threads(relearn, lesson, 4, 0.02, size=size)
    torch.testing.assert_close(torch.cat([p.rows for p in parts]), one.rows, rtol=0, atol=1e-11)
    together = [sum(losses) for losses in zip(*(p.losses for p in parts), strict=True)]
    assert together == pytest.approx(one.losses, rel=1e-11) and one.losses[-1] < one.losses[0]
    assert not any(one.sent.values())
    width, element = lesson.engram.embed.weight.shape[1], 8
    assert all(p.sent["sums"] == (size - 1) * 4 * (2 + 5 * width) * element for p in parts)
    sent = {what: sum(p.sent[what] for p in parts) for what in ("ids", "rows", "gradients")}
    assert sent["rows"] == sent["gradients"] == sent["ids"] * width


@pytest.mark.parametrize("fault", ["08b.last_wins", "08b.local_columns", "08b.early_rows"])
def test_a_fault_of_parts_is_no_fault_of_one(lesson: Lesson, fault: str):
    """Except for order, which needs no second member."""

    def rows(size: int) -> torch.Tensor:
        return torch.cat([p.rows for p in in_threads(relearn, lesson, 3, 0.02, size=size)])

    right = rows(1)
    with sabotage(fault):
        assert not torch.allclose(rows(2), right, atol=1e-9)
        assert torch.allclose(rows(1), right, atol=1e-9) == (fault != "08b.early_rows")


def test_nothing_waits_up_to_the_length_of_block_0():
    blocks, layers = [1.0] * 8, (1, 3)
    assert [prefetching.stall(blocks, layers, fetch) for fetch in (0, 0.5, 1, 1.5, 2, 2.5)] == [0, 0, 0, 0.5, 1, 2]
    assert prefetching.longest(blocks, layers, 0.25) == pytest.approx(0.75)
    assert l08b.longest_latency([4.0, 1, 1], [1, 2], 0.5) == pytest.approx(prefetching.longest([4, 1, 1], [1, 2], 0.5))


def test_a_block_of_the_release_hides_host_memory_at_any_batch():
    on = machines.machine("H200 measured")
    floors = [prefetching.block_floor(FLASH, on, tokens) for tokens in (1, 32, 128, 4096, 32768)]
    transfers = [n * FLASH.engram_columns * 264 / prefetching.PCIE for n in (1, 32, 128, 4096, 32768)]
    assert all(3e-6 + t < floor for floor, t in zip(floors, transfers, strict=True))
    assert transfers[3] == pytest.approx(472e-6, rel=1e-3)
    assert floors == sorted(floors)


def test_the_recorded_waits_follow_the_rule():
    for row in record("bench_prefetch")["results"]["runs"]:
        for run in row["runs"]:
            assert run["fetch"] >= row["latency"] - 0.01
            assert abs(run["wait"] - max(0.0, run["fetch"] - run["block"])) < 0.5 * run["block"]


def test_no_share_of_the_study_stands_out():
    bits = by_variant(record("study_engram"), "bits_per_byte")
    assert len(bits) == 5 and {len(v) for v in bits.values()} == {3}
    means = [sum(v) / 3 for v in bits.values()]
    assert max(means) - min(means) < max(max(v) - min(v) for v in bits.values())


def test_frequent_rows_spare_most():
    seen, later = residence.looked_up()
    assert seen.shape == later.shape == (4_000, 24)
    assert residence.spared(l08b.resident(seen, residence.ROOM)) > 2 * residence.spared(
        torch.tensor(l08b.first_come(seen, residence.ROOM))
    )


def test_the_readout_says_what_the_picture_shows():
    free = prefetching.Case(latency=1000, block=1500, rows=24, batch=4096)
    slow = prefetching.Case(latency=3000, block=1500, rows=24, batch=4096)
    assert free.transfer(FLASH) == pytest.approx(471.9, abs=0.1)
    assert prefetching.described(FLASH, free).endswith("the network waits 0 µs at layer 1 and 0 µs at layer 14")
    assert "waits 1,972 µs at layer 1 and 0 µs" in prefetching.described(FLASH, slow)
    pictured = [figures.png(pictures.case(FLASH, case)) for case in (free, slow)]
    assert pictured[0] != pictured[1] and max(map(len, pictured)) < 20_000
