"""Results as JUnit XML, which CI services display: one test case per gate."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.gates.reporters.messages import describe_finding, describe_sides
from ortune.gates.results import GateError, GateResult
from ortune.sanitize import printable


def render_junit(results: Sequence[GateResult | GateError], *, inconclusive_fails: bool) -> bytes:
    """Return the document.

    Args:
        results: The gates.
        inconclusive_fails: Whether an inconclusive gate is a failure; otherwise it is skipped.
    """
    from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

    suite = TestSuite("ortune gate")
    for result in results:
        case = TestCase(printable(result.name), "ortune.gate")
        if isinstance(result, GateError):
            case.result = [Error(printable(result.reason), "error")]
        else:
            case.time = round(result.wall_s, 3)
            lines = (*describe_sides(result), *map(describe_finding, result.findings), *result.notes)
            case.system_out = "\n".join(map(printable, lines))
            if result.decision == "fail" or (result.decision == "inconclusive" and inconclusive_fails):
                case.result = [Failure(printable(result.reason), result.decision)]
            elif result.decision == "inconclusive":
                case.result = [Skipped(printable(result.reason), "inconclusive")]
        suite.add_testcase(case)
    suite.update_statistics()
    # The document has no counts of its own: the schema does not allow `skipped` there.
    document = JUnitXml("ortune")
    document.add_testsuite(suite)
    return bytes(document.tostring())
