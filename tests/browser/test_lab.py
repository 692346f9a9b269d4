"""Each lesson in a real JupyterLab: run all, move the first slider, see figure and readout change, read the console.

MINIDSV41_SCREENSHOTS may name a folder: it gets a picture of each lesson in both themes, for a person to look at.
"""

import os
import time
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
LESSONS = [p.name for p in sorted((ROOT / "notebooks").glob("*.ipynb"))]
SAMPLE = "sample.ipynb"
SAMPLE_CELLS = [
    "import ipywidgets as w\n"
    "def draw(n):\n"
    '    return b\'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="%d" style="background:red"/>\' % (20 * n)',
    "slider, box = w.IntSlider(9, 0, 9, continuous_update=False), w.HTML('n = 9')\n"
    "picture = w.Image(value=draw(9), format='svg+xml')\n"
    "def show(change):\n"
    "    box.value, picture.value = f'n = {change.new}', draw(change.new)\n"
    "slider.observe(show, 'value')\n"
    "w.VBox([slider, box, picture])",
]
RUN_ALL_S, MOVE_S = 120, 20

PROMPTS = "() => [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].map(e => e.textContent)"
# What stops a run: an error, or a dialog that waits for an answer.
STOPPED = """() => [...document.querySelectorAll('[data-mime-type="application/vnd.jupyter.error"], .jp-Dialog')]
    .map(e => e.innerText)"""
# What stands in the output that holds the first slider: its pictures' bytes and its readouts.
SHOWN = """async () => {
    const output = document.querySelector('.noUi-handle').closest('.jp-OutputArea-output');
    const bytes = img => fetch(img.src).then(r => r.arrayBuffer()).then(b => new Uint8Array(b).join());
    return {
        pictures: await Promise.all([...output.querySelectorAll('img')].map(bytes)),
        readouts: [...output.querySelectorAll('.widget-html-content')].map(e => e.innerText),
    };
}"""


@pytest.fixture(scope="session")
def sample(workbook) -> str:
    """A lesson of two cells: the harness is tried on it, whatever the lessons are."""
    book = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    book.cells = [nbformat.v4.new_code_cell(source) for source in SAMPLE_CELLS]
    nbformat.write(book, workbook / SAMPLE)
    return SAMPLE


@pytest.fixture
def page(browser):
    """A fresh profile; everything that the console or the network has to complain of is kept in `complaints`."""
    context = browser.new_context(viewport={"width": 1200, "height": 2000})
    page = context.new_page()
    page.complaints = []
    page.on("console", lambda m: page.complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda r: page.complaints.append(f"asks for {r.url}") if leaves(r.url) else None)
    yield page
    context.close()


def leaves(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:"))


@pytest.mark.parametrize("name", [SAMPLE, *LESSONS])
def test_lesson(name, sample, lab, page):
    page.goto(lab(name))
    page.locator(".jp-KernelName", has_text="Python 3").wait_for()
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]")
    choose(page, "Run", "Run All Cells")
    prompts = wait_until_run(page)
    assert all(p.strip("[]: ").isdigit() for p in prompts), (prompts, page.evaluate(STOPPED))
    move_first_slider(page)
    save_screenshots(page, Path(name).stem)
    assert page.complaints == []


def choose(page, *menu: str) -> None:
    for item in menu:
        page.locator(".lm-MenuBar-itemLabel, .lm-Menu-itemLabel").get_by_text(item, exact=True).click()


def wait_until_run(page) -> list[str]:
    """Until each code cell has its number, or the run has stopped. -> the prompts of all code cells"""
    deadline = time.monotonic() + RUN_ALL_S
    while time.monotonic() < deadline:
        prompts = page.evaluate(PROMPTS)
        numbered = all(p.strip("[]: ").isdigit() for p in prompts)
        if numbered or ("[*]:" not in prompts and page.evaluate(STOPPED)):
            break
        page.wait_for_timeout(200)
    return prompts


def move_first_slider(page) -> None:
    handle = page.locator(".noUi-handle").first
    handle.wait_for(timeout=MOVE_S * 1000)
    before = page.evaluate(SHOWN)
    at_end = handle.get_attribute("aria-valuenow") == handle.get_attribute("aria-valuemax")
    handle.press("ArrowLeft" if at_end else "ArrowRight")
    deadline = time.monotonic() + MOVE_S
    while (after := page.evaluate(SHOWN)) and (same := [kind for kind in after if after[kind] == before[kind]]):
        assert time.monotonic() < deadline, f"the slider moved, but not the {' and '.join(same)}"
        page.wait_for_timeout(100)
    assert after["pictures"]
    assert after["readouts"]


def save_screenshots(page, stem: str) -> None:
    if not (folder := os.environ.get("MINIDSV41_SCREENSHOTS")):
        return
    height = page.evaluate("() => document.querySelector('.jp-WindowedPanel-outer').scrollHeight")
    page.set_viewport_size({"width": 1200, "height": height + 150})
    page.screenshot(path=Path(folder) / f"{stem}-light.png")
    choose(page, "Settings", "Theme", "JupyterLab Dark")
    page.wait_for_selector("body[data-jp-theme-light=false]", state="attached")
    page.wait_for_timeout(500)  # the style sheet follows its attribute
    page.screenshot(path=Path(folder) / f"{stem}-dark.png")
    choose(page, "Settings", "Theme", "JupyterLab Light")
