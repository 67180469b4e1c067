"""A copy of the model with the settings in its metadata, where ONNX Runtime can read them.

ONNX Runtime does so if the environment has ORT_LOAD_CONFIG_FROM_MODEL=1.

Source: `inference_session_utils.h` of onnxruntime.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ortune.errors import ModelError, UsageError
from ortune.export.literals import LEVEL_NUMBERS
from ortune.export.target import Job, Target

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
        ModelError: The model cannot be read.
        UsageError: External data of the copy would replace other files.
    """
    import onnx
    from google.protobuf.message import DecodeError

    from ortune.record.files import write_atomically

    assert job.output
    source = Path(job.model)
    settings: dict[str, int] = {}
    for name in OPTIONS:
        value = job.pending.take_option(name)
        if value is not None:
            settings[name] = int(LEVEL_NUMBERS.get(str(value), MODES.get(str(value), value)))
    try:
        model = onnx.load(source, load_external_data=False)
    except (OSError, DecodeError) as error:
        raise ModelError(f"Cannot read {source}: {error}.") from None
    kept = [entry for entry in model.metadata_props if entry.key != KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    added = model.metadata_props.add()
    added.key, added.value = KEY, json.dumps({"session_options": settings})
    copied = _copy_external_data(source.parent, job.output.parent, {file.name for file in job.record.model.files[1:]})
    write_atomically(job.output, model.SerializeToString())
    lines = [
        f"{job.output}: a copy of {source}, with {', '.join(settings) or 'no settings'} in its metadata.",
        "Set ORT_LOAD_CONFIG_FROM_MODEL=1 in the environment of the program. Otherwise ONNX Runtime ignores them.",
        "They replace all SessionOptions that the program sets, including session configuration entries.",
    ]
    if copied:
        lines.append(f"Its external data was copied to the same folder: {', '.join(copied)}.")
    return "\n".join(lines)


def _copy_external_data(source: Path, target: Path, names: set[str]) -> list[str]:
    """Copy files between folders, and return their names.

    Raises:
        UsageError: A file of that name exists.
    """
    if source.resolve() == target.resolve():
        return []
    for name in sorted(names):
        if (target / name).exists():
            raise UsageError(
                f"{target / name}: this file already exists.",
                "The external data of the model is copied too: name a file in an empty folder.",
                option="output",
            )
    for name in sorted(names):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)
    return sorted(names)


TARGET = Target(
    name="embedded",
    summary="a copy of the model with the settings in its metadata (ort_config)",
    write=write,
    comment="",
    binary=True,
)
