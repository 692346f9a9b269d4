"""The gates themselves: nothing leaves this machine, and nothing needs triton."""

import os
import pkgutil
import socket
import subprocess
import sys
import urllib.request

import loopback_only
import pytest

import minidsv41

ELSEWHERE = "192.0.2.1"  # reserved for documentation: no machine has it


@pytest.mark.parametrize(
    "reach",
    [
        lambda: socket.create_connection((ELSEWHERE, 80), timeout=0.1),
        lambda: socket.socket().connect_ex((ELSEWHERE, 80)),
        lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", (ELSEWHERE, 53)),
        lambda: socket.getaddrinfo("example.invalid", 80),
        lambda: socket.gethostbyname("example.invalid"),
        lambda: urllib.request.urlopen("http://example.invalid/", timeout=0.1),
    ],
    ids=["create_connection", "connect_ex", "sendto", "getaddrinfo", "gethostbyname", "urlopen"],
)
def test_no_way_out(reach):
    with pytest.raises(loopback_only.NetworkBlocked, match="only loopback"):
        reach()


def test_loopback_is_open():
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(("localhost", server.getsockname()[1]))
        there, _ = server.accept()
        with client, there:
            client.sendall(b"here")
            assert there.recv(4) == b"here"


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=120
    )


def test_child_processes_are_blocked_too():
    done = run(f"import socket; socket.create_connection(('{ELSEWHERE}', 80), timeout=0.1)")
    assert done.returncode == 1
    assert "NetworkBlocked" in done.stderr


def test_every_module_imports_without_triton():
    modules = [m.name for m in pkgutil.walk_packages(minidsv41.__path__, "minidsv41.")]
    modules = [m for m in modules if not m.startswith("minidsv41.kernels.") and not m.endswith("__main__")]
    assert "minidsv41.config" in modules
    done = run("\n".join(f"import {m}" for m in modules), MINIDSV41_WITHOUT="triton")
    assert done.returncode == 0, done.stderr


def test_triton_can_be_blocked():
    done = run("import triton", MINIDSV41_WITHOUT="triton")
    assert "ModuleNotFoundError" in done.stderr
