"""Triton twins of the hot operations, one file each: same signature and result as the plain version in `ops`.

Importing a kernel needs triton; nothing else in the package does.
"""
