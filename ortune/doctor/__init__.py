"""The doctor: what in a model keeps ONNX Runtime from running it fast, why it matters, and the hint."""

from __future__ import annotations

from ortune.doctor.examine import DoctorRequest, examine
from ortune.doctor.values import Diagnosis, Finding, Graphs, Severity, Unchecked

__all__ = ["Diagnosis", "DoctorRequest", "Finding", "Graphs", "Severity", "Unchecked", "examine"]
