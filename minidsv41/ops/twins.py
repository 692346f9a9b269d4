"""Which version of an operation runs: plain PyTorch, or the Triton kernel of the same name.

An operation of `ops` that has a kernel is such a pair. Kernels are imported when one is first asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor

from minidsv41.ops.rows import Rows

Choice = Literal["auto", "plain", "kernels"]
Operation = TypeVar("Operation", bound=Callable[..., Any])

PACKAGE = "minidsv41.kernels"


@dataclass
class Versions:
    """What ran in a block of `versions`: (operation, "kernel" or "plain") -> calls.

    refused: operation -> why its kernel did not run when it was last asked to.
    """

    choice: Choice
    ran: Counter[tuple[str, str]] = field(default_factory=Counter)
    refused: dict[str, str] = field(default_factory=dict)

    def summary(self) -> dict[str, dict[str, Any]]:
        """Operation -> calls of its versions, and why the kernel was refused, if it was."""
        out: dict[str, dict[str, Any]] = {}
        for (name, version), calls in sorted(self.ran.items()):
            out.setdefault(name, {})[version] = calls
        for name, reason in self.refused.items():
            out.setdefault(name, {})["refused"] = reason
        return out


_blocks: list[Versions] = []  # those open, the innermost last
_loaded: dict[str, Callable | ImportError] = {}


@contextmanager
def versions(choice: Choice = "auto") -> Iterator[Versions]:
    """Choose the versions that run within the block, and count them.

    "auto", as outside of any block: the kernel where tensors lie on a GPU, Triton can be imported and the kernel takes
    these arguments. "plain": no kernel. "kernels": nothing else, on CPU tensors too under Triton's interpreter; what a
    kernel does not take raises its Unsupported, and where it cannot be imported, ImportError. (An operation whose
    kernel has no gradients is plain where they are wanted, whatever the choice.)
    """
    if choice not in get_args(Choice):
        raise ValueError(f"versions = {choice!r}: allowed are {', '.join(get_args(Choice))}")
    _blocks.append(Versions(choice))
    try:
        yield _blocks[-1]
    finally:
        _blocks.pop()


def twin(plain: Operation, *, kernel: str, training: str | None = None) -> Operation:
    """The operation whose plain version is `plain`, and whose kernel is "file.function" in the package of kernels.

    training: the kernel where gradients are wanted, perhaps the same; if None, the plain version is left to it.
    `.plain` of the result is the plain version, `.kernels` are the names.
    """
    name = plain.__name__

    @wraps(plain)
    def operation(*args: Any, **kwargs: Any) -> Any:
        if wanted(*args):
            done, out = attempt(name, training if graded(args) else kernel, args, kwargs)
            if done:
                return out
        count(name, "plain")
        return plain(*args, **kwargs)

    operation.plain, operation.kernels = plain, {kernel, training} - {None}
    return operation


def attempt(name: str, kernel: str | None, args: tuple, kwargs: dict) -> tuple[bool, Any]:
    """(True, result) of the kernel, or (False, None) where it cannot be imported or does not take these arguments.

    Where "kernels" were asked for, these cases raise. Other errors are never kept back.
    """
    must = bool(_blocks) and _blocks[-1].choice == "kernels"
    if kernel is None:
        return refuse(name, "it has no gradients")
    try:
        run = load(kernel)
    except ImportError as missing:
        if must:
            raise
        return refuse(name, str(missing))
    from minidsv41.kernels.launch import Unsupported

    try:
        check(name, args)
        out = run(*args, **kwargs)
    except Unsupported as refusal:
        if must:
            raise
        return refuse(name, str(refusal))
    count(name, "kernel")
    return True, out


def load(kernel: str) -> Callable:
    """The kernel "file.function". Raises ImportError, every time the same."""
    if kernel not in _loaded:
        file, _, function = kernel.partition(".")
        try:
            _loaded[kernel] = getattr(import_module(f"{PACKAGE}.{file}"), function)
        except ImportError as missing:
            _loaded[kernel] = missing
    if isinstance(found := _loaded[kernel], ImportError):
        raise found
    return found


def check(name: str, args: tuple) -> None:
    """Raises Unsupported for keys that are only read like `Rows`, and, unless kernels are interpreted, CPU tensors."""
    from minidsv41.kernels.launch import INTERPRETED, require

    for a in args:
        likeness = hasattr(a, "gather") and not isinstance(a, Rows | Tensor)
        require(not likeness, f"{name}: {type(a).__name__}: its kernel reads stored rows only (Rows)")
    held = INTERPRETED or all(a.device.type != "cpu" for a in args if isinstance(a, Tensor))
    require(held, f"{name}: its kernel takes CPU tensors under Triton's interpreter only (TRITON_INTERPRET=1)")


def on_gpu(args: tuple) -> bool:
    """Whether a kernel is worth asking: the first tensor lies on a GPU and is not of float64, which none takes."""
    first = next((a for a in args if isinstance(a, Tensor)), None)
    return first is not None and first.is_cuda and first.dtype != torch.float64


def wanted(*args: Any) -> bool:
    """Whether an operation on these arguments would ask its kernel."""
    choice = _blocks[-1].choice if _blocks else "auto"
    return choice == "kernels" or choice == "auto" and on_gpu(args)


def graded(args: tuple) -> bool:
    """Whether a gradient is wanted of any of the tensors, or of rows stored as plain values."""
    given = (a.data if isinstance(a, Rows) else a for a in args)
    return torch.is_grad_enabled() and any(a.requires_grad for a in given if isinstance(a, Tensor))


def count(name: str, version: str) -> None:
    for block in _blocks:
        block.ran[name, version] += 1


def refuse(name: str, reason: str) -> tuple[bool, None]:
    for block in _blocks:
        block.refused[name] = reason
    return False, None
