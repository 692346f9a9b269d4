"""How a kernel is started, looked at before it starts, and compiled for a card that is not there."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

INTERPRETED: bool = knobs.runtime.interpret  # Triton's CPU interpreter runs the kernels: TRITON_INTERPRET=1

TYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.uint8: "u8",
    torch.bool: "i1",
}


SINCE = {"FP8": 89, "PDL": 90}  # constexprs of kernels that say what a card can, and since which one


class Unsupported(ValueError):
    """A kernel does not take these arguments; the message says which and what is allowed."""


def require(holds: bool, message: str) -> None:
    """Raises Unsupported with the message unless `holds`."""
    if not holds:
        raise Unsupported(message)


@dataclass(frozen=True)
class Compiled:
    """A kernel compiled for one card: registers a thread, bytes of stack (spills) and of shared memory."""

    ptx: str
    sass: str
    registers: int
    stack: int
    shared: int

    def count(self, instruction: str) -> int:
        """How often an instruction stands in the machine code, such as HGMMA or LDG."""
        return len(re.findall(rf"\b{instruction}\b", self.sass))


@dataclass(frozen=True)
class Launch:
    """One kernel with its grid, arguments by name, and options (num_warps, num_stages)."""

    kernel: Any
    grid: tuple[int, ...]
    args: dict[str, Any]
    options: dict[str, Any]

    def run(self) -> None:
        self.kernel[self.grid](**self.args, **self.options)

    def compile(self, capability: int) -> Compiled:
        """Compile for sm_`capability`, without a GPU. Raises RuntimeError under the interpreter."""
        if INTERPRETED:
            raise RuntimeError("TRITON_INTERPRET=1: kernels are interpreted in this process and cannot be compiled")
        signature, constants, hints = {}, {}, {}
        for place, parameter in enumerate(self.kernel.params):
            name = parameter.name
            value = self.args.get(name, parameter.default)
            if name in SINCE:
                value = capability >= SINCE[name]
            kind = "constexpr" if parameter.is_constexpr else argument_type(value)
            signature[name] = kind
            even = kind.startswith("*") or (isinstance(value, int) and value % 16 == 0)
            if kind == "constexpr":
                constants[(place,)] = value
            elif even and not parameter.do_not_specialize:
                hints[(place,)] = [["tt.divisibility", 16]]
        source = ASTSource(self.kernel, signature, constants, hints)
        built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(self.options))
        usage, sass = disassembled(built.asm["cubin"])
        found = {k: int(v) for k, v in re.findall(r"(REG|STACK|SHARED):(\d+)", usage)}
        return Compiled(built.asm["ptx"], sass, found["REG"], found["STACK"], built.metadata.shared)


def argument_type(value: Any) -> str:
    """The type of an argument as the compiler names it; 1 and None become constants, as they do in a launch."""
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[value.dtype]
    if value is None or isinstance(value, bool) or value == 1:
        return "constexpr"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "fp32"


def disassembled(cubin: bytes) -> tuple[str, str]:
    """Resource usage and machine code of a compiled kernel, by the tools that come with triton."""
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        commands = ([tools / "cuobjdump", "-res-usage", path], [tools / "nvdisasm", "-c", path])
        usage, sass = (subprocess.run(c, capture_output=True, text=True, check=True).stdout for c in commands)
    return usage, sass


RECORDING: list[list[Launch]] = []
CARDS: list[tuple[int, int]] = []  # of each block that records, the card that meta tensors stand for


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    *,
    num_warps: int = 4,
    num_stages: int = 3,
    maxnreg: int | None = None,
    early: bool = False,
    **args: Any,
) -> None:
    """Start a kernel; within `recorded()`, only note what would have been started. maxnreg: registers a thread.

    early: programs may start before the kernel before it has ended, and wait for that themselves (`gdc_wait`).
    """
    options = {"num_warps": num_warps, "num_stages": num_stages}
    options |= {} if maxnreg is None else {"maxnreg": maxnreg}
    call = Launch(kernel, grid, args, options | ({"launch_pdl": True} if early else {}))
    if RECORDING:
        RECORDING[-1].append(call)
    elif all(grid):
        call.run()


@contextmanager
def recorded(card: tuple[int, int] = (0, 0)) -> Iterator[list[Launch]]:
    """Collect the launches of the block instead of running them: tensors may be on the meta device.

    card: whose launches they shall be, by its capability; (0, 0): as without a card.
    """
    RECORDING.append([])
    CARDS.append(card)
    try:
        yield RECORDING[-1]
    finally:
        RECORDING.pop()
        CARDS.pop()


def capability(device: torch.device) -> tuple[int, int]:
    """Of the GPU, or of that which meta tensors stand for; (0, 0) of none."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)
    return CARDS[-1] if CARDS and device.type == "meta" else (0, 0)


def starts_early(device: torch.device) -> bool:
    """Whether the card can start a kernel before the one before it has ended (Hopper and later)."""
    return capability(device) >= (9, 0)


def native_fp8(device: torch.device) -> bool:
    """Whether the card converts E4M3 by itself (Ada, Hopper and later); elsewhere integers do it."""
    return capability(device) >= (8, 9)


def dot_type(dtype: torch.dtype) -> tl.dtype:
    """What `tl.dot` multiplies for activations of `dtype`: float32 in full, or bfloat16.

    The interpreter cannot multiply bfloat16: values are rounded by loads and stores, and multiplied as float32.
    """
    require(dtype in (torch.float32, torch.bfloat16), f"dtype {dtype}: kernels take float32 and bfloat16")
    return tl.float32 if dtype == torch.float32 or INTERPRETED else tl.bfloat16
