"""For tests and notebooks alike: one thread, the same examples each time, and no way out of this machine, here and in
every process started."""

import os
import sys
from pathlib import Path

BLOCKED = str(Path(__file__).parent / "tests" / "blocked")

os.environ.setdefault("OMP_NUM_THREADS", "1")
if not Path("/dev/nvidiactl").exists():  # before triton is imported anywhere
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [BLOCKED, os.environ.get("PYTHONPATH")]))
sys.path.insert(0, BLOCKED)

import loopback_only  # noqa: E402
from hypothesis import settings  # noqa: E402

loopback_only.install()
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")  # other examples: pytest --hypothesis-profile=default
