"""Python code for Hugging Face Optimum, whose models take provider, provider_options and session_options."""

from __future__ import annotations

from pathlib import Path

from ortune.export.literals import python_string
from ortune.export.python import session_lines, session_options_lines
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU, alias_of


def write(job: Job) -> str:
    """Return the code. The class is that of the task; the folder is the one with config.json and the ONNX file."""
    lines = session_options_lines(job)
    providers = job.sheet.take_providers()
    name, options = providers[0]
    for other, own in providers[1:]:
        for option, value in own.items():
            job.sheet.leave(f"{alias_of(other)}.{option}", value, "Optimum takes options of one provider")
    model = Path(job.model)
    folder = model.parent.as_posix()
    lines += [
        "",
        "from optimum.onnxruntime import ORTModelForFeatureExtraction  # or the class for your task",
        "",
        "model = ORTModelForFeatureExtraction.from_pretrained(",
        f"    {python_string(folder)},",
        f"    file_name={python_string(model.name)},",
        f"    provider={python_string(name)},",
        *([f"    provider_options={options!r},"] if options or name != CPU else []),
        "    session_options=options,",
        ")",
    ]
    return "\n".join(lines + session_lines(job))


TARGET = Target(name="optimum", summary="Python code for Hugging Face Optimum (ORTModel)", write=write)
