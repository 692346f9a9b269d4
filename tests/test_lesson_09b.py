"""Lesson 09b: what a step costs, what a schedule gains, and which schedules leave the text alone."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from minidsv41.config import ModelConfig
from minidsv41.course import figures, littleworld, records, twowords
from minidsv41.course.lessons.l09b import WORLDS, package, score
from minidsv41.course.littleworld import BLOCK, DRAFT, TARGET, drafts, judge, kept
from minidsv41.course.pictures import scheduler
from minidsv41.course.scheduling import Choice, alike, best_of_all, curve, described, expected_tokens, mixed, sweep
from minidsv41.course.stepcost import Modelled, Recorded, chances_of, even_chance, rate, touched
from minidsv41.ledger.checkpoint import checkpoint_bytes
from minidsv41.serve.schedule import verify_lengths
from minidsv41.serve.speculative import Sampling, accept

FLASH = ModelConfig.preset("flash")
GPUS = Modelled(config=FLASH)
CORE = Recorded.of(records.record("bench_verify"))


def test_two_words_are_left_alone_by_early_stop_and_changed_by_the_best_of_all():
    assert twowords.emitted(verify_lengths) == (Fraction(7, 10), Fraction(3, 10))
    assert twowords.emitted(best_of_all) == (Fraction(17, 20), Fraction(3, 20))
    assert twowords.first_word(lambda word: 2) == twowords.first_word(lambda word: 0) == twowords.TARGET


def test_early_stop_is_not_lossless_with_a_confidence_that_has_seen_the_token():
    quick = {1: 1.0, 2: 0.6, 3: 0.45}

    def late(confidence, speed, *, most):
        return verify_lengths(confidence.roll(-1, 1), speed, most=most)

    assert twowords.emitted(verify_lengths, quick) == twowords.TARGET
    assert twowords.emitted(late, quick) == (Fraction(17, 20), Fraction(3, 20))


def test_the_curve_is_expected_tokens_times_steps_a_second_and_both_searches_end_on_it():
    confidence = torch.rand(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    choice = Choice.of(confidence, CORE)
    assert choice.rates == curve(confidence, rate(CORE, len(confidence)))
    for lengths in (choice.early, choice.best, [0] * 4, [5] * 4):
        found = expected_tokens(confidence, lengths) * rate(CORE, 4)(4 + sum(lengths))
        assert choice.rates[sum(lengths)] == pytest.approx(found)
    assert max(choice.rates) == pytest.approx(choice.rates[sum(choice.best)])
    assert choice.rates[sum(choice.early)] <= choice.rates[sum(choice.best)]


def test_the_best_of_all_keeps_the_limits():
    limits = dict(most=[2, 0, 5, 5], budget=7)
    confidence = torch.rand(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    free = [plan(confidence, lambda rows: 1.0, **limits) for plan in (best_of_all, verify_lengths)]
    assert free[0] == free[1]
    assert sum(free[0]) == 3


def test_a_recorded_table_gives_what_was_measured_and_refuses_the_rest():
    for row in records.record("bench_verify")["results"]["seconds"]:
        n = row["requests"]
        assert CORE.plain(n) == pytest.approx(row["verify"][0])
        assert CORE.seconds(n, 6 * n) == pytest.approx(row["draft"] + row["verify"][5])
    with pytest.raises(ValueError, match="3 requests were not measured; there are 1, 2, 4"):
        CORE.plain(3)


def test_rows_of_the_model_read_experts_first_and_compute_later():
    assert GPUS.experts_read(1) == pytest.approx(FLASH.num_experts_per_tok)
    assert GPUS.experts_read(10_000) == pytest.approx(FLASH.n_routed_experts)
    assert touched(4, 1, 2) == pytest.approx(4 * (1 - 9 / 16))
    per_row = [GPUS.plain(n + 1) - GPUS.plain(n) for n in (1, 1000, 4000)]
    assert per_row[0] > 100 * per_row[1] > 0 and per_row[2] > 100 * per_row[1]
    tables = 2 * 10**11  # Engram's rows are not read whole, nor is the draft
    everything = GPUS.gpus * GPUS.reached * GPUS.bandwidth * (GPUS.plain(1000) - 40 * GPUS.per_layer)
    assert 0.93 < everything / (int(checkpoint_bytes(FLASH)) - tables) < 1.0
    assert Modelled(config=FLASH, pad=64).seconds(40, 41) == GPUS.seconds(40, 64)


def test_speculation_pays_at_night_and_not_at_noon():
    [found] = [
        r["kept"]
        for r in records.record("bench_speculative")["results"]["text"]
        if (r["kind"], r["temperature"]) == ("plays", 1.0)
    ]
    toy = sweep(chances_of(found), CORE)
    assert toy["all drafts"][0] > 1.4 and toy["all drafts"][-1] < 1 and toy["early stop"][-1] < 1
    chance = even_chance(3.51, 5)
    assert sum(chance**k for k in range(6)) == pytest.approx(3.51)
    gains = sweep([chance] * 5, GPUS)["all drafts"]
    assert max(gains) > gains[0] > 1 > gains[-1]


def test_where_rows_are_padded_early_stop_stays_below_the_valley():
    padded = Choice.of(alike([even_chance(3.51, 5)] * 5, 40), Modelled(config=FLASH, pad=64))
    assert sum(padded.early) == 24 < sum(padded.best)
    assert padded.rates[sum(padded.best)] > 1.5 * padded.rates[24]


def test_chances_undo_reach():
    assert chances_of([0.5, 0.25, 0.0, 0.0]) == [0.5, 0.5, 0.0, 0.0]
    assert mixed(0.9, 0.5, 3, 2, fade=0.5).tolist() == [[0.9, 0.45], [0.5, 0.25], [0.9, 0.45]]


def test_the_little_world_accepts_as_the_package_does():
    generator = torch.Generator().manual_seed(3)
    words = drafts(torch.randint(3, (200, 1), generator=generator), generator)
    chance = torch.rand(200, 1, BLOCK, generator=generator, dtype=torch.float64)
    ours = kept(words, torch.full((200, 1), BLOCK), chance)[:, 0].tolist()

    class Given(Sampling):
        def chance(self) -> float:
            return next(self.generator)

        def draw(self, p: torch.Tensor) -> torch.Tensor:
            return torch.tensor(0)

    for row, u, count in zip(words[:, 0], chance[:, 0].tolist(), ours, strict=True):
        given = Given(temperature=1.0, generator=iter(u))
        assert len(accept(TARGET[row], DRAFT[row[:-1]], row[1:], given)) == count + 1


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("length", range(BLOCK + 1))
def test_a_fixed_length_is_lossless_in_every_little_world(world: str, length: int):
    assert score(lambda chances, steps_per_second: [length] * len(chances), world).lossless


def test_the_chi_square_test_finds_the_best_of_all_and_not_early_stop():
    for seed in range(3):
        for search, fine in ((verify_lengths, True), (best_of_all, False)):
            found = judge(
                lambda c, s=search: package(c, littleworld.night, s), littleworld.night, requests=1, seed=seed
            )
            assert found.lossless is fine


def test_lengths_that_no_block_has_are_refused():
    for wrong in ([4], [-1], [1, 1]):
        with pytest.raises(ValueError, match="due are 1 numbers from 0 to 3"):
            judge(lambda chances, wrong=wrong: wrong, littleworld.night, requests=1, samples=3)


def test_widget_says_and_draws_what_changes():
    seen = [Choice.of(mixed(0.9, 0.5, n, 5), CORE) for n in (1, 4, 64)]
    assert len({described(c, CORE.plain(len(c.early))) for c in seen}) == 3
    assert len({figures.png(scheduler.batch(c)) for c in seen}) == 3
    assert described(seen[0], CORE.plain(1)).startswith("1 request: early stop verifies 5 drafts, 5 of each sure")
    assert figures.png(scheduler.peaks(seen[1], seen[1], seen[1]))[:4] == b"\x89PNG"
