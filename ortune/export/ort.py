"""The model as ONNX Runtime optimises it with the tuned options, saved so that sessions need not do it again.

Source: https://onnxruntime.ai/docs/performance/model-optimizations/graph-optimizations.html ("offline mode").
"""

from __future__ import annotations

import os

import msgspec

from ortune.errors import ModelError
from ortune.export.save import SaveRequest, save_optimized
from ortune.export.target import Job, Target
from ortune.worker import Failure

GRAPH_ENTRIES = ("optimization.", "session.qdq", "session.disable_quant_qdq", "session.enable_quant_qdq")
"""Beginnings of the names of entries that shape the graph."""


def write(job: Job) -> str:
    """Write the file, and return what must be known about it.

    Raises:
        ModelError: ONNX Runtime cannot optimise or save the model.
    """
    assert job.output
    sheet = job.sheet
    level = sheet.take_option("graph_optimization_level") or "ORT_ENABLE_ALL"
    for name in sheet.config.session_config:
        if name.startswith(GRAPH_ENTRIES):
            sheet.take_entry(name)
    providers = sheet.take_providers()
    for name in sheet.config.settings:
        sheet.explain(name, "a model file does not hold it: set it on the session")
    partial = job.output.with_name(f".{job.output.stem}.part{job.output.suffix}")
    config = msgspec.structs.replace(
        job.record.config,
        # What is no matter of the graph may keep a session from being created here.
        session_options={"graph_optimization_level": level},
        session_config={
            name: text for name, text in job.record.config.session_config.items() if name.startswith(GRAPH_ENTRIES)
        },
        per_session=(),
        global_thread_pool=None,
    )
    try:
        saved = save_optimized(SaveRequest(model_path=os.fspath(job.model), config=config, output=str(partial)))
        if isinstance(saved, Failure):
            raise ModelError(f"ONNX Runtime cannot save {job.model}: {saved.message}.")
        partial.replace(job.output)
    finally:
        partial.unlink(missing_ok=True)
    where = "" if providers[0][0].startswith("CPU") else f", with {providers[0][0]}"
    lines = [
        f"{job.output}: {saved.size_bytes / 1e6:.2f} MB, optimised at {level}{where}, "
        f"by onnxruntime {saved.onnxruntime}.",
        "Load it with graph_optimization_level=ORT_DISABLE_ALL: everything is done already.",
    ]
    if level in {"ORT_ENABLE_ALL", "ORT_ENABLE_LAYOUT"}:
        lines.append("Its layouts are for this very kind of CPU: on another, make it anew or it may fail or be slow.")
    if job.output.suffix == ".ort":
        lines.append("The .ort format is for this version of onnxruntime and later ones of the same format.")
    return "\n".join(lines)


TARGET = Target(
    name="ort",
    summary="the optimised model, saved offline (.onnx or .ort)",
    write=write,
    comment="",
    binary=True,
)
