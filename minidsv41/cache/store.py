"""Pages of entries on disk, found by the tokens that they stand for; many processes may share them (LMDB).

Bytes only: what a page holds is the business of `pages.py`. Nothing here depends on a clock. A process may be killed
at any moment. Loss of power, and damage to LMDB's own tree (less than 1 % of the file), are not covered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import lmdb

from minidsv41.cache.record import VERSION, Identity, Record, token_bytes

IDENTITY = b"identity"  # its key; the keys of pages have another length
ROOT = 0  # the link before the first page
BATCH = 64  # pages a transaction

Hash = Callable[[bytes, bytes], bytes]


class StoreError(RuntimeError):
    """A folder that cannot serve as this model's store."""


@dataclass
class Counters:
    """pages: found; misses: look-ups that ended early; the others say what was in the way.

    damaged: a record's checksum was wrong; strangers: another prompt's page under the same hash, or one whose
    forerunner has been written anew; refused: writes that the disk or `max_bytes` did not take.
    """

    lookups: int = 0
    pages: int = 0
    misses: int = 0
    damaged: int = 0
    strangers: int = 0
    written: int = 0
    refused: int = 0


def roll(before: bytes, tokens: bytes) -> bytes:
    """The key of a page, from the key of the page before it and its own tokens."""
    return blake2b(before + tokens, digest_size=16).digest()


class Store:
    """Pages by prefix: the key of a page hashes all tokens up to its end, and a hit is checked against the tokens.

    Every record has a link, a number that no other record ever had, and names that of the page before it. A chain of
    equal tokens and fitting links is therefore this very prefix, whatever the hashes do.

    identity: pages of another one are refused. max_bytes: the file grows no larger; then nothing new is stored.
    hash: as `roll`. Raises StoreError. One process may open a folder once; use it as a context manager or `close` it.
    """

    def __init__(self, folder: Path | str, identity: Identity, *, max_bytes: int = 1 << 30, hash: Hash = roll) -> None:
        self.folder, self.identity, self.hash = Path(folder), identity, hash
        self.counters = Counters()
        self.last_refusal = ""
        self.env = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Commits outlive this process; without metasync the power's loss may undo the last ones.
            self.env = lmdb.open(str(folder), map_size=max_bytes, metasync=False, readahead=False)
            problem = self._differs()
        except (lmdb.Error, OSError) as error:
            problem = f"cannot be used as a store ({error})"
        if problem:
            self.close()
            raise StoreError(f"{folder}: {problem}")

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.env:
            self.env.close()

    def _differs(self) -> str:
        """Why the folder's pages are not for this model, or nothing. A new folder becomes this model's."""
        own = asdict(self.identity) | {"version": VERSION}
        with self._begin() as txn:
            found = bytes(txn.get(IDENTITY, b""))
        if not found:
            with self._begin(write=True) as txn:
                txn.put(IDENTITY, json.dumps(own).encode(), overwrite=False)
                found = txn.get(IDENTITY)
        try:
            stored = json.loads(found)
            wrong = [
                f"{name} = {stored[name]!r}, expected {value!r}" for name, value in own.items() if stored[name] != value
            ]
        except (ValueError, KeyError, TypeError):
            wrong = ["an identity that cannot be read"]
        return f"this store has {'; '.join(wrong)}: choose another folder or delete this one" if wrong else ""

    def _begin(self, *, write: bool = False) -> lmdb.Transaction:
        try:
            return self.env.begin(write=write, buffers=not write)
        except lmdb.MapResizedError:  # another process has a larger `max_bytes` and has used it
            self.env.set_mapsize(0)
            return self.env.begin(write=write, buffers=not write)

    def match(self, ids: Sequence[int]) -> list[Record]:
        """The stored pages with which ids begin, in order."""
        found: list[Record] = []
        self.counters.lookups += 1
        try:
            with self._begin() as txn:
                for key, tokens in self._chain(ids):
                    record = self._find(txn, key, tokens, found[-1].link if found else ROOT)
                    if record is None:
                        self.counters.misses += 1
                        break
                    found.append(record)
        except lmdb.Error:
            self.counters.damaged += 1
            self.counters.misses += 1
        self.counters.pages += len(found)
        return found

    def put(self, ids: Sequence[int], page: Callable[[int], bytes], *, replayed: bool = False) -> int:
        """Store the pages of ids that are missing -> how many; `page(i)` gives the bytes of page i.

        replayed marks them. What does not fit is left out and counted.
        """
        before = self.counters.written
        chain = enumerate(self._chain(ids))
        last = ROOT, replayed
        try:
            self.env.reader_check()  # a reader that was killed would keep old pages alive
            while some := list(islice(chain, BATCH)):
                with self._begin(write=True) as txn:
                    last, new = self._write(txn, some, last, page)
                self.counters.written += new
        except lmdb.Error as error:
            self.counters.refused += 1
            self.last_refusal = str(error)
        return self.counters.written - before

    def _write(
        self, txn: lmdb.Transaction, some: list, last: tuple[int, bool], page: Callable[[int], bytes]
    ) -> tuple[tuple[int, bool], int]:
        """One batch after the record (link, replayed) `last` -> its own last, and how many were new."""
        (link, replayed), new = last, 0
        for i, (key, tokens) in some:
            known = self._find(txn, key, tokens, link)
            if known is None:
                data = page(i)
                assert len(data) == self.identity.page_bytes, f"page {i} has {len(data)} bytes: {self.identity}"
                number = txn.id() << 16 | i % BATCH + 1  # ids of transactions that were committed never return
                txn.put(key, Record(number, link, replayed, tokens, data).pack())
                link, new = number, new + 1
            else:
                link, replayed = known.link, replayed or known.replayed
        return (link, replayed), new

    def _chain(self, ids: Sequence[int]) -> Iterator[tuple[bytes, bytes]]:
        """(key, tokens) of every whole page."""
        key, page = b"", self.identity.page
        for at in range(0, len(ids) - page + 1, page):
            tokens = token_bytes(ids[at : at + page])
            key = self.hash(key, tokens)
            yield key, tokens

    def _find(self, txn: lmdb.Transaction, key: bytes, tokens: bytes, parent: int) -> Record | None:
        """The record of exactly this page after exactly that one."""
        raw = txn.get(key)
        if raw is None:
            return None
        record = self._unpack(raw)
        if record is None:
            self.counters.damaged += 1
        elif record.tokens != tokens or record.parent != parent:
            self.counters.strangers += 1
        else:
            return record
        return None

    def _unpack(self, raw: bytes | memoryview) -> Record | None:
        return Record.unpack(raw, page=self.identity.page, page_bytes=self.identity.page_bytes)

    def verify(self) -> tuple[int, int]:
        """Read everything -> pages in all, and damaged ones among them."""
        with self._begin() as txn:
            whole = [self._unpack(raw) is not None for key, raw in txn.cursor() if bytes(key) != IDENTITY]
        return len(whole), whole.count(False)

    @property
    def nbytes(self) -> int:
        """Bytes of the file that hold something."""
        stat = self.env.stat()
        return stat["psize"] * (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"])
