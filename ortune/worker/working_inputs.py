"""Runs a model once on its inputs, in a child process, and looks for sizes that work if it does not run on them.

`python -m ortune.worker.working_inputs ANSWER` is the child; see `ortune.worker.child_process`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ortune.errors import InputsError
from ortune.knobs.config import DEFAULT
from ortune.model import ModelInfo
from ortune.steps import enter_step
from ortune.worker.child_process import Enter, answer_parent, ask_child
from ortune.worker.failure import Failure, make_failure
from ortune.workload import InputOptions, make_feed
from ortune.workload.data import format_shape
from ortune.workload.feed import Feed
from ortune.workload.inputs import describe_feed
from ortune.workload.working_sizes import RunAttempt, WorkingInputs, find_working_sizes, list_slots

SEARCH_S = 20.0
LONGEST_RUN_S = 5.0
"""Time to look for sizes that work, and for one run. A run that takes longer is ended, and counts as a failure."""

INPUTS_DEADLINE_S = 600.0

MEMORY_BYTES = 8 << 30
"""Memory that the child may use: some sizes make a model use much more than others."""

UNOPTIMIZED = DEFAULT.with_setting("session_options", "graph_optimization_level", "ORT_DISABLE_ALL")
"""Nodes have the names of the file then, which messages contain."""


class TryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the child is to do.

    Attributes:
        model: The model.
        options: The user's options for inputs.
        runs: Whether it is not known yet that the model does not run.
    """

    model: ModelInfo
    options: InputOptions
    runs: bool = True


class InputsResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the child found.

    Attributes:
        message: Why the model does not run; empty if it does.
        found: Sizes with which it runs; None if none were found, or none are needed.
    """

    message: str = ""
    found: WorkingInputs | None = None


def check_inputs(model: ModelInfo, feed: Feed) -> Failure | None:
    """Run a model once.

    Returns:
        Why ONNX Runtime cannot load it; None if it runs.

    Raises:
        InputsError: It does not run on these inputs. The error says what to pass, if that is known.
    """
    enter_step("first run")
    tried = _ask(TryRequest(model=model, options=feed.options))
    if isinstance(tried, Failure):
        return tried
    if tried.message:
        raise _make_error(model, feed, tried.message, tried.found)
    return None


def explain_failed_run(model: ModelInfo, feed: Feed, message: str) -> InputsError:
    """Return an error for a model that does not run, which says what to pass if sizes that work were found.

    Args:
        model: The model.
        feed: The inputs.
        message: Why it does not run.
    """
    found = None
    if feed.options.data is None and list_slots(model, feed.options):
        enter_step("looking for sizes that work")
        tried = _ask(TryRequest(model=model, options=feed.options, runs=False))
        found = None if isinstance(tried, Failure) else tried.found
    return _make_error(model, feed, message, found)


def _ask(request: TryRequest) -> InputsResult | Failure:
    return ask_child("ortune.worker.working_inputs", request, InputsResult, deadline_s=INPUTS_DEADLINE_S)


def _make_error(model: ModelInfo, feed: Feed, message: str, found: WorkingInputs | None) -> InputsError:
    advised = list_options(found) if found else ()
    if advised:
        hint = f"It runs with {' '.join(f'{{{name}={value}}}' for name, value in advised)}."
    else:
        slots = dict.fromkeys(name for name, _ in list_slots(model, feed.options))
        which = f" The sizes of {', '.join(slots)} are guessed." if slots else ""
        hint = f"Pass real data with {{inputs=data.npz}}, or sizes with {{dim}} and {{shape}}.{which}"
    return InputsError(
        f"The model does not run on these inputs: {shorten_message(message)}",
        hint,
        details=describe_feed(feed),
        advised=advised,
    )


def list_options(found: WorkingInputs) -> tuple[tuple[str, str], ...]:
    """Return the options to pass, as names and values."""
    dims = [("dim", f"{name}={size}") for name, size in found.dims.items()]
    return (*dims, *(("shape", f"{name}={format_shape(shape)}") for name, shape in found.shapes.items()))


def shorten_message(message: str) -> str:
    """Return a message of ONNX Runtime without places in its source files."""
    message = re.sub(r"/\S+\.(?:cc|h):\d+ (?:.*?\) (?:const )?)?", "", message)
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", message).strip()


# The rest runs in the child.


def try_inputs(request: TryRequest, enter: Enter) -> InputsResult:
    """Run the model, and look for sizes with which it runs if it does not.

    Raises:
        Exception: onnxruntime cannot load the model.
    """
    from ortune.worker.session import make_session

    enter("load")
    session = make_session(request.model.path, DEFAULT)
    enter("check")
    message = ""
    if request.runs:
        message = run_once(session, request.model, request.options, limit_s=None)
        if not message:
            return InputsResult()
    try:
        plain = make_session(request.model.path, UNOPTIMIZED)
    except Exception:  # noqa: BLE001  (some operators have no kernel until they are fused)
        plain = session
    depths = find_depths(request.model.path)
    end_s = time.monotonic() + SEARCH_S

    def run(options: InputOptions) -> RunAttempt | None:
        if time.monotonic() > end_s:
            return None
        found = run_once(plain, request.model, options, limit_s=LONGEST_RUN_S)
        return RunAttempt(found, find_depth(found, depths))

    found = find_working_sizes(request.model, request.options, run)
    if found:
        dims = {**request.options.dims, **{name: (size,) for name, size in found.dims.items()}}
        options = msgspec.structs.replace(request.options, dims=dims, shapes={**request.options.shapes, **found.shapes})
        if run_once(session, request.model, options, limit_s=None):
            found = None
    return InputsResult(message=message, found=found)


def run_once(session: Any, model: ModelInfo, options: InputOptions, *, limit_s: float | None) -> str:
    """Run a model on the first sample of some inputs, and return why it fails; empty if it does not.

    Raises:
        InputsError: The inputs cannot be made.
    """
    import onnxruntime

    sample = make_feed(model, options).tensors
    arrays = {
        name: tensor.array.astype(object) if tensor.array.dtype.kind == "U" else tensor.array
        for name, tensor in sample.items()
    }
    run_options = onnxruntime.RunOptions()
    timer = threading.Timer(limit_s or 0.0, lambda: setattr(run_options, "terminate", True))
    timer.daemon = True
    if limit_s is not None:
        timer.start()
    try:
        session.run(None, arrays, run_options)
    except Exception as error:  # noqa: BLE001  (onnxruntime raises many kinds)
        return make_failure(error, "check").message or "it fails"
    finally:
        timer.cancel()
    return ""


def find_depths(path: str) -> Mapping[str, int]:
    """Return the position of each node that has a name."""
    from ortune.model.graph import summarize_graph

    try:
        nodes: Sequence[Any] = summarize_graph(Path(path), with_types=False).nodes
    except Exception:  # noqa: BLE001  (it only helps to find sizes sooner)
        return {}
    return {node.name: number for number, node in enumerate(nodes) if node.name}


def find_depth(message: str, depths: Mapping[str, int]) -> int:
    """Return the position of the first node that a message names; -1 if it names none."""
    names = re.findall(r"Name:'([^']*)'", message)
    return depths.get(names[0], -1) if names else -1


def answer(request: TryRequest, enter: Enter) -> InputsResult:
    """Answer the parent, with limited memory."""
    from ortune.worker.main import limit_memory

    limit_memory(MEMORY_BYTES + 4 * sum(file.size_bytes for file in request.model.files))
    return try_inputs(request, enter)


if __name__ == "__main__":
    answer_parent(TryRequest, answer)
