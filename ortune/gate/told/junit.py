"""Results as JUnit's XML, which CI servers show: a test case for each gate."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.gate.told.words import describe_finding, describe_sides, reason_of
from ortune.gate.values import GateError, GateResult


def junit(results: Sequence[GateResult | GateError], *, inconclusive_fails: bool) -> bytes:
    """Return the document.

    A gate that is inconclusive is skipped, or failed where that is asked for.

    Args:
        results: The gates.
        inconclusive_fails: Whether an inconclusive gate is a failure.
    """
    from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

    suite = TestSuite("ortune gate")
    for result in results:
        case = TestCase(result.name, "ortune.gate")
        if isinstance(result, GateError):
            case.result = [Error(reason_of(result), "error")]
        else:
            case.time = round(result.wall_s, 3)
            case.system_out = "\n".join((*describe_sides(result), *map(describe_finding, result.findings)))
            if result.decision == "fail" or (result.decision == "inconclusive" and inconclusive_fails):
                case.result = [Failure(result.reason, result.decision)]
            elif result.decision == "inconclusive":
                case.result = [Skipped(result.reason, "inconclusive")]
        suite.add_testcase(case)
    suite.update_statistics()
    # Without counts of its own: the schema knows no skipped ones here.
    document = JUnitXml("ortune")
    document.add_testsuite(suite)
    return bytes(document.tostring())
