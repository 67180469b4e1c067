"""Python code for Hugging Face Optimum, whose models take provider, provider_options and session_options."""

from __future__ import annotations

from pathlib import Path

from ortune.export.literals import PYTHON
from ortune.export.python import call, mapping, session_comments, session_options_lines
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU


def write(job: Job) -> str:
    """Return the code. The folder that it names contains config.json and the ONNX file."""
    imports = ["from optimum.onnxruntime import ORTModelForFeatureExtraction  # or the class for your task"]
    lines = session_options_lines(job, imports)
    (name, options), *others = job.pending.take_providers()
    for other, _ in others:
        job.pending.put_back_provider_options(other, "Optimum takes the options of one provider")
    model = Path(job.model)
    arguments = [
        PYTHON.quote(model.parent.as_posix()),
        f"file_name={PYTHON.quote(model.name)}",
        f"provider={PYTHON.quote(name)}",
        *([f"provider_options={mapping(options)}"] if options or name != CPU else []),
        "session_options=options",
    ]
    lines += ["", call("model = ORTModelForFeatureExtraction.from_pretrained", arguments)]
    return "\n".join(lines + session_comments(job))


TARGET = Target(name="optimum", summary="Python code for Hugging Face Optimum (ORTModel)", write=write)
