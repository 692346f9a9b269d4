"""Compare the model, stage by stage, with reference traces (layout: tests/golden/README.md)."""

from minidsv41.parity.compare import ParityError, Row, difference, parity
from minidsv41.parity.report import by_stage, ran, show, to_json

__all__ = ["ParityError", "Row", "by_stage", "difference", "parity", "ran", "show", "to_json"]
