"""Chooses the execution providers that work on this host."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.errors import UsageError
from ortune.knobs.config import CPU
from ortune.knobs.providers import find_provider
from ortune.worker.runtime import NOT_FOR_SEARCHES, find_provider_fault, read_installed_runtime


def choose_providers(wanted: Sequence[str] | None) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the execution providers to try, and the reasons why others do not work on this host.

    Args:
        wanted: Names or short names; None for the CPU and all others that work.

    Raises:
        UsageError: A name is unknown, or none of the wanted providers works.
    """
    if wanted is not None and all(find_provider(text).name == CPU for text in wanted):
        return (CPU,), {}
    runtime = read_installed_runtime()
    known = runtime.providers if runtime else ()
    installed = "the installed onnxruntime does not have it" if runtime else "onnxruntime is not installed"
    if wanted is None:
        names = (CPU, *(name for name in known if name not in {CPU, *NOT_FOR_SEARCHES}))
    else:
        names = tuple(dict.fromkeys(find_provider(text).name for text in wanted))
    faults = {}
    for name in names:
        if name not in known and name != CPU:
            package = find_provider(name).package
            faults[name] = f"{installed}; {package} has it"
        elif name != CPU and (fault := find_provider_fault(name)):
            faults[name] = fault
    working = tuple(name for name in names if name not in faults)
    if not working:
        reasons = "; ".join(f"{find_provider(name).alias}: {fault}" for name, fault in faults.items())
        needs = "; ".join(needs for name in names if (needs := find_provider(name).needs))
        raise UsageError(
            f"{','.join(wanted or ())}: none of these providers works here. {reasons}.",
            f"It needs {needs}." if needs else "",
            option="provider",
        )
    return working, faults
