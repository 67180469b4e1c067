"""The doctor: what in a model keeps ONNX Runtime from running it fast, why it matters, and the cure."""

from __future__ import annotations

from ortune.doctor.examine import Patient, examine
from ortune.doctor.values import Diagnosis, Finding, Graphs, Severity, Unchecked

__all__ = ["Diagnosis", "Finding", "Graphs", "Patient", "Severity", "Unchecked", "examine"]
