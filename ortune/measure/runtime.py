"""Asks the installed onnxruntime what it is, in a child process, so that this one does not import it."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from ortune.measure.values import Runtime

CODE = """
import sys, msgspec
from ortune.measure.worker import read_runtime
sys.stdout.write("\\n" + msgspec.json.encode(read_runtime()).decode())
"""
TIMEOUT_S = 60.0


def read_installed_runtime() -> Runtime | None:
    """Return the installed onnxruntime's version and providers, or None where it cannot be imported."""
    try:
        done = subprocess.run([sys.executable, "-P", "-c", CODE], capture_output=True, timeout=TIMEOUT_S, check=True)
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=Runtime)
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError, IndexError):
        return None
