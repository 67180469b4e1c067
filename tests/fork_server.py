"""Runs the command line, or Python code, in forks of one process, which has imported ortune already.

Otherwise, most tests of messages would spend their time on importing Typer, Rich, NumPy and Optuna. A fork has its own
working directory, environment, output and memory, as a new process has. It reads models itself, the installed
onnxruntime is asked once for all forks, and pages have no script that draws charts. What depends on processes is tested
with `subprocess`: interrupts, closed output, imports.

The process reads a request from stdin, one JSON object per line, and writes the exit code to stdout.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.util
import json
import os
import pkgutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HEAVY = (
    "onnx",
    "optuna",
    "pydantic",
    "scipy.linalg",
    "scipy.optimize",
    "scipy.special",
    "typer.main",
    "typer._adapters",
)
"""What commands import when they run. Some versions of typer need no pydantic, and lack the last module."""


def import_modules() -> None:
    """Import what commands import, without what runs inside of other programs."""
    import ortune

    for name in HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for module in pkgutil.walk_packages(ortune.__path__, "ortune."):
        if not module.name.startswith(("ortune.apply.", "ortune.worker.", "ortune.enable", "ortune.__main__")):
            with contextlib.suppress(ImportError):  # jinja2 and vl-convert-python are optional
                importlib.import_module(module.name)


def avoid_children() -> None:
    """Let commands read models without a child process, and know the installed onnxruntime."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from ortune.model.child import read_in_child
    from ortune.replaceable import replace
    from ortune.worker.installed import find_runtime_packages
    from ortune.worker.runtime import ask_for_runtime
    from tests.simulated.reading import read_here

    runtime = ask_for_runtime()
    find_runtime_packages()
    replace({read_in_child: read_here, ask_for_runtime: lambda: runtime})


def leave_out_vega() -> None:
    """Put a comment of some length into pages in place of the script that draws charts, which takes seconds to make."""
    if importlib.util.find_spec("vl_convert"):  # it is optional
        from ortune.report import write

        vars(write)["read_vega"] = lambda: f"/* {'Vega ' * 10_000} */"


def serve() -> str:
    """Answer requests until stdin ends. In a fork, return the code to run; an empty text for ortune."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    # The forks inherit these: nothing that they print or read is taken for a request or an answer.
    with Path(os.devnull).open("r+b") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    import_modules()
    avoid_children()
    leave_out_vega()
    gc.freeze()  # or collections in forks would copy the memory of all modules
    for line in requests:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            enter(request)
            return str(request["code"])
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
    os._exit(0)


def enter(request: dict[str, Any]) -> None:
    """Make this process what the request asks for."""
    os.setpgid(0, 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        with Path(request[name]).open("wb") as file:
            os.dup2(file.fileno(), number)
    if request["scenario"]:
        import msgspec

        from tests.simulated import Scenario, start_simulation

        start_simulation(msgspec.convert(request["scenario"], Scenario))
    if "ORTUNE_TEST_REACH" in os.environ:
        from tests.reach import record_command

        record_command()
    sys.argv = ["ortune", *request["arguments"]]
    signal.alarm(request["timeout_s"])


def run(code: str) -> None:
    """Run Python code or, if it is empty, the command."""
    from ortune.__main__ import main

    if code:
        exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})
    else:
        main()


def run_to_end(program: Callable[..., object], *arguments: object) -> int:
    """Run what a process is for, and return its exit code."""
    try:
        program(*arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else bool(end.code)
    except BaseException:  # noqa: BLE001  (as Python does)
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    status = run_to_end(run, serve())
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)  # deleting the modules takes longer than most commands
