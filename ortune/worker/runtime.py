"""Asks the installed onnxruntime what it is and which of its providers work, in child processes.

This process imports none of it: libraries of providers stay loaded, start threads, and may take it down.
"""

from __future__ import annotations

import base64
import importlib.metadata
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from ortune.worker.session_info import Runtime

CODE = """
import sys, msgspec
from ortune.worker.main import read_runtime
sys.stdout.write("\\n" + msgspec.json.encode(read_runtime()).decode())
"""
TIMEOUT_S = 60.0

PROBE = """
import sys
from ortune.knobs.config import Config
from ortune.knobs.providers import chain_of
from ortune.worker.session import make_session
session = make_session(sys.argv[1], Config(providers=chain_of(sys.argv[2])))
sys.exit(0 if session.get_providers()[0] == sys.argv[2] else 3)
"""
PROBE_TIMEOUT_S = 120.0
"""TensorRT takes a while to start, and builds an engine."""

PROBE_MODEL = "CAg6PwoOCgF4CgF4EgF5IgNBZGQSAXBaFAoBeBIPCg0IARIJCgIIBAoDCOgHYhQKAXkSDwoNCAESCQoCCAQKAwjoB0IECgAQEg=="
"""An Add, as an ONNX file: `tests/test_providers.py` makes it."""

NOT_FOR_SEARCHES = frozenset({"AzureExecutionProvider"})
"""Calls a service elsewhere."""

DISTRIBUTION = re.compile(r"onnxruntime(-gpu|-openvino|-directml|-qnn|-rocm|-migraphx|-training|-silicon)?")


def read_installed_runtime() -> Runtime | None:
    """Return the installed onnxruntime's version and providers, or None where it cannot be imported."""
    try:
        done = subprocess.run([sys.executable, "-P", "-c", CODE], capture_output=True, timeout=TIMEOUT_S, check=True)
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=Runtime)
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError, IndexError):
        return None


def installed_version() -> str:
    """Return the version of the installed onnxruntime without importing it; empty where it is not told."""
    for distribution in importlib.metadata.distributions():
        if DISTRIBUTION.fullmatch(str(distribution.metadata["Name"]).lower().replace("_", "-")):
            return distribution.version
    return ""


def find_provider_fault(provider: str) -> str:
    """Return why a provider of the installed onnxruntime does not run here, for people; empty if it does."""
    try:
        with tempfile.TemporaryDirectory(prefix="ortune-") as folder:
            path = Path(folder) / "probe.onnx"
            path.write_bytes(base64.b64decode(PROBE_MODEL))
            done = subprocess.run(
                [sys.executable, "-P", "-c", PROBE, str(path), provider],
                capture_output=True,
                text=True,
                timeout=PROBE_TIMEOUT_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return f"it did not run a graph of one node within {PROBE_TIMEOUT_S:.0f} s"
    except OSError as error:
        return f"cannot start a process: {error.strerror}"
    if done.returncode == 0:
        return ""
    return explain_provider_fault(done.stdout + done.stderr, done.returncode)


def explain_provider_fault(log: str, status: int) -> str:
    """Return the cause that onnxruntime has logged, in a line."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", log)
    library = re.search(r"(\S+\.(?:so|dll)[\w.]*): cannot open shared object file", text) or re.search(
        r'which depends on "([^"]+)" which is missing', text
    )
    if library:
        return f"the library {library[1]} is missing"
    errors = [line for line in text.splitlines() if re.search(r"\[E:|Error|error|FAIL", line)]
    if errors:
        line = re.sub(r".*\[ONNXRuntimeError\] : \d+ : |^.*?\] ", "", errors[-1]).strip()
        return line[:200]
    return f"the process ended with status {status}" if status != 3 else "ONNX Runtime left it out without a word"


def read_runtime() -> Runtime:
    """Return the versions of what this worker runs."""
    import platform

    import onnxruntime

    from ortune import __version__

    return Runtime(
        onnxruntime=onnxruntime.__version__,
        providers=tuple(onnxruntime.get_available_providers()),
        python=platform.python_version(),
        ortune=__version__,
    )
