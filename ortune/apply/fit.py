"""Finds differences between the recorded host, software and background load and these."""

from __future__ import annotations

import re
import shlex

import msgspec

from ortune.host import Host, HostClass
from ortune.host.host_class import PROPERTY_NAMES, format_difference
from ortune.record.gpus import find_gpu_difference
from ortune.record.schema import Record
from ortune.record.select import minor_version
from ortune.worker import Runtime
from ortune.worker.installed import name_package
from ortune.workload.workload import BackgroundProgram

VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]{0,39}", re.ASCII)
"""Versions that a command may contain. A record is untrusted, and users copy commands to a shell."""


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which a record does not fit.

    Attributes:
        what: The property that differs.
        recorded: Its value in the record.
        here: Its value on this host.
        hint: What to do, as a sentence.
    """

    what: str
    recorded: str
    here: str
    hint: str


def find_mismatches(record: Record, host: Host, runtime: Runtime) -> tuple[Mismatch, ...]:
    """Return the differences between the recorded host and software and these that may change which config is best."""
    search = f"Search again here: ortune search {shlex.quote(record.model.path)}."
    mismatches = []
    for name, values in record.host.differences(HostClass.of(host)).items():
        recorded, here = format_difference(name, *values)
        mismatches.append(Mismatch(what=PROPERTY_NAMES[name], recorded=recorded, here=here, hint=search))
    if minor_version(record.runtime.onnxruntime) != minor_version(runtime.onnxruntime):
        mismatches.append(
            Mismatch(
                what="onnxruntime",
                recorded=record.runtime.onnxruntime,
                here=runtime.onnxruntime,
                hint=_install(name_package(), record.runtime.onnxruntime),
            )
        )
    for name, _ in record.config.providers:
        plugin = record.config.plugins.get(name)
        if plugin and plugin.package not in runtime.plugins:
            mismatches.append(
                Mismatch(
                    what="execution provider",
                    recorded=f"{name} of {plugin.package}",
                    here=", ".join((*runtime.providers, *runtime.plugins)),
                    hint=f"Install it alongside onnxruntime: pip install {plugin.package}.",
                )
            )
        elif plugin and runtime.plugins[plugin.package] != (version := record.runtime.plugins.get(plugin.package, "")):
            mismatches.append(
                Mismatch(
                    what=plugin.package,
                    recorded=version,
                    here=runtime.plugins[plugin.package],
                    hint=_install(plugin.package, version),
                )
            )
        if not plugin and name not in runtime.providers:
            mismatches.append(
                Mismatch(
                    what="execution provider",
                    recorded=name,
                    here=", ".join(runtime.providers),
                    hint=f"Install an onnxruntime package that has {name}.",
                )
            )
    if gpus := find_gpu_difference(record, runtime.gpus):
        mismatches.append(Mismatch(what="GPU", recorded=gpus.recorded, here=gpus.here, hint=search))
    return tuple(mismatches)


def find_all_mismatches(record: Record, host: Host, runtime: Runtime, beside: str | None) -> tuple[Mismatch, ...]:
    """Return the same, and the difference between background loads, for what is measured; see `find_load_mismatch`."""
    return (*find_mismatches(record, host, runtime), *find_load_mismatch(record, beside))


def find_load_mismatch(record: Record, beside: str | None) -> tuple[Mismatch, ...]:
    """Return how the background load of a record differs from that of a verification, in a tuple.

    Args:
        record: The record.
        beside: The command of the background load here, or None.

    Returns:
        One mismatch, or none if both are the same.
    """
    recorded, here = record.workload.background_load, None if beside is None else BackgroundProgram.of(beside)
    if recorded == here:
        return ()
    if here is None:
        shown = "none"
    elif recorded is not None and recorded.program == here.program:
        shown = "another command"
    else:
        shown = here.program
    return (
        Mismatch(
            what="background load",
            recorded=recorded.program if recorded else "none",
            here=shown,
            hint="Run the recorded background load." if recorded else "Verify without a background load.",
        ),
    )


def find_speed_mismatch(record: Record, *, sustained: bool) -> tuple[Mismatch, ...]:
    """Return that only one of a record and a verification is about the speed that a host sustains; empty if not."""
    if record.workload.sustained == sustained:
        return ()
    recorded, here = ("sustained", "interleaved") if record.workload.sustained else ("interleaved", "sustained")
    return (Mismatch(what="speed", recorded=recorded, here=here, hint="Search again at the other speed."),)


def _install(package: str, version: str) -> str:
    """Return how to install the recorded version of a package. If it is not a version, there is no command."""
    command = f": pip install {package}=={version};" if VERSION.fullmatch(version) else f" of {package},"
    return f"Install the recorded version{command} or search again here."
