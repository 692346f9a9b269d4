"""What is remembered between calls."""

from minidsv41.cache.state import Cache, CacheKeys, State

__all__ = ["Cache", "CacheKeys", "State"]
