"""Running the model on requests."""

from minidsv41.serve.generate import generate, prefill

__all__ = ["generate", "prefill"]
