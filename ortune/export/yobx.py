"""Python code for the evaluators of yobx, which take SessionOptions.

Source: yobx/reference/onnxruntime_evaluator.py of https://github.com/xadupre/yet-another-onnx-builder.
"""

from __future__ import annotations

from ortune.export.literals import PYTHON
from ortune.export.python import call, session_comments, session_options_lines
from ortune.export.target import Job, Target


def write(job: Job) -> str:
    """Return the code."""
    lines = session_options_lines(job, ["from yobx.reference import OnnxruntimeEvaluator"])
    # Without whole=True, the evaluator creates a session for each node.
    arguments = [PYTHON.quote(job.model), "session_options=options", "whole=True"]
    lines += ["", call("evaluator = OnnxruntimeEvaluator", arguments)]
    return "\n".join(lines + session_comments(job))


TARGET = Target(name="yobx", summary="Python code for yobx's OnnxruntimeEvaluator", write=write)
