"""Running the model on requests."""

from minidsv41.serve.engine import Busy, Engine
from minidsv41.serve.generate import generate
from minidsv41.serve.prefill import Prefill, RequestError, prefill, replay
from minidsv41.serve.speculative import speculate
from minidsv41.serve.text import speak

__all__ = ["Busy", "Engine", "Prefill", "RequestError", "generate", "prefill", "replay", "speak", "speculate"]
