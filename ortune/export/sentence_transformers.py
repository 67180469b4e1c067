"""Python code for Sentence Transformers, whose ONNX backend passes `model_kwargs` to Hugging Face Optimum.

Source: sentence_transformers/backend/load.py of https://github.com/huggingface/sentence-transformers.
"""

from __future__ import annotations

from pathlib import Path

from ortune.export.literals import PYTHON
from ortune.export.python import mapping, session_comments, session_options_lines
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU

USES_IO_BINDING = "CUDAExecutionProvider"
"""The provider with which Optimum uses IO binding unless it is turned off."""

SUBFOLDER = "onnx"
"""The folder inside the model's folder where Sentence Transformers also looks for ONNX files."""


def write(job: Job) -> str:
    """Return the code. The folder that it names contains config.json, and the ONNX file or the folder with it."""
    imports = ["from sentence_transformers import SentenceTransformer  # or CrossEncoder, SparseEncoder"]
    lines = session_options_lines(job, imports)
    providers, io_binding = job.pending.take_providers(), job.pending.take_io_binding()
    (name, options), *others = providers
    entries = {"provider": PYTHON.quote(name), **({"provider_options": mapping(options)} if options else {})}
    if any(other != CPU for other, _ in others):
        entries = {
            "providers": f"[{', '.join(PYTHON.quote(each) for each, _ in providers)}]",
            "provider_options": "\n".join(
                ["[", *(f"            {mapping(own)}," for _, own in providers), "        ]"]
            ),
        }
    if io_binding or name == USES_IO_BINDING:
        entries["use_io_binding"] = PYTHON.literal(io_binding)
    model = Path(job.model)
    folder = model.parent.parent if model.parent.name == SUBFOLDER else model.parent
    lines += [
        "",
        "model = SentenceTransformer(",
        f"    {PYTHON.quote(folder.as_posix())},",
        '    backend="onnx",',
        "    model_kwargs={",
        f'        "file_name": {PYTHON.quote(model.name)},',
        '        "export": False,  # fail if the file is missing instead of converting the model',
        *(f'        "{key}": {value},' for key, value in entries.items()),
        '        "session_options": options,',
        "    },",
        ")",
    ]
    return "\n".join(lines + session_comments(job))


TARGET = Target(
    name="sentence-transformers", summary="Python code for Sentence Transformers with its ONNX backend", write=write
)
