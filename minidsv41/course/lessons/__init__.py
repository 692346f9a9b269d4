"""The exercises of each lesson: `l00.py` holds EXERCISES of lesson 00."""

from __future__ import annotations

import importlib
import pkgutil

from minidsv41.course.exercise import Exercise


def lessons() -> list[str]:
    """Numbers of the lessons that have exercises, for example `["00", "05b"]`."""
    return sorted(m.name[1:] for m in pkgutil.iter_modules(__path__) if m.name[0] == "l")


def exercises(lesson: str) -> tuple[Exercise, ...]:
    """Exercises of one lesson. Raises KeyError with the lessons that exist."""
    if lesson not in lessons():
        raise KeyError(f"lesson {lesson!r} has no exercises; there are {', '.join(lessons())}")
    return importlib.import_module(f"{__name__}.l{lesson}").EXERCISES


def exercise(name: str) -> Exercise:
    """One exercise by its full name, for example `00.record`. Raises KeyError that lists the names."""
    found = {e.name: e for e in exercises(name.partition(".")[0])}
    if name not in found:
        raise KeyError(f"no exercise {name!r}; there are {', '.join(found)}")
    return found[name]
