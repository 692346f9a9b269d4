"""The wheel holds the whole package: built from a copy, installed where nothing of ours is, and run there."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import minidsv41

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def run(*command: object, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["JUPYTER_PATH"] = str(Path(sys.prefix) / "share" / "jupyter")
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """An environment's bin folder. It borrows the dependencies of this one, but not its minidsv41."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "minidsv41", source / "minidsv41", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet"]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source, cwd=folder)
    (wheel,) = folder.glob("minidsv41-*.whl")

    home = folder / "environment"
    venv.create(home)
    run(*pip, "--python", home, "install", "--no-deps", wheel, cwd=folder)
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (own,) = home.rglob("site-packages")
    (own / "borrowed.pth").write_text("\n".join(borrowed), encoding="utf-8")
    return home / ("Scripts" if os.name == "nt" else "bin")


EVERY_MODULE = """
import importlib, pkgutil, sys, minidsv41
assert minidsv41.__file__.startswith(sys.prefix), minidsv41.__file__
for m in pkgutil.walk_packages(minidsv41.__path__, "minidsv41."):
    if not m.name.endswith("__main__") and not m.name.startswith("minidsv41.kernels."):
        importlib.import_module(m.name)
        print(m.name)
"""


def test_every_module_of_the_checkout_is_there_and_imports(installed, tmp_path):
    found = set(run(installed / "python", "-c", EVERY_MODULE, cwd=tmp_path).split())
    files = (p.relative_to(ROOT).with_suffix("") for p in (ROOT / "minidsv41").rglob("*.py"))
    expected = {".".join(p.parts).removesuffix(".__init__") for p in files} - {"minidsv41", "minidsv41.__main__"}
    assert found == {m for m in expected if not m.startswith("minidsv41.kernels.")}


def test_the_command_runs(installed, tmp_path):
    assert run(installed / "minidsv41", "--version", cwd=tmp_path) == f"minidsv41 {minidsv41.__version__}\n"


def test_the_doctor_knows_the_declared_ranges(installed, tmp_path):
    found = {f["name"]: f for f in json.loads(run(installed / "minidsv41", "doctor", "--json", cwd=tmp_path))}
    assert found["torch"]["state"] == "ok"
    assert "<2.14" in found["torch"]["said"]
