"""What this machine has and lacks for the course, and how to mend each finding. Bug reports paste its text."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Literal

import psutil
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from minidsv41 import __version__

GB = 10**9
INSTALL = 'run `make lab` again, or `pip install -e ".[lessons]"` in the checkout'
TRITON_OF_TORCH = {"2.11": "3.6.0", "2.12": "3.7.0", "2.13": "3.7.1"}
WIDGET_MANAGER = "@jupyter-widgets/jupyterlab-manager"
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Finding:
    """`state` "fail" stops the course, "warn" spoils a part of it. `mend` is empty when all is well."""

    name: str
    state: Literal["ok", "warn", "fail"]
    said: str
    mend: str = ""


def findings(*, port: int = 8888) -> list[Finding]:
    """Everything that the course depends on, measured here and now. Nothing is changed and no one is contacted."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return [
        *packages(*declared()),
        cores(len(usable), os.environ.get("OMP_NUM_THREADS")),
        memory(memory_limit(), psutil.virtual_memory().available),
        disk(shutil.disk_usage(Path.cwd()).free),
        gpu(),
        triton(version_of("torch"), version_of("triton"), platform.system()),
        widgets(labextension_dirs()),
        fonts(font_names()),
        port_free(port),
    ]


def declared() -> tuple[str, list[str]]:
    """Python range and requirements in the installed metadata. -> ("", []) when the package is not installed"""
    try:
        return metadata.metadata("minidsv41")["Requires-Python"], metadata.requires("minidsv41") or []
    except metadata.PackageNotFoundError:
        return "", []


def version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def packages(python_range: str, requirements: list[str]) -> list[Finding]:
    """Python and each requirement of the package and its lessons against the range that they declare."""
    found = [Finding("minidsv41", "ok", f"{__version__} on {platform.platform()}")]
    if not requirements:
        return [Finding("minidsv41", "fail", f"{__version__}, not installed in this environment", INSTALL)]
    python = platform.python_version()
    fits = SpecifierSet(python_range).contains(python)
    mend = "" if fits else "choose another interpreter: `make clean`, then `make lab PYTHON=python3.11`"
    found.append(Finding("python", "ok" if fits else "fail", f"{python} ({python_range})", mend))
    for text in requirements:
        wanted = Requirement(text)
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in ("", "lessons")):
            found.append(package(wanted, version_of(wanted.name)))
    return found


def package(wanted: Requirement, installed: str | None) -> Finding:
    if installed is None:
        state = "warn" if wanted.name == "triton" else "fail"
        return Finding(wanted.name, state, f"missing ({wanted.specifier})", INSTALL)
    fits = wanted.specifier.contains(Version(installed).public, prereleases=True)
    return Finding(wanted.name, "ok" if fits else "warn", f"{installed} ({wanted.specifier})", "" if fits else INSTALL)


def cores(usable: int, threads: str | None) -> Finding:
    said = f"{usable} usable, OMP_NUM_THREADS={threads or 'not set'}"
    if threads is not None and threads.isdigit() and int(threads) > usable:
        return Finding(
            "cores", "warn", said, f"set OMP_NUM_THREADS to at most {usable}: spinning threads slow each other"
        )
    return Finding("cores", "ok", said)


def memory_limit() -> int:
    """Bytes of this machine, or of the container when that is less."""
    total = psutil.virtual_memory().total
    for path in map(Path, CGROUP_LIMITS):
        if path.is_file() and (text := path.read_text(encoding="ascii").strip()).isdigit():
            total = min(total, int(text))
    return total


def memory(total: int, available: int) -> Finding:
    free = min(total, available)
    said = f"{total / GB:.1f} GB, {free / GB:.1f} GB of it free"
    if free < 1 * GB:
        return Finding("memory", "fail", said, "a lesson needs about 1 GB: close programs or other notebooks' kernels")
    if free < 4 * GB:
        return Finding("memory", "warn", said, "enough for lessons; close programs before `minidsv41 train` (3 GB)")
    return Finding("memory", "ok", said)


def disk(free: int) -> Finding:
    said = f"{free / GB:.1f} GB free here"
    if free < 0.2 * GB:
        return Finding("disk", "fail", said, "notebooks can't be saved safely: make room")
    if free < 1 * GB:
        return Finding("disk", "warn", said, "make room before `minidsv41 train`, which writes checkpoints")
    return Finding("disk", "ok", said)


def gpu() -> Finding:
    """What torch sees. A torch that can't be imported is found here."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding("gpu", "fail", f"torch does not load: {error}", INSTALL)
    if not torch.cuda.is_available():
        return Finding("gpu", "ok", "none; no lesson needs one")
    seen = torch.cuda.get_device_properties(0)
    return Finding("gpu", "ok", f"{seen.name}, {seen.total_memory / GB:.0f} GB, sm_{seen.major}{seen.minor}")


def triton(torch: str | None, installed: str | None, system: str) -> Finding:
    """Whether the kernels can run, and whether triton is the one that this torch was built with."""
    if system != "Linux":
        return Finding("kernels", "ok", f"no triton on {system}; the kernel lesson shows recorded output")
    if installed is None or util.find_spec("triton") is None:
        return Finding("kernels", "warn", "no triton: the kernel lesson shows recorded output", INSTALL)
    pair = TRITON_OF_TORCH.get(".".join((torch or "").split(".")[:2]))
    if pair is not None and installed != pair:
        return Finding("kernels", "warn", f"triton {installed} with torch {torch}", f"`pip install triton=={pair}`")
    return Finding("kernels", "ok", f"triton {installed} with torch {torch}")


def labextension_dirs() -> list[Path]:
    try:
        from jupyter_core.paths import jupyter_path
    except ImportError:
        return []
    return [Path(p) for p in jupyter_path("labextensions")]


def widgets(dirs: list[Path]) -> Finding:
    """The half of ipywidgets that runs in the browser."""
    for folder in dirs:
        described = folder / WIDGET_MANAGER / "package.json"
        if described.is_file():
            version = json.loads(described.read_text(encoding="utf-8"))["version"]
            return Finding("widgets", "ok", f"front end {version}")
    mend = "`pip install jupyterlab_widgets` where JupyterLab runs, then restart it; sliders show as text until then"
    return Finding("widgets", "fail", "JupyterLab has no widget front end", mend)


def font_names() -> set[str]:
    try:
        from matplotlib import font_manager
    except ImportError:
        return set()
    return {entry.name for entry in font_manager.fontManager.ttflist}


def fonts(names: set[str]) -> Finding:
    if "DejaVu Sans" not in names:
        return Finding("fonts", "warn", "no DejaVu Sans", "reinstall matplotlib, which brings it")
    chinese = min((name for name in names if "CJK" in name), default="none, and no figure needs it")
    return Finding("fonts", "ok", f"DejaVu Sans; Chinese: {chinese}")


def port_free(port: int) -> Finding:
    with socket.socket() as probe:
        if os.name == "posix":  # as the server does: a port that was closed a moment ago is free
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            said = f"{port} can't be used: {error.strerror}"
            return Finding("port", "warn", said, f"`make lab PORT={8889 if port == 8888 else 8888}`")
    return Finding("port", "ok", f"{port} is free")


def as_text(found: list[Finding]) -> str:
    lines = []
    for f in found:
        lines.append(f"{f.state:5} {f.name:12} {f.said}")
        if f.mend:
            lines.append(f"{'':5} {'':12} -> {f.mend}")
    counts = ", ".join(f"{sum(f.state == state for f in found)} {state}" for state in ("ok", "warn", "fail"))
    return "\n".join([*lines, counts])


def as_json(found: list[Finding]) -> str:
    return json.dumps([asdict(f) for f in found], indent=2)


def exit_status(found: list[Finding]) -> int:
    return int(any(f.state == "fail" for f in found))
