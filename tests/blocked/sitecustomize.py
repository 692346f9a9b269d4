"""Python runs this first in every process that has this folder on PYTHONPATH: notebook kernels and subprocesses."""

import os
import sys

import loopback_only

loopback_only.install()
for name in filter(None, os.environ.get("MINIDSV41_WITHOUT", "").split(",")):
    sys.modules[name] = None  # `import name` raises ModuleNotFoundError
