"""The text of one request while its tokens come, up to a stop string."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class Transcript:
    """text: what may be shown. It ends before the first of the `stop` strings to be complete, and meanwhile leaves out
    a last part that may yet become one. How the text is divided into tokens makes no difference."""

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = ()) -> None:
        self.tokenizer, self.stop = tokenizer, stop
        self.text, self.stopped = "", False
        self._ids, self._decoder, self._said = [], DecodeStream(skip_special_tokens=True), ""

    def add(self, token: int) -> None:
        self._ids.append(token)
        self._say(self._decoder.step(self.tokenizer, token) or "")

    def end(self) -> None:
        """Show what was held back; bytes that never form a character come out as U+FFFD."""
        self._say(self.tokenizer.decode(self._ids, skip_special_tokens=True).removeprefix(self._said))
        if not self.stopped:
            self.text = self._said

    def _say(self, piece: str) -> None:
        if self.stopped:
            return
        self._said += piece
        found = [(at + len(s), at) for s in self.stop if (at := self._said.find(s, len(self.text))) >= 0]
        self.stopped = bool(found)
        self.text = self._said[: min(found)[1] if found else len(self._said) - self._held()]

    def _held(self) -> int:
        """Length of the longest end of the text with which a stop string begins."""
        lengths = range(min(len(self._said), max(map(len, self.stop), default=0)), 0, -1)
        return next((n for n in lengths if any(s.startswith(self._said[-n:]) for s in self.stop)), 0)
