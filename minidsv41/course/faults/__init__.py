"""Faults for study, never options of the model: `f00.py` holds FAULTS of lesson 00.

A fault is a wrapper around one function of the package, in place while a `with` block runs.
"""
