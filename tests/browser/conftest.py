"""A JupyterLab as `make lab` starts it, and a chromium to look at it."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
MISSING = "no chromium: install it (on Debian `apt-get install chromium`) and run `make browser` again"


def pytest_terminal_summary(terminalreporter):
    if CHROMIUM is None:
        terminalreporter.section("THE BROWSER TESTS DID NOT RUN", sep="!", yellow=True, bold=True)
        terminalreporter.line(MISSING, yellow=True, bold=True)


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip(MISSING)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def workbook(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("workbook")


@pytest.fixture(scope="session")
def lab(browser, workbook) -> Callable[[str], str]:
    """`make lab` on a workbook and settings of its own. -> the address of a file, from the address that it prints"""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = workbook.parent / "lab.log"
    command = ["make", "-C", str(ROOT), "lab", f"PORT={port}", f"WORKBOOK={workbook}"]
    command += [f"VENV={sys.prefix}", f"--old-file={sys.prefix}/.installed"]  # serve from the environment under test
    settings = {"JUPYTER_CONFIG_DIR": str(workbook.parent / "settings")}
    with log.open("w", encoding="utf-8") as out:
        server = subprocess.Popen(
            command, env=os.environ | settings, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        token = printed_token(log, port, server)
        yield lambda name: f"http://127.0.0.1:{port}/lab/tree/{name}?reset&token={token}"
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(timeout=30)


def printed_token(log: Path, port: int, server: subprocess.Popen) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        if printed := re.search(rf"http://127\.0\.0\.1:{port}/lab\?token=(\w+)", log.read_text(encoding="utf-8")):
            return printed[1]
        time.sleep(0.2)
    raise AssertionError(f"`make lab` printed no address with a token:\n{log.read_text(encoding='utf-8')}")
