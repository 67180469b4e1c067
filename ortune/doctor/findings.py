"""The result types of the doctor: findings, skipped checks, and the diagnosis of a model."""

from __future__ import annotations

from typing import Literal

import msgspec

from ortune.errors import Spelling, spell_in_python, spell_options

Severity = Literal["problem", "advice", "ok"]
"""A "problem" should be fixed: the model does not load, or time is certainly lost. "advice" is worth a try."""

SEVERITIES: tuple[Severity, ...] = ("problem", "advice", "ok")
"""All severities, the worst first."""


class DoctorFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check.

    Attributes:
        check: Name of the check; `run_checks` fills it in.
        severity: How bad it is.
        what: What was found, a sentence without a period.
        why: Why it costs time; empty if all is well.
        fix: What to do about it; may refer to options as `{option}`.
        command: A shell command, or a line of Python, that does it; empty if there is none.
    """

    check: str = ""
    severity: Severity
    what: str
    why: str = ""
    fix: str = ""
    command: str = ""


class SkippedCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A check that could not be made.

    Attributes:
        check: Name of the check.
        why: What it lacks; may refer to options as `{option}`.
        fix: How to provide it; may refer to options as `{option}`, and may be empty.
    """

    check: str
    why: str
    fix: str = ""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all checks of a model.

    Attributes:
        model: Path of the ONNX file.
        size_bytes: Its size, including the external data that is present.
        opset: Version of ONNX's own operators; 0 if the model uses none.
        n_nodes: Nodes in the file.
        n_optimized: Nodes after ONNX Runtime's optimization, or None if that is not known.
        onnxruntime: Version of ONNX Runtime that was used.
        findings: Results of the checks, the worst first.
        skipped: Checks that could not be made.
    """

    model: str
    size_bytes: int
    opset: int
    n_nodes: int
    n_optimized: int | None
    onnxruntime: str
    findings: tuple[DoctorFinding, ...]
    skipped: tuple[SkippedCheck, ...] = ()

    @property
    def has_problem(self) -> bool:
        """Whether there is a problem that should be fixed."""
        return any(finding.severity == "problem" for finding in self.findings)

    def render(self, spell: Spelling = spell_in_python) -> Diagnosis:
        """Return a copy in which options are spelled as one interface does."""
        return msgspec.structs.replace(
            self,
            findings=tuple(
                msgspec.structs.replace(finding, fix=spell_options(finding.fix, spell)) for finding in self.findings
            ),
            skipped=tuple(
                msgspec.structs.replace(
                    skipped, why=spell_options(skipped.why, spell), fix=spell_options(skipped.fix, spell)
                )
                for skipped in self.skipped
            ),
        )


def ok(what: str, fix: str = "") -> DoctorFinding:
    """Return a finding that nothing needs to be fixed."""
    return DoctorFinding(severity="ok", what=what, fix=fix)


def advise(what: str, why: str, fix: str, command: str = "") -> DoctorFinding:
    """Return a finding whose fix is worth a try."""
    return DoctorFinding(severity="advice", what=what, why=why, fix=fix, command=command)


def warn(what: str, why: str, fix: str, command: str = "") -> DoctorFinding:
    """Return a finding that should be fixed."""
    return DoctorFinding(severity="problem", what=what, why=why, fix=fix, command=command)
