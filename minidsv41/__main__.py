"""`python -m minidsv41` is the command `minidsv41`."""

from minidsv41.cli import run

run()
