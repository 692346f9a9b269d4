"""What finished sequences leave for prompts that begin alike: on a shelf in memory, in a store on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minidsv41.cache import Cache, State
from minidsv41.cache.pages import page_bytes, persist, restore
from minidsv41.cache.shelf import Shelf
from minidsv41.serve.counters import Counters

if TYPE_CHECKING:
    from minidsv41.cache.store import Store


class Prefixes:
    """A shelf gives a whole sequence back, windows included; a store gives entries of whole pages alone."""

    def __init__(self, cache: Cache, shelf: Shelf | None, store: Store | None, counters: Counters) -> None:
        assert shelf is None or shelf.cache is cache, "the shelf belongs to another cache"
        self.cache, self.shelf, self.store, self.counters = cache, shelf, store, counters

    def take(self, ids: list[int]) -> State:
        """A sequence that holds the first tokens of a prompt, as many as are known, if any. The shelf comes first.

        Raises CacheFull.
        """
        if self.shelf and (state := self.shelf.take(ids)):
            self.counters.shelf_hits += 1
        elif self.store:
            state, _ = restore(self.store, self.cache, ids)  # Prefill marks it
            self.counters.store_hits += state.length > 0
            self.counters.bytes_read += len(state.entries) * page_bytes(self.cache)
        else:
            state = self.cache.new()
        self.counters.cold += state.length == 0
        self.counters.hit_tokens += state.length
        return state

    def persist(self, ids: list[int], state: State) -> None:
        """Store the complete pages of a sequence that holds `ids`."""
        if self.store:
            new = persist(self.store, self.cache, state, ids, replayed=state.replayed)
            self.counters.bytes_written += new * page_bytes(self.cache)

    def keep(self, ids: list[int], state: State) -> None:
        """Take over a sequence that holds `ids`, even if storing its pages raises."""
        try:
            self.persist(ids, state)
        finally:
            if self.shelf:
                self.shelf.put(ids, state)
            else:
                self.cache.release(state)

    def make_room(self) -> bool:
        """Give up the sequence that was unused for longest -> whether there was one."""
        return self.shelf is not None and self.shelf.evict()
