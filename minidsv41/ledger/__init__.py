"""The books of one model: bytes, parameters, FLOPs, memory traffic. Arithmetic only."""
