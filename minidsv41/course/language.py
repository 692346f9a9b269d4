"""Explanations and hints in the reader's language, chosen by MINIDSV41_LANG (en, zh)."""

from __future__ import annotations

import os

Text = dict[str, str]
LANGUAGES = ("en", "zh")


def language() -> str:
    """The chosen language; anything else than a known one means English."""
    chosen = os.environ.get("MINIDSV41_LANG", "en").lower()[:2]
    return chosen if chosen in LANGUAGES else "en"


def say(text: Text) -> str:
    return text[language()]
