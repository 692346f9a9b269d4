"""The files that say what to install agree with each other."""

from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

tomllib = pytest.importorskip("tomllib", reason="Python 3.11 and newer read TOML")
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
DIRECT = [Requirement(r) for r in [*PROJECT["dependencies"], *EXTRAS["lessons"], *EXTRAS["test"]]]


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    wanted = [Requirement(line) for line in lines if not line.startswith("#")]
    assert all([s.operator for s in r.specifier] == ["=="] for r in wanted)
    return {canonical(r.name): Version(next(iter(r.specifier)).version) for r in wanted}


def canonical(name: str) -> str:
    return name.lower().replace("_", "-")


@pytest.mark.parametrize("wanted", DIRECT, ids=lambda r: r.name)
def test_every_direct_dependency_is_pinned_within_its_range(wanted):
    assert pins()[canonical(wanted.name)] in wanted.specifier


def test_torch_and_triton_have_upper_bounds():
    for wanted in DIRECT:
        if wanted.name in ("torch", "triton"):
            assert Version("99") not in wanted.specifier
            assert all(s.operator in (">=", "<") for s in wanted.specifier)


def test_conda_brings_python_and_pip_and_leaves_the_rest_to_pyproject():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    *own, by_pip = conda["dependencies"]
    assert [spec.split("=")[0].rstrip("><") for spec in own] == ["python", "pip"]
    (line,) = by_pip["pip"]
    editable, extras = line.removesuffix("]").split("[")
    assert editable == "-e ."
    assert set(extras.split(",")) <= set(EXTRAS)
    assert {"lessons", "test"} <= set(extras.split(","))
