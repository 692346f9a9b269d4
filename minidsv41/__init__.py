"""minidsv41: DeepSeek-V4.1-Flash, small enough to read and exact enough to trust."""

__version__ = "0.1.0"
