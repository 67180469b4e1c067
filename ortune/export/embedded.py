"""A copy of the model with the settings in its metadata, from where ONNX Runtime can take them.

It does so where the environment has ORT_LOAD_CONFIG_FROM_MODEL=1. Source: `inference_session_utils.h` of onnxruntime.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

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
    """Write the copy, and return what must be known about it.

    Raises:
        ModelError: The model cannot be read.
        UsageError: The copy would replace the model.
    """
    import onnx
    from google.protobuf.message import DecodeError

    assert job.output
    source = Path(job.model)
    settings: dict[str, int] = {}
    for name in OPTIONS:
        value = job.sheet.take_option(name)
        if value is not None:
            settings[name] = int(LEVEL_NUMBERS.get(str(value), MODES.get(str(value), value)))
    try:
        model = onnx.load(source, load_external_data=False)
    except FileNotFoundError:
        raise ModelError(f"There is no file {source}.", "Name the model behind the record.") from None
    except (OSError, DecodeError) as error:
        raise ModelError(f"Cannot read {source}: {error}.") from None
    kept = [each for each in model.metadata_props if each.key != KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, json.dumps({"session_options": settings})
    copied = _copy_weights(source.parent, job.output.parent, {each.name for each in job.record.model.files[1:]})
    _save(model, job.output)
    lines = [
        f"{job.output}: a copy of {source}; settings in its metadata: {len(settings)}.",
        "Set ORT_LOAD_CONFIG_FROM_MODEL=1 where it is loaded; without it they are not looked at.",
        "With it they replace all SessionOptions that the program sets, configuration entries included.",
    ]
    if copied:
        lines.append(f"Its weights lie beside it: {', '.join(copied)}.")
    return "\n".join(lines)


def _copy_weights(source: Path, target: Path, names: set[str]) -> list[str]:
    """Copy external data to where the copy looks for it.

    Raises:
        UsageError: Other data of that name is there.
    """
    if source.resolve() == target.resolve():
        return []
    for name in sorted(names):
        if (target / name).exists():
            raise UsageError(f"{target / name} is there already.", "Write the copy to an empty folder.")
    for name in sorted(names):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)
    return sorted(names)


def _save(model: Any, path: Path) -> None:
    from ortune.record.files import write_atomically

    write_atomically(path, model.SerializeToString())


TARGET = Target(
    name="embedded",
    summary="a copy of the model with the settings in its metadata (ort_config)",
    write=write,
    comment="",
    binary=True,
)
