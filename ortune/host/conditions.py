"""Conditions that can disturb a measurement: load, steal time, frequency governors, SMT, virtualization."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from ortune.host.cpuinfo import read_virtual
from ortune.host.linux import read_text
from ortune.replaceable import replaceable


class Conditions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conditions of a host. Fields are None if unknown.

    Attributes:
        load_1m: Mean number of runnable processes over the last minute.
        steal_share: Fraction of the CPU time since boot that the hypervisor gave to other virtual machines.
        governors: Frequency governors in use, such as "performance" or "powersave".
        smt_active: Whether cores run two or more hardware threads.
        virtual: Whether this is a virtual machine.
    """

    load_1m: float | None = None
    steal_share: float | None = None
    governors: tuple[str, ...] = ()
    smt_active: bool | None = None
    virtual: bool | None = None


@replaceable
def read_conditions(root: Path = Path("/")) -> Conditions:
    """Read the conditions of a host.

    Args:
        root: Folder that contains `/proc` and `/sys`. Another root reads a dump of another host.
    """
    cpu = root / "sys/devices/system/cpu"
    governors = {read_text(path) for path in sorted(cpu.glob("cpu[0-9]*/cpufreq/scaling_governor"))} - {""}
    smt = read_text(cpu / "smt/active")
    return Conditions(
        load_1m=_read_load(root),
        steal_share=_read_steal(root),
        governors=tuple(sorted(governors)),
        smt_active={"0": False, "1": True}.get(smt),
        virtual=read_virtual(root, read_text(root / "proc/cpuinfo")),
    )


def _read_load(root: Path) -> float | None:
    try:
        return float(read_text(root / "proc/loadavg").split()[0])
    except (IndexError, ValueError):
        pass
    try:
        return os.getloadavg()[0] if root == Path("/") else None
    except (AttributeError, OSError):
        return None


def _read_steal(root: Path) -> float | None:
    """Return steal time as a fraction of the CPU time since boot.

    Source: proc(5), first line of /proc/stat.
    """
    fields = read_text(root / "proc/stat").partition("\n")[0].split()
    if len(fields) < 9 or fields[0] != "cpu" or not all(re.fullmatch("[0-9]{1,18}", field) for field in fields[1:9]):
        return None
    times = [int(field) for field in fields[1:9]]
    return times[7] / sum(times) if sum(times) else None
