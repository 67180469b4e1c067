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
    keywords = take_model_keywords(job)
    model = Path(job.model)
    arguments = [PYTHON.quote(model.parent.as_posix()), f"file_name={PYTHON.quote(model.name)}"]
    arguments += [f"{name}={value}" for name, value in keywords.items()]
    if job.pending.config.io_binding:
        lines += ["", "# With IO binding, Optimum takes only tensors of PyTorch, not arrays of NumPy."]
    else:
        lines.append("")
    lines += [call("model = ORTModelForFeatureExtraction.from_pretrained", arguments)]
    return "\n".join(lines + session_comments(job))


def take_model_keywords(job: Job) -> dict[str, str]:
    """Take the providers and IO binding, and return the keyword arguments of `from_pretrained`, as code."""
    providers, io_binding = job.pending.take_providers(), job.pending.take_io_binding()
    (name, options), *others = providers
    if any(other != CPU for other, _ in others):
        own = [mapping(options) for _, options in providers]
        keywords = {
            "providers": f"[{', '.join(PYTHON.quote(name) for name, _ in providers)}]",
            "provider_options": f"[{', '.join(own)}]",
        }
    else:
        keywords = {"provider": PYTHON.quote(name), **({"provider_options": mapping(options)} if options else {})}
    keywords["session_options"] = "options"
    if io_binding or name == USES_IO_BINDING:
        keywords["use_io_binding"] = PYTHON.literal(io_binding)
    return keywords


TARGET = Target(name="optimum", summary="Python code for Hugging Face Optimum (ORTModel)", write=write)
