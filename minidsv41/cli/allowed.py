"""Choices that several commands give, refused at once where they cannot be."""

from __future__ import annotations

import typer


def require_device(device: str) -> None:
    """Raises BadParameter for a device that is not "cpu" or an existing "cuda"."""
    import torch

    if device not in ("cpu", "cuda") or device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter(f"device = {device}: cpu, or cuda on a machine that has a GPU")


def require_versions(versions: str) -> None:
    """Raises BadParameter for another choice than those of `ops.versions`."""
    allowed = ("auto", "plain", "kernels")
    if versions not in allowed:
        raise typer.BadParameter(f"versions = {versions}: allowed are {', '.join(allowed)}")
