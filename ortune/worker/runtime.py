"""Examines the installed onnxruntime by running it: its version, and which of its providers work.

The parent imports neither onnxruntime nor the libraries of its providers: they start threads, cannot be unloaded, and
may crash the process. It asks child processes instead.
"""

from __future__ import annotations

import base64
import contextlib
import re
import signal
import subprocess

import msgspec

from ortune.errors import HostError
from ortune.interpreter import PYTHON
from ortune.knobs.config import CUDA_BASED, PROVIDER_OF, Config
from ortune.replaceable import replaceable
from ortune.sanitize import printable
from ortune.worker.child_process import TELEMETRY_OFF, make_environment
from ortune.worker.owned_folder import OwnedFolder
from ortune.worker.plugins import find_plugin_versions, list_built_in
from ortune.worker.session_info import Runtime
from ortune.worker.session_log import remove_colors

READ_RUNTIME = """
import sys, msgspec
from ortune.prctl import die_with_parent
die_with_parent()
from ortune.worker.runtime import read_runtime
sys.stdout.write("\\n" + msgspec.json.encode(read_runtime()).decode())
"""
READ_RUNTIME_TIMEOUT_S = 60.0
READ_RUNTIME_ATTEMPTS = 2
"""A process may be ended for reasons of its own, such as lack of memory for a moment."""

RUNTIME_PROBE = """
import sys
import msgspec
from ortune.prctl import die_with_parent
die_with_parent()
from ortune.knobs.config import Config
from ortune.worker.session import make_session
config = msgspec.json.decode(sys.argv[2], type=Config)
session = make_session(sys.argv[1], config)
sys.exit(0 if session.get_providers()[0] == config.provider else 3)
"""
PROBE_TIMEOUT_S = 120.0
"""TensorRT needs long to start, and builds an engine."""

PROBE_MODEL = "CAg6PwoOCgF4CgF4EgF5IgNBZGQSAXBaFAoBeBIPCg0IARIJCgIIBAoDCOgHYhQKAXkSDwoNCAESCQoCCAQKAwjoB0IECgAQEg=="
"""An ONNX file with one Add node, in Base64. `tests/test_providers.py` generates it."""

NOT_FOR_SEARCHES = frozenset({"AzureExecutionProvider"})
"""Providers that a search ignores: this one calls a remote service."""


def read_runtime() -> Runtime:
    """Return the versions of the software in this process. It imports onnxruntime: call it in a child process."""
    import platform

    import onnxruntime

    from ortune import __version__
    from ortune.worker.gpu import list_gpus

    providers, plugins = list_built_in(), find_plugin_versions()
    known = {*providers, *(PROVIDER_OF[package] for package in plugins)}
    gpus, driver = list_gpus() if CUDA_BASED & known else ((), "")
    return Runtime(
        onnxruntime=onnxruntime.__version__,
        providers=tuple(providers),
        python=platform.python_version(),
        ortune=__version__,
        plugins=plugins,
        gpus=gpus,
        gpu_driver=driver,
    )


def read_installed_runtime() -> Runtime | None:
    """Return the result of `read_runtime` in a child process, or None if onnxruntime cannot be imported there."""
    found = ask_for_runtime()
    return None if isinstance(found, str) else found


def require_installed_runtime() -> Runtime:
    """Return the result of `read_runtime` in a child process.

    Raises:
        HostError: onnxruntime is installed, but cannot be imported.
    """
    found = ask_for_runtime()
    if isinstance(found, str):
        raise HostError(
            f"A process that imports onnxruntime failed: {found}.",
            f"Check what this prints: {' '.join(PYTHON)} -c 'import onnxruntime; print(onnxruntime.__version__)'",
        )
    return found


@replaceable
def ask_for_runtime() -> Runtime | str:
    """Return the result of `read_runtime` in a child process, or why there is none. It is launched again if it dies."""
    command = [*PYTHON, "-c", READ_RUNTIME]
    fault = ""
    for _ in range(READ_RUNTIME_ATTEMPTS):
        try:
            child = subprocess.run(
                command,
                capture_output=True,
                env={**make_environment(), **TELEMETRY_OFF},
                timeout=READ_RUNTIME_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it took longer than {READ_RUNTIME_TIMEOUT_S:.0f} s"
        except OSError as error:
            fault = f"it cannot be started: {error.strerror}"
            continue
        if child.returncode == 0:
            with contextlib.suppress(msgspec.DecodeError, IndexError):
                return msgspec.json.decode(child.stdout.splitlines()[-1], type=Runtime)
        fault = describe_end(child.returncode, child.stderr)
        if child.returncode >= 0:
            break
    return fault


def describe_end(status: int, log: bytes) -> str:
    """Return, in one line, how a Python process ended."""
    if status < 0:
        name = signal.Signals(-status).name if -status in {*signal.Signals} else f"signal {-status}"
        return f"it was ended by {name}"
    lines = [line for line in remove_colors(log.decode(errors="replace")).splitlines() if line.strip()]
    return printable(lines[-1].strip()[:200].rstrip(".")) if lines else f"it exited with status {status}"


def find_provider_fault(config: Config) -> str:
    """Return a human-readable reason why a config's first provider does not work on this host, or "" if it works.

    A child process creates a session with the config, on a graph of one node.
    """
    try:
        with OwnedFolder() as folder:
            path = folder.path / "probe.onnx"
            path.write_bytes(base64.b64decode(PROBE_MODEL))
            child = subprocess.run(
                [*PYTHON, "-c", RUNTIME_PROBE, str(path), msgspec.json.encode(config).decode()],
                capture_output=True,
                text=True,
                errors="replace",  # libraries print what they like
                env=make_environment(folder.path),
                timeout=PROBE_TIMEOUT_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return f"it did not load a graph of one node within {PROBE_TIMEOUT_S:.0f} s"
    except OSError as error:
        return f"cannot start a process: {error.strerror}"
    if child.returncode == 0:
        return ""
    return explain_provider_fault(child.stdout + child.stderr, child.returncode)


def explain_provider_fault(log: str, status: int) -> str:
    """Return, in one line, why a provider does not work.

    Args:
        log: Output of the child process.
        status: Its exit status.
    """
    text = remove_colors(log)
    library = re.search(r"(\S+\.(?:so|dll)[\w.]*): cannot open shared object file", text) or re.search(
        r'which depends on "([^"]+)" which is missing', text
    )
    if library:
        return f"the library {library[1]} is missing"
    errors = [line for line in text.splitlines() if re.search(r"\[E:|Error|error|FAIL", line)]
    if errors:
        line = re.sub(r".*\[ONNXRuntimeError\] : \d+ : |^.*?\] |^ortune\.errors\.\w+: ", "", errors[-1]).strip()
        return line[:200].rstrip(".")
    if status == 3:
        return "ONNX Runtime created the session without it"
    return f"the process exited with status {status}"
