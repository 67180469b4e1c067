"""Python code for Sentence Transformers, whose ONNX backend passes `model_kwargs` to Hugging Face Optimum.

Source: sentence_transformers/backend/load.py of https://github.com/huggingface/sentence-transformers.
"""

from __future__ import annotations

from pathlib import Path

from ortune.export.literals import PYTHON
from ortune.export.python import mapping, session_comments, session_options_lines
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU

SUBFOLDER = "onnx"
"""The folder inside that of the model where Sentence Transformers looks for ONNX files, too."""


def write(job: Job) -> str:
    """Return the code. The folder that it names contains config.json, and the ONNX file or the folder with it."""
    imports = ["from sentence_transformers import SentenceTransformer  # or CrossEncoder, SparseEncoder"]
    lines = session_options_lines(job, imports)
    (name, options), *others = job.pending.take_providers()
    for other, _ in others:
        job.pending.put_back_provider_options(other, "Sentence Transformers takes the options of one provider")
    model = Path(job.model)
    folder = model.parent.parent if model.parent.name == SUBFOLDER else model.parent
    lines += [
        "",
        "model = SentenceTransformer(",
        f"    {PYTHON.quote(folder.as_posix())},",
        '    backend="onnx",',
        "    model_kwargs={",
        f'        "file_name": {PYTHON.quote(model.name)},',
        '        "export": False,  # without the file, another model would be made',
        f'        "provider": {PYTHON.quote(name)},',
        *([f'        "provider_options": {mapping(options)},'] if options or name != CPU else []),
        '        "session_options": options,',
        "    },",
        ")",
    ]
    return "\n".join(lines + session_comments(job))


TARGET = Target(
    name="sentence-transformers", summary="Python code for Sentence Transformers with its ONNX backend", write=write
)
