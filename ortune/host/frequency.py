"""Reads how fast CPUs run at the moment."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ortune.host.linux import read_text


def read_frequencies_hz(cpus: Iterable[int], root: Path = Path("/")) -> dict[int, float]:
    """Return the frequency of each of these CPUs, without those whose frequency the system does not report.

    A virtual machine often has only /proc/cpuinfo, in which the frequency may be constant.

    Args:
        cpus: Numbers of the CPUs.
        root: Folder that contains `/proc` and `/sys`. Another root reads a dump of another host.

    Source: the kernel's documentation, admin-guide/pm/cpufreq: scaling_cur_freq is in kHz.
    """
    wanted = sorted(set(cpus))
    folder = root / "sys/devices/system/cpu"
    texts = {cpu: read_text(folder / f"cpu{cpu}/cpufreq/scaling_cur_freq") for cpu in wanted}
    found = {cpu: 1e3 * int(text) for cpu, text in texts.items() if re.fullmatch(r"[1-9]\d{0,8}", text)}
    if found or not wanted:
        return found
    pattern = re.compile(r"^processor\s*:\s*(\d{1,6})$(?:\n.+)*?\ncpu MHz\s*:\s*(\d{1,6}(?:\.\d+)?)$", re.MULTILINE)
    listed = {int(cpu): 1e6 * float(mhz) for cpu, mhz in pattern.findall(read_text(root / "proc/cpuinfo"))}
    return {cpu: listed[cpu] for cpu in wanted if listed.get(cpu)}
