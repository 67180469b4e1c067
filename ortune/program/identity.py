"""What must be the same for the search of a program to go on after an interrupt."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from ortune.host import HostClass
from ortune.program.prepare import PreparedProgram
from ortune.program.space import ProgramModel
from ortune.tuning.resume import describe_decisions, digest_value, encode_identity
from ortune.workload.program import digest_command
from ortune.workload.workload import BackgroundProgram


def describe_program_identity(prepared: PreparedProgram) -> dict[str, str]:
    """Return all that the measurements and the decisions of a search depend on, as text by name.

    What may contain passwords is a digest: the command, the query of a URL, header fields.
    """
    request, task, server, goal = prepared.request, prepared.task, prepared.server, prepared.goal
    run = prepared.describe_run()
    measured = {name: getattr(run, name) for name in ("kind", "call", "metric", "maximize", "url")}
    models = list(zip(prepared.models, prepared.identities, strict=True))
    return encode_identity(
        {
            "command": f"{run.program} ({digest_command(task.command)[:16]})",
            "script": digest_scripts(task.command),
            **{f"model {model.name}": identity.digest[:16] for model, identity in models},
            **{f"own settings of {model.name}": describe_own(model) for model, _ in models},
            **{f"sessions of {model.name}": model.n_sessions for model, _ in models},
            "measured": measured,
            "calls": "in a program that stays alive" if prepared.keeps_running else "in complete runs",
            "load": goal.load,
            "objectives": goal.objectives,
            "limits": goal.limits,
            "background load": BackgroundProgram.of(request.beside) if request.beside is not None else None,
            "stdin": digest_file(task.stdin),
            "requests": digest_value(
                [server.url, server.health_url, server.headers, [digest_file(path) for path in server.bodies]]
                if server
                else None
            ),
            "outputs": digest_value([task.check, task.ignore_outputs]),
            "onnxruntime": prepared.runtime.onnxruntime,
            **describe_decisions(request, HostClass.of(prepared.host), prepared.space),
        }
    )


def describe_own(model: ProgramModel) -> str:
    """Return what a program sets for the sessions of a model."""
    return f"{model.own.key} {digest_value(model.varied)}" if model.varied else model.own.key


def digest_scripts(command: Sequence[str]) -> str:
    """Return digests of the Python files that a command names; empty if it names none."""
    return " ".join(filter(None, (digest_file(Path(word)) for word in command if word.endswith(".py"))))


def digest_file(path: Path) -> str:
    """Return a digest of a file; empty if it is none, or a device."""
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError:
        return ""
