"""The checks of `ortune doctor`, in order.

A check is a function that takes `ModelFacts` and returns a finding made by `ok`, `advise` or `warn`, or None if it does
not apply to the model. The first line of its docstring says what it finds; the documentation shows that line. To add a
check, write the function in the module of its subject and add it to `CHECKS`, with a name and the facts that it needs.

Most checks come from the troubleshooting section of ONNX Runtime's documentation on performance tuning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from ortune.doctor.checks.fusion import check_attention, check_gelu
from ortune.doctor.checks.graph import (
    check_constants,
    check_control_flow,
    check_initializers,
    check_layout,
    check_overhead,
    check_shapes,
)
from ortune.doctor.checks.loading import (
    check_creation,
    check_external_data,
    check_loading,
    check_operators,
    check_opset,
    check_package,
)
from ortune.doctor.checks.placement import check_cuda_graphs, check_placement, check_providers
from ortune.doctor.checks.precision import check_casts, check_float64, check_quantization
from ortune.doctor.facts import Missing, ModelFacts
from ortune.doctor.findings import SEVERITIES, DoctorFinding, SkippedCheck


class Check(NamedTuple):
    """A check.

    Attributes:
        name: Its name in findings.
        run: Makes the check.
        needs: Attributes of `ModelFacts` that must not be None.
    """

    name: str
    run: Callable[[ModelFacts], DoctorFinding | None]
    needs: tuple[str, ...] = ()


CHECKS = (
    Check("package", check_package),
    Check("loading", check_loading),
    Check("external data", check_external_data),
    Check("operators", check_operators),
    Check("opset", check_opset),
    Check("initializers", check_initializers),
    Check("constants", check_constants, ("extended",)),
    Check("layout", check_layout, ("extended", "optimized")),
    Check("attention", check_attention, ("optimized",)),
    Check("GELU", check_gelu, ("optimized",)),
    Check("quantization", check_quantization, ("optimized",)),
    Check("casts", check_casts, ("optimized",)),
    Check("float64", check_float64, ("dtypes",)),
    Check("shapes", check_shapes, ("optimized",)),
    Check("control flow", check_control_flow),
    Check("providers", check_providers, ("session_providers",)),
    Check("placement", check_placement, ("assigned",)),
    Check("CUDA graphs", check_cuda_graphs),
    Check("creation", check_creation, ("creation_ns",)),
    Check("overhead", check_overhead, ("optimized", "run_ns")),
)
"""All checks, in the order in which findings of equal severity are shown."""


def run_checks(
    checks: Sequence[Check], facts: ModelFacts
) -> tuple[tuple[DoctorFinding, ...], tuple[SkippedCheck, ...]]:
    """Return the findings, the worst first, and the checks that could not be made."""
    findings: list[DoctorFinding] = []
    skipped: list[SkippedCheck] = []
    for check in checks:
        lacking = [name for name in check.needs if getattr(facts, name) is None]
        if lacking:
            missing = facts.missing.get(lacking[0], Missing(f"{lacking[0]} is not known"))
            skipped.append(SkippedCheck(check=check.name, why=missing.why, fix=missing.fix))
        elif finding := check.run(facts):
            findings.append(msgspec.structs.replace(finding, check=check.name))
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return tuple(findings), tuple(skipped)
