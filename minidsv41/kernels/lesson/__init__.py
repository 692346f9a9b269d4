"""Kernels of lesson 12: the seam in three launches and in one, written to be read and not to be fast."""
