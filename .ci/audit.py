"""Audits lock files for known vulnerabilities: `python .ci/audit.py requirements/*.txt`.

pip-audit asks PyPI or OSV about each version. Where a mirror stands in for PyPI, pip-audit fails or, worse, skips all
packages and reports that it found nothing. This script exits with 1 only if there is a known vulnerability or the files
are not valid. It says so if no service could be asked, and names versions that the service does not know.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

SERVICES = ("pypi", "osv")
OPTIONS = ("--require-hashes", "--disable-pip", "--progress-spinner=off", "--format=json")
NO_ANSWER = re.compile(r"requests\.exceptions\.|ServiceError|Could not connect|not redirecting|network may be blocking")
SHOWN = 10
"""Versions to name at most."""

Dependencies = list[dict[str, Any]]
"""What pip-audit reports: packages, each with its known vulnerabilities or the reason why it was skipped."""


def main(paths: list[str]) -> int:
    """Audit the files, print the result, and return the exit status."""
    for service in SERVICES:
        dependencies = ask(service, paths)
        if any("skip_reason" not in dependency for dependency in dependencies):
            return report(dependencies)
    print(f"pip-audit: NOT AUDITED. No service answers here: {', '.join(SERVICES)}")
    return 0


def ask(service: str, paths: list[str]) -> Dependencies:
    """Return what pip-audit reports; nothing if the service does not answer.

    Raises:
        SystemExit: pip-audit failed for another reason.
    """
    files = [word for path in paths for word in ("--requirement", path)]
    command = [sys.executable, "-m", "pip_audit", f"--vulnerability-service={service}", *OPTIONS, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return list(json.loads(done.stdout)["dependencies"])
    except (ValueError, KeyError):
        if NO_ANSWER.search(done.stderr):
            return []
        sys.exit(done.stderr or f"pip-audit exited with status {done.returncode}")


def report(dependencies: Dependencies) -> int:
    """Print what was found, and return the exit status."""
    asked = [dependency for dependency in dependencies if "skip_reason" not in dependency]
    skipped = sorted(
        {dependency["skip_reason"].rpartition(": ")[2] for dependency in dependencies if "skip_reason" in dependency}
    )
    vulnerable = [package for package in asked if package["vulns"]]
    for package in vulnerable:
        for found in package["vulns"]:
            fixed = ", ".join(found["fix_versions"]) or "no version"
            print(f"pip-audit: {package['name']} {package['version']} has {found['id']}, fixed in {fixed}")
    if skipped:
        more = f" and {len(skipped) - SHOWN} more" if len(skipped) > SHOWN else ""
        print(f"pip-audit: NOT AUDITED, unknown to the service: {', '.join(skipped[:SHOWN])}{more}")
    print(f"pip-audit: {len(asked)} versions audited, {len(skipped)} not audited, {len(vulnerable)} vulnerable")
    return 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
