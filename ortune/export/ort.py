"""The model as ONNX Runtime optimizes it with the tuned settings, saved so that sessions skip the optimization.

Source: https://onnxruntime.ai/docs/performance/model-optimizations/graph-optimizations.html ("offline mode").
"""

from __future__ import annotations

import msgspec

from ortune.errors import ModelError
from ortune.export.save import SaveRequest, save_optimized
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU
from ortune.model import read_model
from ortune.sanitize import printable
from ortune.worker import Failure
from ortune.worker.graphs import is_of_graph
from ortune.worker.installed import require_runtime
from ortune.worker.owned_folder import OwnedFolder, remove_abandoned_folders


def write(job: Job) -> str:
    """Write the file, and return notes on how to use it.

    Raises:
        HostError: onnxruntime is not installed.
        ModelError: The model is not an ONNX model, its external data is not in its folder, or ONNX Runtime cannot
            optimize or save it.
    """
    from ortune.record.files import find_folder, place_file

    assert job.output
    require_runtime()
    info = read_model(job.model)  # checks that its data is in its folder, which ONNX Runtime need not do
    pending = job.pending
    level = pending.take_option("graph_optimization_level") or "ORT_ENABLE_ALL"
    given = pending.config.session_config
    entries = {name: text for name, text in given.items() if is_of_graph(name)}
    for name in entries:
        pending.take_entry(name)
    # The providers remain: the file stores neither them nor their options.
    provider = pending.config.provider
    config = msgspec.structs.replace(
        pending.config,
        # Settings that do not change the graph are left out: they could keep a session from being created here.
        session_options={"graph_optimization_level": level},
        session_config=entries,
        per_session=(),
        global_thread_pool=None,
        # Variables act when a process starts: a record could name a library that the loader runs.
        environment={},
    )
    parent = find_folder(job.output)
    remove_abandoned_folders(parent)
    with OwnedFolder(parent) as folder:
        complete = folder.path / job.output.name
        saved = save_optimized(SaveRequest(model_path=info.path, config=config, output=str(complete)))
        if isinstance(saved, Failure):
            raise ModelError(f"ONNX Runtime cannot save {job.model}: {saved.message}.")
        place_file(complete, job.output)
    where = "" if provider == CPU else f" with {provider}"
    lines = [
        f"{job.output}: {saved.size_bytes / 1e6:.2f} MB, optimized at {level}{where} by onnxruntime "
        f"{saved.onnxruntime}.",
        "Load it with graph_optimization_level=ORT_DISABLE_ALL: it is optimized already.",
    ]
    if pending.remaining:
        lines.append("A model file does not store other settings: set them in the program.")
    if level in {"ORT_ENABLE_ALL", "ORT_ENABLE_LAYOUT"}:
        lines.append("It contains data layouts for this type of CPU. On another type it may fail or be slow.")
    if job.output.suffix == ".ort":
        lines.append("This onnxruntime and later versions that support the same version of the .ort format load it.")
    return "\n".join(map(printable, lines))


TARGET = Target(
    name="ort",
    summary="the optimized model, saved offline (.onnx or .ort)",
    write=write,
    comment="",
    binary=True,
)
