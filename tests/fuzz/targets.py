"""All fuzz targets by name."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fuzz.canaries import CANARIES
from tests.fuzz.gate_files import GATE_FILES
from tests.fuzz.histories import HISTORIES, TRIALS
from tests.fuzz.journals import JOURNALS
from tests.fuzz.lengths import LENGTHS
from tests.fuzz.models import MODELS
from tests.fuzz.npz import NPZ
from tests.fuzz.observed import CALLS, PROCESSES, SESSIONS
from tests.fuzz.options import OPTIONS
from tests.fuzz.plans import PLANS
from tests.fuzz.records import RECORDS
from tests.fuzz.reports import REPORTS
from tests.fuzz.sysfs import SYSFS
from tests.fuzz.target import Target

TARGETS: Mapping[str, Target] = {
    "records": RECORDS,
    "gates": GATE_FILES,
    "options": OPTIONS,
    "npz": NPZ,
    "models": MODELS,
    "sysfs": SYSFS,
    "histories": HISTORIES,
    "trials": TRIALS,
    "journals": JOURNALS,
    "processes": PROCESSES,
    "calls": CALLS,
    "sessions": SESSIONS,
    "plans": PLANS,
    "lengths": LENGTHS,
    "reports": REPORTS,
    "canaries": CANARIES,
}
"""All targets by name."""
