"""Reads the CPUs of a Linux host from /proc/cpuinfo, and their caches, the machine and its memory from sysfs.

Files that are missing, empty or invalid make the result less detailed; they never raise an exception.

Source: `arch/x86/kernel/cpu/proc.c` and `arch/arm64/kernel/cpuinfo.c` of Linux, and its documentation:
Documentation/ABI/stable/sysfs-devices-system-cpu and Documentation/ABI/testing/sysfs-devices-edac.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from ortune.host.linux import find_numbered, read_text
from ortune.host.processor import (
    Caches,
    CpuType,
    Processor,
    limit_identifier,
    limit_text,
    select_instructions,
)
from ortune.host.topology import Topology

MOST_TYPES = 8
"""Maximum number of kinds of cores that are distinguished on one host."""

VIRTUAL_MACHINES = re.compile(
    r"KVM|QEMU|Google Compute Engine|Virtual Machine|VMware|VirtualBox|innotek|Xen|Parallels|BHYVE|OpenStack|"
    r"Apple Virtualization|Alibaba Cloud|Amazon EC2",
    re.IGNORECASE,
)
"""Manufacturers and products in the DMI table of virtual machines.

Source: `src/basic/virt.c` of systemd.
"""


def read_processor(root: Path, topology: Topology, usable: Collection[int], cpuinfo: str) -> Processor:
    """Describe the CPUs that a process may use.

    Args:
        root: Folder that contains `/proc` and `/sys`.
        topology: The CPUs.
        usable: Those that the process may use.
        cpuinfo: Text of /proc/cpuinfo.
    """
    blocks = _list_types(cpuinfo, set(usable))
    flags = [_read_flags(block) for block in blocks]
    return Processor(
        cpu=_join_types([found for block in blocks if (found := _read_type(block))]),
        instructions=select_instructions(set.intersection(*flags) if flags else set()),
        caches=_read_caches(root, topology, set(usable)),
        platform="" if find_model_name(cpuinfo) else _read_platform(root),
        virtual=read_virtual(root, cpuinfo),
        n_memory_channels=_count_memory_channels(root),
    )


def find_model_name(cpuinfo: str) -> str:
    """Return the marketing name of the CPU, or "" if unknown. ARM kernels do not report it."""
    match = re.search(r"^model name\s*:(.+)$", cpuinfo, re.MULTILINE)
    return limit_text(match[1]) if match else ""


def read_virtual(root: Path, cpuinfo: str) -> bool | None:
    """Return whether the host is a virtual machine, or None if unknown. ARM CPUs have no such flag."""
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    if flags:
        return "hypervisor" in flags[1].split()
    if (root / "proc/device-tree/hypervisor").is_dir() or read_text(root / "sys/hypervisor/type"):
        return True
    dmi = root / "sys/class/dmi/id"
    maker, product = read_text(dmi / "sys_vendor")[:256], read_text(dmi / "product_name")[:256]
    if not maker and not product:
        return None
    return bool(VIRTUAL_MACHINES.search(f"{maker} {product}")) and not product.endswith(".metal")


def _list_types(cpuinfo: str, usable: set[int]) -> list[str]:
    """Return the distinct descriptions of the usable CPUs, without their numbers.

    On x86, each description has the frequency of its CPU, so the first one is used for all: kinds of cores differ in
    neither family and model nor flags.
    """
    blocks = re.split(r"^processor[ \t]*:[ \t]*", cpuinfo, flags=re.MULTILINE)
    found: dict[str, None] = {}
    for block in blocks[1:]:
        number, _, rest = block.partition("\n")
        if re.fullmatch(r"[0-9]{1,6}", number.strip()) and int(number) in usable:
            found[rest.strip()] = None
            if "vendor_id" in rest or len(found) == MOST_TYPES:
                break
    if any(_read_type(block) for block in found):
        return list(found)
    # Old kernels on ARM describe all CPUs once, at the end.
    return [cpuinfo[-(1 << 14) :]] if cpuinfo else []


def _find(block: str, name: str) -> str:
    match = re.search(rf"^{name}[ \t]*:(.*)$", block, re.MULTILINE)
    return limit_identifier(match[1]) if match else ""


def _read_type(block: str) -> CpuType | None:
    if vendor := _find(block, "vendor_id"):
        return CpuType(
            vendor=vendor,
            family=_find(block, "cpu family"),
            model=_find(block, "model"),
            stepping=_find(block, "stepping"),
        )
    if implementer := _find(block, "CPU implementer"):
        variant, revision = _find(block, "CPU variant"), _find(block, "CPU revision")
        is_known = re.fullmatch(r"0x[0-9a-fA-F]{1,2}", variant) and re.fullmatch(r"[0-9]{1,2}", revision)
        return CpuType(
            vendor=implementer.lower(),
            family=_find(block, "CPU architecture"),
            model=_find(block, "CPU part").lower(),
            stepping=f"r{int(variant, 16)}p{int(revision)}" if is_known else "",
        )
    return None


def _join_types(types: list[CpuType]) -> CpuType | None:
    """Return several kinds of cores as one type, in an order that does not depend on how CPUs are numbered."""
    distinct = sorted(
        set(types), key=lambda core_type: (core_type.vendor, core_type.family, core_type.model, core_type.stepping)
    )
    if len(distinct) < 2:
        return distinct[0] if distinct else None
    joined = {}
    for name in CpuType.__struct_fields__:
        values = [getattr(core_type, name) for core_type in distinct]
        joined[name] = values[0] if len(set(values)) == 1 else "+".join(values)
    return CpuType(**joined)


def _read_flags(block: str) -> set[str]:
    match = re.search(r"^(?:flags|Features)[ \t]*:(.*)$", block, re.MULTILINE)
    return set(match[1].split()) if match else set()


def _read_caches(root: Path, topology: Topology, usable: set[int]) -> Caches | None:
    """Return the sizes of the largest caches. One CPU of each kind and of each L3 domain is read."""
    groups = (*(topology.kinds or (topology.online,)), *topology.l3_domains)
    cpus = {next((cpu for cpu in group if cpu in usable), None) for group in groups} - {None}
    sizes: dict[str, int] = {}
    for cpu in cpus:
        for name, size in _read_cache_sizes(root / f"sys/devices/system/cpu/cpu{cpu}/cache"):
            sizes[name] = max(size, sizes.get(name, 0))
    return Caches(**sizes) if sizes else None


def _read_cache_sizes(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield the sizes of the caches of a CPU that hold data, by the name of the field in `Caches`."""
    for index in find_numbered(folder, "index").values():
        name = {"1": "l1d_bytes", "2": "l2_bytes", "3": "l3_bytes"}.get(read_text(index / "level"))
        size = re.fullmatch(r"([0-9]{1,9})([KMG]?)", read_text(index / "size"))
        if name and size and int(size[1]) and read_text(index / "type") != "Instruction":
            yield name, int(size[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[size[2]]


def _read_platform(root: Path) -> str:
    """Return the manufacturer of the machine, or its model on boards without a DMI table."""
    maker = limit_text(read_text(root / "sys/class/dmi/id/sys_vendor"))
    model = limit_text(read_text(root / "proc/device-tree/model"))
    return maker or re.sub(r" Rev [\d.]+$", "", model)


def _count_memory_channels(root: Path) -> int | None:
    """Return the number of memory channels with a module, or None where no EDAC driver reports them."""
    channels = set()
    for controller, path in find_numbered(root / "sys/devices/system/edac/mc", "mc").items():
        for prefix in ("dimm", "rank"):
            for module in find_numbered(path, prefix).values():
                place = re.search(r"\bchannel ([0-9]{1,3})\b", read_text(module / "dimm_location"))
                if place and read_text(module / "size") not in {"", "0"}:
                    channels.add((controller, int(place[1])))
    return len(channels) or None
