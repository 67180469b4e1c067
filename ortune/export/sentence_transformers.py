"""Python code for Sentence Transformers, whose ONNX backend passes `model_kwargs` to Hugging Face Optimum.

Source: sentence_transformers/backend/load.py of https://github.com/huggingface/sentence-transformers.
"""

from __future__ import annotations

from pathlib import Path

from ortune.export.literals import PYTHON
from ortune.export.optimum import take_model_keywords
from ortune.export.python import session_comments, session_options_lines
from ortune.export.target import Job, Target

SUBFOLDER = "onnx"
"""The folder inside the model's folder where Sentence Transformers also looks for ONNX files."""


def write(job: Job) -> str:
    """Return the code. The folder that it names contains config.json, and the ONNX file or the folder with it."""
    imports = ["from sentence_transformers import SentenceTransformer  # or CrossEncoder, SparseEncoder"]
    lines = session_options_lines(job, imports)
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
        *(f'        "{key}": {value},' for key, value in take_model_keywords(job).items()),
        "    },",
        ")",
    ]
    return "\n".join(lines + session_comments(job))


TARGET = Target(
    name="sentence-transformers", summary="Python code for Sentence Transformers with its ONNX backend", write=write
)
