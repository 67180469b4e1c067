"""Python code for Hugging Face Optimum, whose models take providers, their options, and session_options.

Source: optimum/onnxruntime/modeling.py and utils.py of the package optimum-onnx 0.1.
"""

from __future__ import annotations

from pathlib import Path

from ortune.export.literals import PYTHON
from ortune.export.python import call, mapping, session_comments, session_options_lines
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU

USES_IO_BINDING = "CUDAExecutionProvider"
"""The provider with which Optimum uses IO binding unless it is turned off."""


def write(job: Job) -> str:
    """Return the code. The folder that it names contains config.json and the ONNX file."""
    imports = ["from optimum.onnxruntime import ORTModelForFeatureExtraction  # or the class for your task"]
    lines = session_options_lines(job, imports)
    providers, io_binding = job.pending.take_providers(), job.pending.take_io_binding()
    (name, options), *others = providers
    model = Path(job.model)
    arguments = [PYTHON.quote(model.parent.as_posix()), f"file_name={PYTHON.quote(model.name)}"]
    if any(other != CPU for other, _ in others):
        arguments += [
            f"providers=[{', '.join(PYTHON.quote(each) for each, _ in providers)}]",
            f"provider_options=[{', '.join(mapping(own) for _, own in providers)}]",
        ]
    else:
        arguments.append(f"provider={PYTHON.quote(name)}")
        arguments += [f"provider_options={mapping(options)}"] if options else []
    arguments.append("session_options=options")
    if io_binding or name == USES_IO_BINDING:
        arguments.append(f"use_io_binding={PYTHON.literal(io_binding)}")
    if io_binding:
        lines += ["", "# With IO binding, Optimum takes only tensors of PyTorch, not arrays of NumPy."]
    else:
        lines.append("")
    lines += [call("model = ORTModelForFeatureExtraction.from_pretrained", arguments)]
    return "\n".join(lines + session_comments(job))


TARGET = Target(name="optimum", summary="Python code for Hugging Face Optimum (ORTModel)", write=write)
