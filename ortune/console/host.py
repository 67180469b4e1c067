"""Output of `ortune host`: the topology as a tree, the limits of this process, and the conditions for measuring."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from ortune.console.warnings import warn_packages
from ortune.console.widgets import add_note, format_bytes, format_count, format_cpus, make_grid
from ortune.host import Core, Cpus, Host, HostClass
from ortune.host.conditions import Conditions
from ortune.host.default_pool import DefaultPool
from ortune.numbers import format_quota
from ortune.worker import Runtime
from ortune.worker.devices import Devices
from ortune.worker.installed import INSTALL_HINT, RuntimePackage
from ortune.worker.plugins import Device

Row = tuple[str, str | Text]
"""A name and what is shown for it."""

CORES_DRAWN = 32
"""Maximum number of cores of one L3 domain that are drawn individually. More are shown as ranges."""


def show_host(
    console: Console,
    host: Host,
    pool: DefaultPool,
    runtime: Runtime | None,
    packages: tuple[RuntimePackage, ...],
    devices: Devices,
    conditions: Conditions,
) -> None:
    """Print the host, its limits, its default thread pool, the installed onnxruntime, devices and the conditions."""
    console.print(draw_machine(host))
    console.print()
    grid = make_grid()
    for name, text in (
        *_make_limit_rows(host),
        *_make_runtime_rows(pool, runtime, packages),
        *_make_device_rows(devices),
    ):
        grid.add_row(name, text)
    console.print(grid)
    console.print()
    grid = make_grid()
    for name, text in _make_condition_rows(conditions, len(host.limits.usable)):
        grid.add_row(name, text)
    console.print(grid)


def draw_machine(host: Host) -> Tree:
    """Return the topology as a tree: packages, NUMA nodes, L3 domains, cores. CPUs that may not be used are dim."""
    topology = host.topology
    usable = set(host.limits.usable)
    n_cores = len(topology.cores)
    counts = [format_count(n_cores, "core")]
    if len(topology.online) != n_cores:
        counts.append(format_count(len(topology.online), "hardware thread"))
    tree = Tree(add_note((host.cpu_model or host.machine, "bold"), ", ".join(counts)), guide_style="dim")
    if topology.source != "sysfs":
        for number, kind in enumerate(topology.kinds):
            n_kind = sum(1 for core in topology.cores if core.kind == number)
            tree.add(
                f"{format_count(n_kind, 'core')}, {format_count(len(kind), 'thread')} of performance level {number}"
            )
        text = f"{host.system} reports only the number of CPUs: sockets, NUMA nodes and caches are unknown"
        tree.add(Text(text, "dim"))
        return tree
    domains = topology.l3_domains or (topology.online,)
    name = "L3" if topology.l3_domains else "cores"
    core_of = {cpu: core for core in topology.cores for cpu in core.cpus}
    domain_of = {cpu: position for position, domain in enumerate(domains) for cpu in domain}
    nodes = [(node, frozenset(node.cpus)) for node in topology.numa_nodes]
    for number, package in enumerate(topology.packages):
        branch = tree.add(f"package {number}") if len(topology.packages) > 1 else tree
        for node, cpus in nodes:
            members = [cpu for cpu in package if cpu in cpus]
            if not members:
                continue
            twig = branch.add(f"NUMA node {node.id}") if len(nodes) > 1 else branch
            for position in sorted({domain_of[cpu] for cpu in members if cpu in domain_of}):
                inside = [core_of[cpu] for cpu in members if domain_of.get(cpu) == position]
                cores = list({core.cpus: core for core in inside}.values())
                label = f"{name} {position}  " if len(domains) > 1 else f"{name}  "
                twig.add(Text.assemble((label, "cyan"), draw_cores(cores, usable, len(topology.kinds))))
    for node in topology.numa_nodes:
        if not node.cpus:
            tree.add(Text(f"NUMA node {node.id}: memory only", "dim"))
    return tree


def draw_cores(cores: list[Core], usable: set[int], n_kinds: int) -> Text:
    """Return the CPUs of each core, such as `[0 64]`, or ranges of CPUs if there are many cores."""
    if len(cores) > CORES_DRAWN:
        cpus = {cpu for core in cores for cpu in core.cpus}
        text = Text(f"{format_count(len(cores), 'core')}, CPUs {format_cpus(sorted(cpus & usable))}", "green")
        if cpus - usable:
            text.append(f"  not usable: {format_cpus(sorted(cpus - usable))}", "dim")
        return text
    text = Text()
    for core in cores:
        text.append("[", "dim")
        for position, cpu in enumerate(core.cpus):
            text.append(" " if position else "")
            text.append(str(cpu), "bold green" if cpu in usable else "dim strike")
        text.append("]", "dim")
        if n_kinds > 1 and core.kind is not None:
            text.append("P" if core.kind == n_kinds - 1 else "E", "yellow" if core.kind == n_kinds - 1 else "blue")
        text.append(" ")
    return text


def _make_limit_rows(host: Host) -> list[Row]:
    limits = host.limits
    n_usable, n_online = len(limits.usable), len(host.topology.online)
    usable = f"{_format_cpus(limits.usable)} on {format_count(len(host.usable_cores), 'core')}"
    rows: list[Row] = [("usable", usable)]
    if n_usable < n_online:
        rows = [("usable", Text.assemble((usable, "yellow"), f", of {n_online} online"))]
    quota = limits.quota
    host_class = HostClass.of(host)
    rows.insert(0, ("class", add_note(host_class.name, host_class.id)))
    rows.append(("quota", add_note((format_quota(quota.cpus), "yellow"), f"set in {quota.where}") if quota else "none"))
    if limits.memory_bytes is not None:
        rows.append(("memory", f"{format_bytes(limits.memory_bytes)} available"))
    return rows


def _format_cpus(cpus: Cpus) -> str:
    return f"{format_count(len(cpus), 'CPU')} ({format_cpus(sorted(cpus))})"


def _make_runtime_rows(pool: DefaultPool, runtime: Runtime | None, packages: tuple[RuntimePackage, ...]) -> list[Row]:
    n_pinned = len(pool.pinned)
    if pool.n_threads == 1:
        text = "one thread, no pool"
    elif pool.pinned:
        cpus = {cpu for group in pool.pinned for cpu in group}
        text = (
            f"{pool.n_threads} threads: the caller's, and {n_pinned} pinned "
            f"to {'CPU' if len(cpus) == 1 else 'CPUs'} {format_cpus(sorted(cpus))}"
        )
    else:
        text = f"{pool.n_threads} threads, not pinned"
    rows: list[Row] = [("ORT default", text), *(("", Text(fault, "yellow")) for fault in pool.faults)]
    if not pool.faults:
        rows = [("ORT default", Text.assemble(f"{text}  ", ("fits this host", "green")))]
    if pool.variable:
        rows.append(("", Text(f"set by {pool.variable}; models are measured without it", "dim")))
    if runtime:
        rows.append(("onnxruntime", add_note(runtime.onnxruntime, ", ".join(runtime.providers))))
        driver = f"NVIDIA driver {runtime.gpu_driver}"
        for number, name in enumerate(runtime.gpus):
            rows.append(("" if number else "GPU", name if number else add_note(name, driver)))
    elif packages:
        fault = f"{packages[0].name} {packages[0].version} cannot be imported"
        rows.append(("onnxruntime", Text(fault, "yellow")))
    else:
        rows.append(("onnxruntime", Text.assemble(("not installed", "yellow"), "  ", (INSTALL_HINT, "dim"))))
    if len(packages) > 1:
        rows.append(("", Text(warn_packages(packages), "yellow")))
    return rows


def _make_device_rows(devices: Devices) -> list[Row]:
    """Return the devices of execution providers, and the plugin packages that have none."""
    rows: list[Row] = []
    for device in devices.devices:
        where = add_note(f"{device.device_type} {device.vendor}".strip(), f"{device.provider}{_name_package(device)}")
        rows.append(("" if rows else "devices", where))
    for plugin in devices.plugins:
        if plugin.fault:
            name = f"{plugin.package} {plugin.version}".strip()
            rows.append(("" if rows else "devices", Text(f"{name} cannot be used: {plugin.fault}", "yellow")))
    return rows


def _name_package(device: Device) -> str:
    return f" of {device.package}" if device.package else ""


def _make_condition_rows(conditions: Conditions, n_usable: int) -> list[Row]:
    """Return the conditions that can disturb a measurement, each with its meaning."""
    rows: list[Row] = []
    load = conditions.load_1m
    if load is not None:
        meaning = "idle" if load < 0.1 * n_usable else "other processes run: disturbed blocks are repeated"
        rows.append(("load", add_note(f"{load:.2f}", meaning)))
    steal = conditions.steal_share
    if steal is not None:
        meaning = (
            "the hypervisor gives almost no CPU time to others"
            if steal < 0.01
            else "the hypervisor gives CPU time to others: expect drift"
        )
        rows.append(("steal", add_note(f"{steal:.1%}", meaning)))
    if conditions.governors:
        is_constant = conditions.governors == ("performance",)
        meaning = "clocks are constant" if is_constant else "clocks follow the load: times vary, ratios are reliable"
        rows.append(("governor", add_note(", ".join(conditions.governors), meaning)))
    elif conditions.virtual:
        meaning = "in a virtual machine, the hypervisor controls clocks and cores"
        rows.append(("governor", add_note("unknown", meaning)))
    if conditions.smt_active is not None:
        meaning = (
            "two threads share a core: more threads than cores rarely help"
            if conditions.smt_active
            else "each CPU is a separate core, as far as this system reports"
        )
        rows.append(("SMT", add_note("on" if conditions.smt_active else "off", meaning)))
    return rows or [("conditions", "unknown on this system")]
