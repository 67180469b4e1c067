"""Results as JUnit's XML, which CI servers show: a test case for each gate."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.gate.reporters.messages import describe_finding, describe_sides, reason_of
from ortune.gate.results import GateError, GateResult


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
        case = TestCase(_clean(result.name), "ortune.gate")
        if isinstance(result, GateError):
            case.result = [Error(_clean(reason_of(result)), "error")]
        else:
            case.time = round(result.wall_s, 3)
            case.system_out = _clean("\n".join((*describe_sides(result), *map(describe_finding, result.findings))))
            if result.decision == "fail" or (result.decision == "inconclusive" and inconclusive_fails):
                case.result = [Failure(_clean(result.reason), result.decision)]
            elif result.decision == "inconclusive":
                case.result = [Skipped(_clean(result.reason), "inconclusive")]
        suite.add_testcase(case)
    suite.update_statistics()
    # Without counts of its own: the schema knows no skipped ones here.
    document = JUnitXml("ortune")
    document.add_testsuite(suite)
    return bytes(document.tostring())


def _clean(text: str) -> str:
    """Return text without characters that XML 1.0 does not have."""
    return "".join(each for each in text if each in "\t\n\r" or each.isprintable())
