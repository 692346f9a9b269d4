"""The course's own machinery, and every exercise and fault of every lesson."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
import torch

from minidsv41.config import ModelConfig
from minidsv41.course import checks, figures, lessons, workbook
from minidsv41.course.checks import SHOWN, TODO, check, grade, hint, predict, solution
from minidsv41.course.exercise import Exercise, Mistake, same, size
from minidsv41.course.language import LANGUAGES, say
from minidsv41.course.reads import described, readings
from minidsv41.course.sabotage import Difference, Fault, first_difference, replaced, sabotage, trace_by_token
from minidsv41.course.widgets import View, slider
from minidsv41.model import Model

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
EXERCISES = [e for lesson in lessons.lessons() for e in lessons.exercises(lesson)]
each_exercise = pytest.mark.parametrize("task", EXERCISES, ids=lambda e: e.name)

DOUBLE = Exercise(
    name="99.double",
    inputs=lambda: [dict(n=30), dict(n=-2), dict(n=0), dict(n=3)],
    reference=lambda n: 2 * n,
    solution=lambda n: 2 * n,
    why={"en": "why", "zh": "为什么"},
    hints=({"en": "idea", "zh": "思路"}, {"en": "formula", "zh": "公式"}),
    mistakes=(
        Mistake(name="square", answer=lambda n: n * n, thought={"en": "That is the square.", "zh": "这是平方。"}),
    ),
)


@each_exercise
def test_exercise_tells_untouched_wrong_and_right(task: Exercise, monkeypatch: pytest.MonkeyPatch):
    assert grade(task, TODO).state == "untouched"
    assert grade(task, lambda *args, **inputs: TODO).state == "untouched"
    assert grade(task, task.solution).state == "right"
    assert task.hints
    assert task.mistakes
    for language in LANGUAGES:
        monkeypatch.setenv("MINIDSV41_LANG", language)
        for text in (*task.hints, task.why, task.versus):
            assert say(text)
        for mistake in task.mistakes:
            verdict = grade(task, mistake.answer)
            assert verdict.state == "wrong", mistake.name
            assert say(mistake.thought) in verdict.text, mistake.name


@each_exercise
def test_exercise_tries_the_same_inputs_each_time(task: Exercise):
    first, second = list(task.inputs()), list(task.inputs())
    assert all(map(same, first, second))
    assert len(first) == len(second)


@each_exercise
def test_starter_in_the_lesson_is_not_attempted(task: Exercise, capsys: pytest.CaptureFixture):
    code = code_cells(task.name.partition(".")[0])
    imports = "\n".join(
        ast.unparse(n) for c in code for n in ast.parse(c).body if isinstance(n, ast.Import | ast.ImportFrom)
    )
    starters = [c for c in code if f'check("{task.name}"' in c]
    assert len(starters) == 1
    exec(imports + "\n" + starters[0], {})
    assert capsys.readouterr().out == f"{task.name} {SHOWN['untouched']}\n"


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda p: p.stem)
def test_lesson_asks_only_for_what_exists(path: Path):
    number = path.name.partition("_")[0]
    asked = {
        (node.func.id, node.args[0].value)
        for cell in code_cells(number)
        for node in ast.walk(ast.parse(cell))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args
        if node.func.id in ("check", "hint", "solution", "sabotage")
        if isinstance(node.args[0], ast.Constant)
    }
    exercises = {e.name for e in lessons.exercises(number)}
    faults = {f.name for f in sabotage.of(number)}
    assert {name for kind, name in asked if kind != "sabotage"} == exercises
    assert {name for kind, name in asked if kind == "sabotage"} <= faults
    assert len(faults) >= 3


def code_cells(number: str) -> list[str]:
    (path,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
    return [c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]


@pytest.mark.parametrize(
    "answer",
    [
        TODO,
        lambda n: TODO,
        lambda n: n * TODO,
        lambda n: TODO - n,
        lambda n: -TODO,
        lambda n: max(TODO, n),
        lambda n: [n, TODO],
        lambda n: {"a": (TODO,)},
        lambda n: TODO[n],
        lambda n: torch.zeros(2)[TODO],
    ],
)
def test_any_use_of_todo_is_untouched(answer):
    assert grade(DOUBLE, answer).state == "untouched"


def test_raising_todo_is_untouched():
    def answer(n):
        raise TODO

    assert grade(DOUBLE, answer).state == "untouched"


def test_wrong_shows_the_smallest_failing_input_and_the_mistake():
    text = grade(DOUBLE, lambda n: n * n).text
    assert text == "for n=-2 you say 4, the package says -4\nThat is the square."
    assert grade(DOUBLE, lambda n: n + 30).text == "for n=0 you say 30, the package says 0"


class Odd:
    def __eq__(self, other):
        raise RuntimeError("not comparable")

    def __repr__(self):
        return "an odd thing"


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (lambda n: n / 0, "for n=0 your code raises ZeroDivisionError: division by zero\n    "),
        (lambda n: Odd(), "you say an odd thing"),
        (lambda m: m, "TypeError: "),
        (lambda n: None, "you say None"),
        (7, "you say 7"),
        (lambda n: torch.zeros(2, 1), "you say [[0.0], [0.0]]"),
        (lambda n: (torch.tensor([1 / 3]), torch.tensor(2)), "you say [[0.333333], 2]"),
        (lambda n: torch.zeros(99), "you say tensor([0., 0."),
        (lambda n: (1000, 2), "you say (1000, 2)"),
        (lambda n: float("nan"), "you say nan"),
    ],
)
def test_a_broken_answer_is_wrong_and_never_an_error(answer, shown: str):
    verdict = grade(DOUBLE, answer)
    assert verdict.state == "wrong"
    assert shown in verdict.text


def test_a_failure_shows_the_line_of_the_learner():
    def answer(n):
        half = n / 2
        return {}[half]

    assert grade(DOUBLE, answer).text == "for n=0 your code raises KeyError: 0.0\n    return {}[half]"


def test_answer_cannot_spoil_the_inputs():
    task = Exercise(
        name="99.sum",
        inputs=lambda: [dict(values=[1, 2])],
        reference=sum_of,
        solution=sum_of,
        why=DOUBLE.why,
        hints=DOUBLE.hints,
    )
    assert grade(task, lambda values: (values.append(9), 3)[1]).state == "right"


def sum_of(values: list[int]) -> int:
    return sum(values)


def test_a_plugged_in_part_is_judged_by_its_score():
    task = Exercise(
        name="99.score",
        inputs=lambda: [{}],
        reference=lambda: 10,
        solution=lambda x: x / 2,
        why=DOUBLE.why,
        hints=DOUBLE.hints,
        use=lambda answer: answer(8),
        accept=lambda score, best: score < best,
        versus={"en": "yours costs {value}, the plain one {right}", "zh": "{value} {right}"},
    )
    assert str(grade(task, lambda x: x)) == f"99.score {SHOWN['right']}\nyours costs 8, the plain one 10"
    assert grade(task, lambda x: 2 * x).text == "yours costs 16, the plain one 10"
    assert grade(task, lambda x: "no number").state == "wrong"


def test_states_are_the_same_in_both_languages_and_explanations_are_not(monkeypatch: pytest.MonkeyPatch):
    said = {}
    for language in LANGUAGES:
        monkeypatch.setenv("MINIDSV41_LANG", language)
        said[language] = str(grade(DOUBLE, lambda n: n * n)).splitlines()
    assert said["en"][0] == said["zh"][0] == "99.double ✗ not yet · 还不对"
    assert said["zh"][1:] == ["当 n=-2 时，你的答案是 4，代码库给出 -4", "这是平方。"]


def test_unknown_names_are_answered_with_the_known_ones(capsys: pytest.CaptureFixture):
    for ask in (check, hint, solution):
        ask("00.recrod")
        assert "00.record" in capsys.readouterr().out
        ask("77.x")
        assert "'77'" in capsys.readouterr().out


def test_hints_come_one_by_one_and_the_last_repeats(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checks, "_given", {})
    task = EXERCISES[0]
    for at in [*range(len(task.hints)), len(task.hints) - 1]:
        hint(task.name)
        assert capsys.readouterr().out == f"{task.name} ({at + 1}/{len(task.hints)}) {task.hints[at]['en']}\n"


@each_exercise
def test_solution_prints_code_that_compiles(task: Exercise, capsys: pytest.CaptureFixture):
    solution(task.name)
    code, _, _ = capsys.readouterr().out.partition(say(task.why))
    ast.parse(code)
    assert f"def {task.solution.__name__}" in code


def test_prediction(capsys: pytest.CaptureFixture):
    predict("03", unit="tokens").reveal(5081)
    assert capsys.readouterr().out == (
        "03 ○ no guess recorded · 未填写猜测\n03 ○ no guess recorded · 未填写猜测 · 5,081 tokens\n"
    )
    predict("03", 128, unit="tokens").reveal(5081)
    assert capsys.readouterr().out.splitlines()[1] == "you 128, exact 5,081 tokens: a factor 39.7"
    predict("03", 0).reveal(3)
    assert capsys.readouterr().out.splitlines()[1] == "you 0, exact 3: a factor ∞"


@pytest.mark.parametrize("guess", ["many", -1, float("nan"), float("inf"), True, None])
def test_a_guess_that_is_no_amount_is_refused(guess: object, capsys: pytest.CaptureFixture):
    predict("03", guess).reveal(3)
    refused, revealed = capsys.readouterr().out.splitlines()
    assert refused == f"03 ✗ guess = {guess!r}: a number, 0 or more · 请填写不小于 0 的数"
    assert "no guess recorded" in revealed


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (1, 1.0, True),
        (1, 2, False),
        ((1, 2), [1, 2], True),
        ([1], [1, 1], False),
        ({"a": 1.0}, {"a": 1.0 + 1e-9}, True),
        ({"a": 1}, {"b": 1}, False),
        ("x", "x", True),
        (torch.tensor([1.0, 2.0]), [1.0, 2.0], True),
        (torch.ones(2), torch.ones(2, 1), False),
        (torch.ones(2), "x", False),
        (float("nan"), 1.0, False),
        (None, 0, False),
    ],
)
def test_same(a, b, equal: bool):
    assert same(a, b) is equal


def test_size_orders_numbers_lists_and_tensors():
    assert size(dict(a=1)) < size(dict(a=-2)) < size(dict(a=[1, 2])) < size(dict(a=torch.zeros(3, 3)))


def test_first_difference_is_the_first_in_forward_order():
    reference = {"a": torch.zeros(3, 2), "b": torch.ones(4), "c": torch.tensor([[1.0, -torch.inf]])}
    assert first_difference(reference, {k: v.clone() for k, v in reference.items()}) is None
    changed = {k: v.clone() for k, v in reference.items()}
    changed["b"][2] += 0.5
    changed["c"][0, 1] = 0.0
    found = first_difference(reference, changed)
    assert found == Difference("b", 2, 0.5)
    assert str(found) == "first difference: b, row 2, off by up to 0.500"
    assert str(first_difference({"c": reference["c"]}, {"c": changed["c"]})).endswith(
        "row 0, only one side has a value"
    )
    indices = {"i": torch.tensor([[1, 2, 3], [4, 5, -1]])}
    found = first_difference(indices, {"i": torch.tensor([[1, 2, 3], [5, -1, -1]])})
    assert str(found) == "first difference: i, row 1, 2 of the indices differ"
    changed["a"] = torch.zeros(4, 2)
    assert first_difference(reference, changed) == Difference("a", 0, float("inf"))
    assert first_difference({"c": reference["c"]}, {"c": changed["c"]}) == Difference("c", 0, float("inf"))


def test_a_replaced_function_comes_back_in_any_case():
    class Owner:
        @classmethod
        def name(cls):
            return "right"

    def run():
        with replaced(Owner, "name", lambda original: lambda: "wrong"):
            assert Owner.name() == "wrong"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    assert Owner.name() == "right"


@pytest.fixture
def shelf(tmp_path: Path) -> tuple[Path, Path]:
    """A folder with one executed lesson, and the place for its copy."""
    cell = nbformat.v4.new_code_cell("1 + 1", outputs=[nbformat.v4.new_output("stream", text="2")], execution_count=1)
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("Lesson"), cell])
    (tmp_path / "notebooks").mkdir()
    nbformat.write(book, tmp_path / "notebooks" / "00_x.ipynb")
    return tmp_path / "notebooks", tmp_path / "workbook"


def edit(path: Path, source: str) -> None:
    book = nbformat.read(path, as_version=4)
    book.cells[1].source = source
    nbformat.write(book, path)


def test_workbook_is_filled_once_and_follows_its_lesson(shelf: tuple[Path, Path]):
    assert workbook.fill(*shelf) == {"00_x.ipynb": "new"}
    copy = shelf[1] / "00_x.ipynb"
    book = nbformat.read(copy, as_version=4)
    assert book.cells[1].outputs == []
    assert book.cells[1].execution_count is None
    book.cells[1].outputs = [nbformat.v4.new_output("stream", text="run by the learner")]
    nbformat.write(book, copy)
    assert workbook.fill(*shelf) == {"00_x.ipynb": "same"}
    assert "run by the learner" in copy.read_text(encoding="utf-8")
    edit(shelf[0] / "00_x.ipynb", "2 + 2")
    assert workbook.fill(*shelf) == {"00_x.ipynb": "renewed"}
    assert nbformat.read(copy, as_version=4).cells[1].source == "2 + 2"


def test_an_edited_copy_is_never_overwritten(shelf: tuple[Path, Path]):
    workbook.fill(*shelf)
    copy = shelf[1] / "00_x.ipynb"
    edit(copy, "my answer")
    assert workbook.fill(*shelf) == {"00_x.ipynb": "kept"}
    edit(shelf[0] / "00_x.ipynb", "2 + 2")
    assert workbook.fill(*shelf) == {"00_x.ipynb": "kept"}
    copy.write_text("not a notebook", encoding="utf-8")
    assert workbook.fill(*shelf) == {"00_x.ipynb": "kept"}
    assert copy.read_text(encoding="utf-8") == "not a notebook"


def test_reset_renews_one_copy_and_keeps_the_old(shelf: tuple[Path, Path]):
    assert workbook.reset("0", *shelf) == (shelf[1] / "00_x.ipynb", None)
    for n in (1, 2):
        edit(shelf[1] / "00_x.ipynb", f"try {n}")
        copy, kept = workbook.reset("00", *shelf)
        assert kept.name == f"00_x.bak{n}.ipynb"
        assert nbformat.read(kept, as_version=4).cells[1].source == f"try {n}"
        assert nbformat.read(copy, as_version=4).cells[1].source == "1 + 1"
    with pytest.raises(workbook.WorkbookError, match="lesson = '7': allowed are 00"):
        workbook.reset("7", *shelf)


def test_fill_without_lessons_says_so(tmp_path: Path):
    with pytest.raises(workbook.WorkbookError, match="no lessons here"):
        workbook.fill(tmp_path, tmp_path / "workbook")


FAULTS = [f for lesson in sabotage.lessons() for f in sabotage.of(lesson)]


@pytest.fixture(scope="module")
def toy() -> tuple[Model, torch.Tensor, dict[str, torch.Tensor]]:
    """An untrained toy in float64 with a small window and selection, random tokens, and their true trace."""
    config = replace(ModelConfig.preset("toy"), sliding_window=8, index_topk=8)
    model = Model(config).initialise(torch.Generator().manual_seed(0)).cast(torch.float64)
    ids = torch.randint(5, config.vocab_size, (24,), generator=torch.Generator().manual_seed(1))
    return model, ids, model.trace(ids)


@pytest.mark.parametrize("after", [0, 1, 13, 23])
def test_token_by_token_leaves_the_same_trace(toy, after: int):
    model, ids, reference = toy
    steps = trace_by_token(model, ids, after=after)
    assert {"L0.attn.heads", "L1.idx.topk", "L6.idx.topk", "logits"} <= steps.keys()
    assert {len(rows) for rows in steps.values()} == {len(ids)}
    assert first_difference(reference, steps) is None


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_fault_shows_and_leaves_nothing_behind(fault: Fault, toy):
    if fault.probe:
        intact = fault.probe()
        with sabotage(fault.name):
            assert not same(fault.probe(), intact)
        assert same(fault.probe(), intact)
        return
    model, ids, reference = toy
    with sabotage(fault.name) as applied:
        assert applied is fault
        whole, steps = model.trace(ids), trace_by_token(model, ids)
    assert first_difference(reference, whole) or first_difference(reference, steps)
    assert first_difference(reference, model.trace(ids)) is None


def test_each_fault_of_the_tour_shows_where_it_must(toy):
    model, ids, reference = toy
    window = model.config.sliding_window
    with sabotage("00.wide_window"):
        found = first_difference(reference, model.trace(ids))
    assert (found.stage, found.row) == ("L0.attn.heads", window)
    with sabotage("00.rope_halves"):
        found = first_difference(reference, model.trace(ids))
    assert (found.stage, found.row) == ("L0.attn.q", 1)
    with sabotage("00.early_entry"):
        whole, steps = model.trace(ids), trace_by_token(model, ids)
    assert first_difference(reference, whole).stage == "L1.idx.scores"
    assert first_difference(reference, steps) is None
    with sabotage("00.stale_index_key"):
        whole, steps = model.trace(ids), trace_by_token(model, ids)
    assert first_difference(reference, whole) is None
    found = first_difference(reference, steps)
    assert found.stage == "L1.idx.topk"
    assert found.row == 2 * (model.config.index_topk + 1)  # the first open pair with something to choose from


@pytest.mark.parametrize("query", [0, 1, 6, 23])
def test_readings_are_what_attention_reads(toy, query: int):
    model, _, trace = toy
    c = model.config
    found = readings(c, trace, query)
    assert [r.layer for r in found] == list(range(c.num_hidden_layers))
    for r in found:
        assert r.window == (max(0, query - 7), query)
        assert r.mode == c.mode(r.layer)
        assert len(r.entries) == min(r.visible, c.index_topk)
        assert all(t <= query for t in r.tokens())
        assert len(set(r.tokens())) == len(r.tokens()) == r.ratio * len(r.entries)
    assert found[0].entries == ()
    assert found[2].entries == found[3].entries == found[1].entries
    assert found[5].entries == found[4].entries
    text = described(found)
    assert text.startswith(f"query {query}: window rows {max(0, query - 7)}–{query} in each of 8 layers<br>")
    assert f"layers 6–7: {min(query + 1, 8)} of {query + 1} entries" in text
    assert figures.png(figures.attended(found, 24)) != figures.png(figures.attended(readings(c, trace, 12), 24))


def test_menu_of_faults(capsys: pytest.CaptureFixture):
    sabotage.list("00")
    assert len(capsys.readouterr().out.splitlines()) == len(sabotage.of("00")) >= 3
    with pytest.raises(KeyError, match="there are 00.stale_index_key"):
        sabotage("00.no_such").__enter__()
    with pytest.raises(KeyError, match="lesson '77' has no faults"):
        sabotage.list("77")


def test_view_shows_to_python_what_it_shows_to_the_mouse():
    view = View(
        {"n": slider("n", 0, 9, start=4)},
        text=lambda n: f"{n} squared is {n * n}",
        picture=lambda n: f"picture {n}".encode(),
    )
    assert view.readout.value == "4 squared is 16"
    assert view.set(n=7) == "7 squared is 49"
    assert view.image.value == b"picture 7"
    with pytest.raises(KeyError):
        view.set(m=1)


@pytest.mark.parametrize("preset", ["toy", "flash"])
def test_figures_are_png_of_one_width(preset: str):
    for fig in (
        figures.schedule(ModelConfig.preset(preset)),
        figures.lifetimes([("a", "window", 100, 1), ("b", "main", 10, 1000)]),
    ):
        data = figures.png(fig)
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert int.from_bytes(data[16:20], "big") == figures.WIDTH
        assert len(data) < 20_000
