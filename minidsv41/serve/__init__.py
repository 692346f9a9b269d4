"""Running the model on requests."""

from minidsv41.serve.generate import RequestError, generate, prefill
from minidsv41.serve.text import speak

__all__ = ["RequestError", "generate", "prefill", "speak"]
