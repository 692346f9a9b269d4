"""Checkpoints in the released layout: config.json, engram.json or tokenizer.json, and safetensors.

Nothing but JSON and safetensors is ever read, so a checkpoint cannot run code.
"""

from minidsv41.checkpoint.errors import CheckpointError
from minidsv41.checkpoint.layout import VISION, expected_tensors
from minidsv41.checkpoint.reader import load
from minidsv41.checkpoint.writer import save

__all__ = ["VISION", "CheckpointError", "expected_tensors", "load", "save"]
