"""What the installed onnxruntime has, as a child process finds out."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortune import HostError
from ortune.worker import runtime
from ortune.worker.providers import choose_providers
from ortune.worker.runtime import read_installed_runtime, require_installed_runtime

ABORTED = "import os\nos.abort()"


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (ABORTED, "it was ended by SIGABRT"),
        ("raise ImportError('libcudart.so.12: cannot open shared object file')", "libcudart"),
        ("import sys\nsys.exit(4)", "it exited with status 4"),
    ],
    ids=["aborted", "exception", "status"],
)
def test_an_onnxruntime_that_cannot_be_imported_is_no_onnxruntime_for_the_cpu_alone(
    program: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search would have tried the CPU alone, and called the default the best of all candidates."""
    monkeypatch.setattr(runtime, "READ_RUNTIME", program)
    assert read_installed_runtime() is None
    with pytest.raises(HostError, match=reason):
        require_installed_runtime()
    with pytest.raises(HostError, match=reason):
        choose_providers(None)
    assert choose_providers(["cpu"]).names == ("CPUExecutionProvider",)


def test_a_process_that_is_ended_once_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "mark"
    program = f"import os, pathlib\nmark = pathlib.Path({str(mark)!r})\n"
    program += "if not mark.exists():\n    mark.touch()\n    os.kill(os.getpid(), 9)\n"
    monkeypatch.setattr(runtime, "READ_RUNTIME", program + runtime.READ_RUNTIME)
    assert require_installed_runtime().onnxruntime
    assert mark.exists()


def test_one_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "READ_RUNTIME", "import time\ntime.sleep(100)")
    monkeypatch.setattr(runtime, "READ_RUNTIME_TIMEOUT_S", 0.5)
    with pytest.raises(HostError, match="it took longer than"):
        require_installed_runtime()
