"""Each finding of the doctor on good and on bad news, and the command as a user runs it."""

import json
import socket
import sys

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from minidsv41.cli import app
from minidsv41.course import doctor

GB = 10**9


@pytest.mark.parametrize(
    ("finding", "state", "said", "mend"),
    [
        (doctor.package(Requirement("torch>=2.11,<2.14"), "2.13.0+cpu"), "ok", "2.13.0+cpu", ""),
        (doctor.package(Requirement("torch>=2.11,<2.14"), "2.14.0"), "warn", "2.14.0 (<2.14,>=2.11)", "make lab"),
        (doctor.package(Requirement("torch>=2.11,<2.14"), None), "fail", "missing", "make lab"),
        (doctor.package(Requirement("triton>=3.6,<3.8"), None), "warn", "missing", "make lab"),
        (doctor.cores(2, None), "ok", "not set", ""),
        (doctor.cores(2, "8"), "warn", "OMP_NUM_THREADS=8", "at most 2"),
        (doctor.memory(16 * GB, 9 * GB), "ok", "16.0 GB, 9.0 GB", ""),
        (doctor.memory(16 * GB, 3 * GB), "warn", "3.0 GB", "train"),
        (doctor.memory(int(0.5 * GB), 9 * GB), "fail", "0.5 GB", "close programs"),
        (doctor.disk(5 * GB), "ok", "5.0 GB", ""),
        (doctor.disk(GB // 2), "warn", "0.5 GB", "make room"),
        (doctor.disk(0), "fail", "0.0 GB", "make room"),
        (doctor.triton("2.13.0+cpu", "3.7.1", "Linux"), "ok", "3.7.1", ""),
        (doctor.triton("2.11.0", "3.7.1", "Linux"), "warn", "3.7.1 with torch 2.11.0", "triton==3.6.0"),
        (doctor.triton("2.13.0", None, "Linux"), "warn", "no triton", "make lab"),
        (doctor.triton("2.13.0", None, "Darwin"), "ok", "no triton on Darwin", ""),
        (doctor.widgets([]), "fail", "no widget front end", "jupyterlab_widgets"),
        (doctor.fonts({"DejaVu Sans"}), "ok", "none", ""),
        (doctor.fonts({"DejaVu Sans", "Noto Sans CJK SC"}), "ok", "Noto Sans CJK SC", ""),
        (doctor.fonts({"Arial"}), "warn", "no DejaVu Sans", "matplotlib"),
    ],
)
def test_finding(finding, state, said, mend):
    assert finding.state == state
    assert said in finding.said
    assert mend in finding.mend
    assert bool(finding.mend) == (state != "ok")


def test_packages_follow_the_declared_ranges():
    wanted = ["torch>=2.11,<2.14", "pytest<1; extra == 'test'", "ipywidgets<1; extra == 'lessons'", "nothing-at-all>=1"]
    found = {f.name: f for f in doctor.packages(">=3.10", wanted)}
    assert found["python"].state == "ok"
    assert found["torch"].state == "ok"
    assert found["ipywidgets"].state == "warn"
    assert found["nothing-at-all"].state == "fail"
    assert "pytest" not in found


def test_a_wrong_python_and_a_missing_installation_fail():
    assert {f.name: f.state for f in doctor.packages("<3", ["torch"])}["python"] == "fail"
    assert [f.state for f in doctor.packages("", [])] == ["fail"]


def test_widget_front_end_is_found_by_its_package_file(tmp_path):
    described = tmp_path / doctor.WIDGET_MANAGER / "package.json"
    described.parent.mkdir(parents=True)
    described.write_text('{"version": "5.0.16"}', encoding="utf-8")
    assert doctor.widgets([tmp_path / "absent", tmp_path]) == doctor.Finding("widgets", "ok", "front end 5.0.16")


def test_a_container_limit_counts(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text(f"{GB}\n", encoding="ascii")
    monkeypatch.setattr(doctor, "CGROUP_LIMITS", [tmp_path / "absent", tmp_path / "memory.max"])
    assert doctor.memory_limit() == GB


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = doctor.port_free(port)
    assert (found.state, found.mend) == ("warn", "`make lab PORT=8888`")
    assert doctor.port_free(port).state == "ok"


def test_a_torch_that_does_not_load_is_a_finding(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert doctor.gpu().state == "fail"


def test_the_command(monkeypatch):
    good = [doctor.Finding("disk", "ok", "5 GB"), doctor.Finding("port", "warn", "taken", "another")]
    monkeypatch.setattr(doctor, "findings", lambda *, port: good)
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "ok    disk         5 GB",
        "warn  port         taken",
        "                   -> another",
        "1 ok, 1 warn, 0 fail",
    ]
    monkeypatch.setattr(doctor, "findings", lambda *, port: [*good, doctor.Finding("memory", "fail", "none", "buy")])
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)[2] == {"name": "memory", "state": "fail", "said": "none", "mend": "buy"}


def test_this_machine():
    found = {f.name: f for f in doctor.findings(port=0)}
    assert {"minidsv41", "cores", "memory", "disk", "gpu", "kernels", "widgets", "fonts", "port"} <= set(found)
    assert found["widgets"].state == "ok"
    assert found["port"].state == "ok"
