"""A first look at a GPU: the tests of the kernels, every benchmark case on fresh inputs, and one time an operation.

The tests use small shapes; the cases have the released widths. Ends with status 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from minidsv41.kernels.bench.case import Case
from minidsv41.kernels.bench.run import cases
from minidsv41.kernels.bench.timing import GraphTimer, Timer, first_line

LONGEST = 1 << 30  # bytes: larger cases only repeat smaller ones


def tests(seconds: float) -> bool:
    """Run tests/kernels, a process for each file, since compiling is most of it; the last lines are printed."""
    files, right = sorted(Path("tests/kernels").glob("test_*.py")), True
    with ThreadPoolExecutor(len(files)) as pool:
        for file, (passed, lines) in zip(files, pool.map(partial(tested, seconds=seconds), files), strict=True):
            print(f"{file.name}: " + "\n".join(lines[-1 if passed else -40 :]), flush=True)
            right &= passed
    return right


def tested(file: Path, *, seconds: float) -> tuple[bool, list[str]]:
    """Whether the tests of a file pass in time, and what they print."""
    command = [sys.executable, "-u", "-m", "pytest", str(file), "-v", "--tb=short", "-m", "not slow"]
    command += ["-p", "no:cacheprovider"]
    try:
        found = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds)
    except subprocess.TimeoutExpired as late:
        return False, [*(late.stdout or b"").decode().splitlines(), f"not done after {seconds:.0f} s"]
    return found.returncode == 0, found.stdout.decode().strip().splitlines()


def errors(case: Case, device: torch.device, seeds: int) -> Iterator[tuple[float, float]]:
    """(error, tolerance) of each seed's inputs."""
    for seed in range(seeds):
        contest = case.build(device, 1000 + seed)
        yield float(contest.error()), contest.tolerance


def check(case: Case, device: torch.device, seeds: int, timer: Timer | None) -> bool:
    """Print one line: the largest error, and µs of the kernel unless there is no timer."""
    try:
        found = list(errors(case, device, seeds))
        right = all(error <= tolerance for error, tolerance in found)
        text = f"error {max((e for e, _ in found), key=lambda e: (e != e, e)):.1e} of {found[0][1]:.0e}"
        if timer and right:
            text += f", {timer([case.build(device, 0).runs['kernel']]).median:.4g} µs"
    except Exception as error:
        right, text = False, first_line(error)
    print(f"{'right' if right else 'WRONG'}  {case.name}: {text}", flush=True)
    return right


def chosen(only: str) -> Iterator[tuple[Case, bool]]:
    """The cases, and whether they are the first of their operation: that one is timed."""
    seen = set()
    found, missing = cases(only)
    for text in missing:
        print(f"cannot be imported: {text}")
    for case in found.values():
        if case.bytes <= LONGEST:
            yield case, case.operation not in seen
            seen.add(case.operation)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a part of the name of a case or of its file")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=5.0, help="for the tests; half of it for the cases")
    parser.add_argument("--skip-tests", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no GPU to look at; the same tests run in Triton's interpreter: pytest tests/kernels")
    right = args.skip_tests or tests(60 * args.minutes)
    device, end = torch.device("cuda"), time.monotonic() + 30 * args.minutes
    with torch.cuda.stream(torch.cuda.Stream()):
        for case, first in chosen(args.only):
            if time.monotonic() > end:
                print(f"not checked: {case.name}")
                continue
            right &= check(case, device, args.seeds, GraphTimer(repeats=5) if first else None)
            gc.collect()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
    sys.exit(not right)


if __name__ == "__main__":
    main()
