"""One kind of widget for all lessons: controls, a line of text, a picture. It computes nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ipywidgets


class View:
    """Controls that forward to two pure functions: `text(**values)` and `picture(**values)` (PNG bytes).

    `view.box` is what a cell displays. `view.set(query=40)` moves the controls from Python and returns
    the text, so that a test (and a reader without a mouse) sees the same as the mouse does.
    """

    def __init__(
        self,
        controls: dict[str, ipywidgets.ValueWidget],
        *,
        text: Callable[..., str],
        picture: Callable[..., bytes],
    ) -> None:
        self.controls = controls
        self._text, self._picture = text, picture
        self.readout = ipywidgets.HTML()
        self.image = ipywidgets.Image(format="png", layout={"max_width": "700px"})
        self.box = ipywidgets.VBox(
            [ipywidgets.HBox(list(controls.values()), layout={"flex_flow": "row wrap"}), self.image, self.readout]
        )
        for control in controls.values():
            control.observe(self._move, names="value")
        self._move()

    def values(self) -> dict[str, Any]:
        return {name: control.value for name, control in self.controls.items()}

    def set(self, **values: Any) -> str:
        """Move controls by name. Raises KeyError for a name that is no control."""
        for name, value in values.items():
            self.controls[name].value = value
        return self.readout.value

    def _move(self, _change: Any = None) -> None:
        self.readout.value = self._text(**self.values())
        self.image.value = self._picture(**self.values())


def slider(name: str, low: int, high: int, *, start: int, live: bool = True) -> ipywidgets.IntSlider:
    """A whole-number slider that redraws while it moves (`live`) or when it is released."""
    return ipywidgets.IntSlider(start, low, high, description=name, continuous_update=live, layout={"width": "420px"})


def choice(name: str, options: Sequence[str] | Mapping[str, Any], *, start: Any = None) -> ipywidgets.Dropdown:
    """A drop-down list of texts, or of texts and the values that they stand for."""
    chosen = {} if start is None else {"value": start}
    return ipywidgets.Dropdown(options=options, description=name, layout={"width": "300px"}, **chosen)


def tick(name: str, *, start: bool = False) -> ipywidgets.Checkbox:
    return ipywidgets.Checkbox(start, description=name, indent=False, layout={"width": "200px"})


def written(name: str, *, start: str) -> ipywidgets.Text:
    """A line of text that counts when it is finished, with the return key or by leaving it."""
    return ipywidgets.Text(start, description=name, continuous_update=False, layout={"width": "330px"})


def steps(name: str, options: Sequence[Any] | Sequence[tuple[str, Any]], *, start: Any) -> ipywidgets.SelectionSlider:
    """A slider over values that are given one by one, such as 1, 2, 4, all."""
    return ipywidgets.SelectionSlider(options=options, value=start, description=name, layout={"width": "420px"})
