"""Write data/records/kernels_cpu.json: what Triton says on a machine without a GPU, for those that have no Triton.

Texts of lesson 12 under the interpreter, in this process; machine code by the compiler, in another one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date
from platform import machine, python_version
from typing import Any

from minidsv41.course.crossing import COMPUTED
from minidsv41.course.recorded import RECORD, interpreter
from minidsv41.paths import records_dir


def compiled() -> dict[str, Any]:
    """`minidsv41.kernels.lesson.listing` of a process that does not interpret."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "minidsv41.kernels.lesson.listing"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    if not interpreter():
        sys.exit("error: needs Triton, and TRITON_INTERPRET=1")
    import torch

    found = compiled()
    where = {"processor": machine(), "python": python_version(), "torch": torch.__version__}
    where |= {"triton": found.pop("triton"), "date": date.today().isoformat()}
    texts = {name: compute() for name, compute in COMPUTED.items()}
    content = {"kind": RECORD, "machine": where, "texts": texts, "compiled": found}
    path = records_dir() / f"{RECORD}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(path.name)


if __name__ == "__main__":
    main()
