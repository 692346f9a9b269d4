"""The network in plain PyTorch. Start with transformer.py.

README.md, "Sources", says what docstrings call the report, the official code and the papers.
"""

from minidsv41.model.keys import Keys, SequenceKeys
from minidsv41.model.transformer import Model, Output, Record

__all__ = ["Keys", "Model", "Output", "Record", "SequenceKeys"]
