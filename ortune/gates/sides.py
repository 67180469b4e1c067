"""The sides of a gate: reads their models and records, checks that they can be compared, and starts their workers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ortune.errors import InputsError, MeasureError, ModelError, UsageError
from ortune.file_kinds import name_special
from ortune.gates.results import Gate, GateSide
from ortune.host import Host
from ortune.interpreter import LEAVE_FOLDER, SAFE_PATH
from ortune.knobs import DEFAULT, Config
from ortune.measure.block_runner import BlockRunner
from ortune.measure.open import ComparisonSetup, OpenComparison, Program, open_comparison
from ortune.model import ModelInfo
from ortune.model.identity import ModelIdentity
from ortune.prctl import HAS_DEATH_SIGNAL
from ortune.record.check import shorten
from ortune.record.schema import Record
from ortune.record.select import Wanted, read_any_record, select_record
from ortune.worker import Executor, Failure, Runtime
from ortune.worker.child_process import TELEMETRY_OFF, make_environment
from ortune.worker.executor import WORKER_COMMAND
from ortune.worker.installed import require_runtime
from ortune.worker.owned_folder import OwnedFolder
from ortune.workload import Workload

PACKAGE = Path(__file__).parents[1]

VERSION_PROBE = """
import importlib, json, os, sys
found = {"version": sys.version_info[:2], "parent": os.getppid()}
for name in ("msgspec", "numpy", "onnxruntime"):
    try:
        found[name] = getattr(importlib.import_module(name), "__version__", "")
    except Exception as error:
        found[name + "_fault"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""

PROBE_DEADLINE_S = 120.0

DEFAULT_WORD = "default"
STORAGE_WORD = "storage"
"""Names of ONNX Runtime's default, and of the record in the storage, after the `@`."""


class OpenSides(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides of a gate, after the first launch of each.

    Attributes:
        opened: The comparison. Its baseline is base.
        executors: What launches base and head.
        models: The models of base and head.
        runtimes: The software that runs base and head.
        max_error: The largest difference of head's outputs from base's; None if it is not known.
        workload: What is measured.
        host: The host.
    """

    opened: OpenComparison
    executors: tuple[Executor, Executor]
    models: tuple[ModelIdentity, ModelIdentity]
    runtimes: tuple[Runtime, Runtime]
    max_error: float | None = None
    workload: Workload
    host: Host


class NamedSide(msgspec.Struct, frozen=True, kw_only=True):
    """The model and record that the text of a side refers to.

    Attributes:
        model: Path of the ONNX file.
        record: The record, or None for ONNX Runtime's default.
        source: File that the record was read from.
    """

    model: str
    record: Record | None = None
    source: str = ""

    @property
    def config(self) -> Config:
        """The settings of the record, or ONNX Runtime's default."""
        return self.record.config if self.record else DEFAULT


def read_side(text: str, *, trust: bool = False, storage: str | None = None) -> NamedSide:
    """Read `model.onnx`, `config.json`, `model.onnx@config.json` or `model.onnx@storage`.

    A gate may use the config of a record for another model, such as a newer version of the recorded one.

    Args:
        text: The side.
        trust: Whether the record may have settings that need trust.
        storage: Location of the storage; None for that of the environment.

    Raises:
        UsageError: There is no such file, or no storage is given.
        RecordError: The config is not a record, or the storage has none for the model.
        StorageError: The storage does not answer.
    """
    path, at, config = text.rpartition("@")
    if at and (config in (DEFAULT_WORD, STORAGE_WORD) or Path(config).suffix == ".json"):
        model = path
    elif Path(text).suffix == ".json":
        model, config = "", text
    else:
        model, config = text, DEFAULT_WORD
    record: Record | None = None
    source = ""
    if config == STORAGE_WORD:
        record, source = _read_shared(storage, model)
    elif config != DEFAULT_WORD:
        choice = read_any_record(config, model or None, trust=trust)
        record, source = choice.record, choice.source
    model = model or (record.model.path if record else "")
    try:
        special, is_file = name_special(Path(model)), Path(model).is_file()
    except OSError as error:
        raise UsageError(f"{shorten(text)}: cannot read {shorten(model)}: {error.strerror}.") from None
    if special:
        raise UsageError(f"{text}: {model} is {special}.", "Pass the model: MODEL.onnx, or MODEL.onnx@CONFIG.json.")
    if not is_file:
        whose = f", the model of {config}" if not path and record else ""
        raise UsageError(
            f"{text}: there is no file {model}{whose}.", "Pass the model: MODEL.onnx, or MODEL.onnx@CONFIG.json."
        )
    return NamedSide(model=model, record=record, source=source)


def _read_shared(storage: str | None, model: str) -> tuple[Record, str]:
    """Return the record in a storage that fits a model and this host best.

    Raises:
        UsageError: No storage is given.
        RecordError: It has no record for the model.
        StorageError: It does not answer.
    """
    from ortune.fleet.collect import read_shared_records
    from ortune.storage.location import require_location

    location = require_location(storage)
    choice = select_record(read_shared_records(location), Wanted(any_host=True, other_model=True), model)
    return choice.record, choice.source


def make_side(text: str, named: NamedSide, python: str | None, option: str) -> GateSide:
    """Return a side, after checking its Python.

    Args:
        text: The side as the user wrote it.
        named: The model and record that the text refers to.
        python: The Python that runs it, or None for this one.
        option: Option that gives the Python.

    Raises:
        HostError: This Python has no onnxruntime.
        UsageError: The given Python cannot run it.
    """
    if python is None:
        require_runtime()
    else:
        check_python(python, option)
    return GateSide(
        text=text,
        model=named.model,
        config=named.config,
        record=named.source,
        python=python,
    )


def check_python(python: str, option: str) -> None:
    """Check that a Python interpreter can run a worker.

    Raises:
        UsageError: It does not run, is too old, lacks a package, or is a script that waits for Python.
    """
    program = shutil.which(python)
    if program is None:
        raise UsageError(f"{python}: no such program.", "Pass the Python of the environment.", option=option)
    try:
        done = subprocess.run(
            [program, "-c", LEAVE_FOLDER + VERSION_PROBE],
            capture_output=True,
            text=True,
            env={**make_environment(), **TELEMETRY_OFF},
            timeout=PROBE_DEADLINE_S,
            check=False,
        )
        found = json.loads(done.stdout)
        version, parent = tuple(found["version"]), found["parent"]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        raise UsageError(
            f"{python}: not a Python interpreter.", "Pass the Python of the environment.", option=option
        ) from None
    if version < (3, 11):
        raise UsageError(
            f"{python}: this is Python {version[0]}.{version[1]}.", "Use Python 3.11 or later.", option=option
        )
    # Workers end with their parent, which must be this process.
    if HAS_DEATH_SIGNAL and parent != os.getpid():
        raise UsageError(
            f"{python}: it starts Python in another process and waits for it.",
            "In a script, write exec before the command that starts Python, or pass the Python of the environment.",
            option=option,
        )
    for name in ("onnxruntime", "numpy", "msgspec"):
        if name not in found:
            fault = found[f"{name}_fault"]
            raise UsageError(
                f"{python}: {name} is not installed ({fault}).",
                f"Install it there: {python} {SAFE_PATH} -m pip install {name}"
                + (", or another package that contains it." if name == "onnxruntime" else ""),
                option=option,
            )


def check_outputs(base: ModelInfo, head: ModelInfo, base_text: str, head_text: str) -> None:
    """Check that the outputs of both models have the same names.

    Raises:
        MeasureError: They do not.
    """
    ours, theirs = ([output.name for output in model.outputs] for model in (base, head))
    if ours != theirs:
        raise MeasureError(
            f"The outputs differ: {base_text} returns {', '.join(ours)}, and {head_text} returns {', '.join(theirs)}.",
            "If that is intended, compare only the speed with {ignore_outputs}.",
        )


def check_inputs(base: ModelInfo, head: ModelInfo, base_text: str, head_text: str) -> None:
    """Check that both models take the same inputs.

    Raises:
        InputsError: They do not.
    """
    ours, theirs = ({info.name: info.dtype for info in model.inputs} for model in (base, head))
    if ours != theirs:
        shown = " and ".join(
            f"{text} takes {', '.join(f'{name} ({dtype})' for name, dtype in inputs.items()) or 'nothing'}"
            for text, inputs in ((base_text, ours), (head_text, theirs))
        )
        raise InputsError(f"The inputs differ: {shown}.", "Both sides must take the same inputs to be compared.")
    shapes = {info.name: info for info in head.inputs}
    for one in base.inputs:
        other = shapes[one.name]
        if one.shape is not None and other.shape is not None and len(one.shape) != len(other.shape):
            raise InputsError(
                f"The shapes of {one.name} differ: {len(one.shape)} dimensions in {base_text}, "
                f"{len(other.shape)} in {head_text}.",
                "Both sides must take the same inputs to be compared.",
            )


@contextlib.contextmanager
def open_models(gate: Gate, setup: ComparisonSetup) -> Iterator[OpenSides]:
    """Launch two models.

    Raises:
        OrtuneError: A side does not load or run, or its outputs differ.
    """
    base, head = setup.program, setup.other
    assert head
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(
            open_comparison(
                msgspec.structs.replace(
                    setup,
                    program=open_worker(gate.base, base, stack),
                    other=open_worker(gate.head, head, stack),
                )
            )
        )
        base_executor, head_executor = opened.executors
        opened.runner.load_deadline_s = setup.load_deadline_s
        max_error = check_head(gate.head, opened.runner, head_executor)
        yield OpenSides(
            opened=opened,
            executors=(base_executor, head_executor),
            models=(base.describe(), head.describe()),
            runtimes=(base_executor.runtime, head_executor.runtime),
            max_error=max_error if gate.same_outputs else None,
            workload=setup.describe_workload(),
            host=setup.host,
        )


def open_worker(side: GateSide, program: Program, stack: contextlib.ExitStack) -> Program:
    """Return a program with the command that starts the workers of a side.

    Another Python interpreter does not need ortune: a folder that contains only ortune is added to its path, and is
    removed when the stack closes.
    """
    if side.command:
        return msgspec.structs.replace(program, command=side.command)
    if side.python is None:
        return program
    folder = str(stack.enter_context(OwnedFolder()).path)
    Path(folder, PACKAGE.name).symlink_to(PACKAGE, target_is_directory=True)
    python = shutil.which(side.python) or side.python
    path = os.environ.get("PYTHONPATH")
    return msgspec.structs.replace(
        program,
        command=(python, *WORKER_COMMAND[1:]),
        environment={"PYTHONPATH": folder + (os.pathsep + path if path else "")},
    )


def check_head(head: GateSide, runner: BlockRunner, executor: Executor) -> float | None:
    """Launch head, to check that it runs and that its outputs agree with base's.

    Args:
        head: The side.
        runner: Launches it, again if its process ends suddenly.
        executor: The executor of head.

    Returns:
        The largest difference of its outputs.

    Raises:
        ModelError: It cannot be loaded or run.
        MeasureError: Its outputs differ, or loading takes too long.
    """
    (answer,) = runner.launch([head.config], executor)
    if not isinstance(answer, Failure):
        answer.close()
        return answer.session_info.max_error
    if answer.kind == "wrong_output":
        raise MeasureError(
            f"The outputs of {head.text} differ from those of base: {answer.message}",
            "Allow larger differences with {rtol} and {atol}, or compare only the speed with {ignore_outputs}.",
        )
    if answer.kind == "timeout":
        doing = "The first run" if answer.stage == "check" else "Creating the session"
        raise MeasureError(f"{doing} of {head.text} took too long ({answer.message}).", "Use a larger {budget}.")
    what = "run" if answer.stage == "check" else "load"
    raise ModelError(
        f"ONNX Runtime cannot {what} {head.text} ({answer.title}): {answer.message}",
        "Check that it loads on its own, and that it takes the inputs of base.",
    )
