"""Python code for the evaluators of yobx, which take finished SessionOptions."""

from __future__ import annotations

from ortune.export.literals import python_string
from ortune.export.python import session_lines, session_options_lines
from ortune.export.target import Job, Target


def write(job: Job) -> str:
    """Return the code."""
    lines = session_options_lines(job)
    # Without whole=True it makes a session for each node.
    lines += [
        "",
        "from yobx.reference import OnnxruntimeEvaluator",
        "",
        f"evaluator = OnnxruntimeEvaluator({python_string(job.model)}, session_options=options, whole=True)",
    ]
    return "\n".join(lines + session_lines(job))


TARGET = Target(name="yobx", summary="Python code for yobx's OnnxruntimeEvaluator", write=write)
