"""Figures of the lessons, a file a topic."""
