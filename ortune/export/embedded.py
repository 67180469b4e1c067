"""A copy of the model with the settings in its metadata, where ONNX Runtime can read them.

ONNX Runtime does so if the environment has ORT_LOAD_CONFIG_FROM_MODEL=1.

Source: `inference_session_utils.h` of onnxruntime.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from ortune.errors import ModelError, UsageError
from ortune.export.literals import LEVEL_NUMBERS
from ortune.export.target import Job, Target
from ortune.model.data_files import locate_data_file
from ortune.model.onnx_file import find_data_files, parse_model
from ortune.sanitize import printable

KEY = "ort_config"

MODES = {"ORT_SEQUENTIAL": 0, "ORT_PARALLEL": 1}

OPTIONS = (
    "intra_op_num_threads",
    "inter_op_num_threads",
    "execution_mode",
    "graph_optimization_level",
    "enable_profiling",
)


def write(job: Job) -> str:
    """Write the copy, and return notes on how to use it.

    Raises:
        ModelError: The model or its external data cannot be read, or the data is not in the model's folder.
        UsageError: External data of the copy would replace other files.
    """
    from ortune.record.files import write_atomically

    assert job.output
    source = Path(job.model).resolve()
    settings: dict[str, int] = {}
    for name in OPTIONS:
        value = job.pending.take_option(name)
        if value is not None:
            settings[name] = int(LEVEL_NUMBERS.get(str(value), MODES.get(str(value), value)))
    model = parse_model(source)
    kept = [entry for entry in model.metadata_props if entry.key != KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    added = model.metadata_props.add()
    added.key, added.value = KEY, json.dumps({"session_options": settings})
    with _copy_external_data(source.parent, find_data_files(model), job.output) as copied:
        write_atomically(job.output, model.SerializeToString())
    lines = [
        f"{job.output}: a copy of {job.model}, with {', '.join(settings) or 'no settings'} in its metadata.",
        "Set ORT_LOAD_CONFIG_FROM_MODEL=1 in the environment of the program. Otherwise ONNX Runtime ignores them.",
        "They replace all SessionOptions that the program sets, including session configuration entries.",
    ]
    if copied:
        lines.append(f"Its external data was copied to the same folder: {', '.join(copied)}.")
    return "\n".join(map(printable, lines))


@contextlib.contextmanager
def _copy_external_data(folder: Path, names: Iterable[str], output: Path) -> Iterator[list[str]]:
    """Copy the files with external data to the folder of the output, and yield their names.

    The copies are removed if they are not complete, or if an error ends the block.

    Args:
        folder: The folder of the model.
        names: Paths of the files, relative to it, as the model has them.
        output: The file that the copy of the model will be.

    Raises:
        ModelError: A file is missing or not in the folder.
        UsageError: A copy would replace another file, would not be in the folder of the output, or cannot be written.
    """
    if folder == output.parent.resolve():
        yield []
        return
    copies: dict[Path, Path] = {}
    for name in names:
        source = locate_data_file(folder, name)
        if not source.is_file():
            raise ModelError(f"The model's external data file {folder / name} is missing.")
        target = output.parent / name
        try:
            path = locate_data_file(output.parent, name)
        except ModelError:
            fault = "this leads out of the folder, through a link"
        else:
            fault = "this file already exists" if path == output.resolve() or os.path.lexists(target) else ""
        if fault:
            raise UsageError(
                f"{target}: {fault}.",
                "The external data of the model is copied too: name a file in an empty folder.",
                option="output",
            )
        copies[path] = source
    written: list[Path] = []
    try:
        for path, source in copies.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with source.open("rb") as data, path.open("xb") as copy:
                written.append(path)
                shutil.copyfileobj(data, copy)
        yield [str(path.relative_to(output.parent.resolve())) for path in copies]
    except BaseException as error:
        for path in written:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise UsageError(f"Cannot write to {output.parent}: {error.strerror}.", option="output") from None
        raise


TARGET = Target(
    name="embedded",
    summary="a copy of the model with the settings in its metadata (ort_config)",
    write=write,
    comment="",
    binary=True,
)
