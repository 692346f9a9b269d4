"""What is remembered between calls."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minidsv41.cache.state import Cache, CacheKeys, State

__all__ = ["Cache", "CacheKeys", "State"]


def __getattr__(name: str) -> object:
    """Loaded on first use: `store` is bytes only, and its processes need no torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from minidsv41.cache import state

    return getattr(state, name)
