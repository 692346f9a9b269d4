"""Long fault campaigns: `python -m scripts.soak`.

Each is a file with a `play(seed, folder) -> counts` that raises when something is not as it must be.
"""
