"""Which CPUs the processes of a deployment get, on hosts with several NUMA nodes and L3 domains."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortune import Config, Deployment
from ortune.host import Core, Host, NumaNode, ProcessPlacement, place_processes
from ortune.host.placement import list_nodes, list_units
from ortune.measure.open import find_cpus
from ortune.planning.space import make_deployment_space
from ortune.workload import make_load
from tests.simulated import make_host

FOUR_NODES = make_host(16, n_nodes=4, domains_per_node=2)


def place(host: Host, n: int, threads: int | None = None, unit: str = "cores") -> ProcessPlacement:
    found = place_processes(host, n, threads=threads, unit=unit)  # type: ignore[arg-type]
    assert found
    return found


def find_parts(host: Host, cpus: tuple[int, ...]) -> tuple[int, int]:
    """Return how many nodes and how many L3 domains some CPUs belong to."""
    nodes = [set(node.cpus) for node in host.topology.numa_nodes]
    domains = [set(domain) for domain in host.topology.l3_domains]
    return tuple(sum(not part.isdisjoint(cpus) for part in parts) for parts in (nodes, domains))  # type: ignore[return-value]


def interleave(n_cores: int, n_nodes: int) -> Host:
    """Return a host whose CPUs are numbered across its nodes: 0 is on the first node, 1 on the second."""
    host = make_host(n_cores)
    cpus = [tuple(range(node, n_cores, n_nodes)) for node in range(n_nodes)]
    topology = msgspec.structs.replace(
        host.topology,
        numa_nodes=tuple(NumaNode(id=number, cpus=node_cpus) for number, node_cpus in enumerate(cpus)),
        l3_domains=tuple(cpus),
    )
    return msgspec.structs.replace(host, topology=topology)


def test_one_node() -> None:
    host = make_host(12)
    assert list_units(host) == ("cores",)
    assert place(host, 2).cpus == (tuple(range(6)), tuple(range(6, 12)))
    assert place(host, 2).title == "pinned apart"
    assert place(make_host(5, smt=2), 2).cpus == ((0, 1, 2, 3), (4, 5, 6, 7))  # a core is left over
    assert place_processes(host, 13) is None
    assert place_processes(host, 2, unit="nodes") is None
    assert place_processes(host, 2, unit="L3 domains") is None
    assert place_processes(host, 0) is None


def test_units_of_a_host_with_nodes() -> None:
    assert list_units(FOUR_NODES) == ("cores", "nodes", "L3 domains")
    assert list_units(make_host(16, n_nodes=4)) == ("cores", "nodes")
    assert [len(node) for node in list_nodes(FOUR_NODES)] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("n", "threads", "nodes_each", "cpus"),
    [
        (4, 4, 1, ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15))),
        (2, 8, 2, (tuple(range(8)), tuple(range(8, 16)))),
        # Three nodes are enough for three processes: one node is left over, and none is crossed.
        (3, 4, 1, ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))),
        (3, None, 1, ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))),
        # With five threads each, crossing cannot be avoided.
        (3, 5, 2, ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9), (10, 11, 12, 13, 14))),
        # Evenly over the nodes, each within an L3 domain.
        (6, 2, 1, ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (12, 13))),
        (5, None, 1, ((0, 1), (2, 3), (4, 5), (8, 9), (12, 13))),
    ],
)
def test_cores_of_their_own(n: int, threads: int | None, nodes_each: int, cpus: tuple[tuple[int, ...], ...]) -> None:
    found = place(FOUR_NODES, n, threads)
    assert found.cpus == cpus
    assert found.nodes_each == nodes_each


def test_titles() -> None:
    assert place(FOUR_NODES, 4, 4).title == "pinned apart within nodes"
    assert place(FOUR_NODES, 2, 8).title == "pinned apart on 2 nodes each"
    assert place(FOUR_NODES, 8, 4, "nodes").title == "pinned to nodes"
    assert place(FOUR_NODES, 8, 2, "L3 domains").title == "pinned to L3 domains"


def test_processes_that_share_nodes_and_domains() -> None:
    found = place(FOUR_NODES, 10, 1, "nodes")
    assert [found.cpus.count(node.cpus) for node in FOUR_NODES.topology.numa_nodes] == [3, 3, 2, 2]
    assert place(FOUR_NODES, 8, 2, "L3 domains").cpus == FOUR_NODES.topology.l3_domains
    # Fewer than nodes: each has one for itself.
    assert place(FOUR_NODES, 2, 4, "nodes").cpus == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert place_processes(FOUR_NODES, 2, threads=5, unit="nodes") is None


def test_cpus_that_are_numbered_across_nodes() -> None:
    host = interleave(8, 2)
    assert list_nodes(host) == ((((0,), (2,), (4,), (6,)),), (((1,), (3,), (5,), (7,)),))
    assert place(host, 2).cpus == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert place(host, 4).cpus == ((0, 2), (4, 6), (1, 3), (5, 7))


def test_only_usable_cpus_count() -> None:
    host = make_host(16, n_nodes=4, usable=(4, 5, 6, 7, 12, 13))
    found = place(host, 3, 2)
    assert found.cpus == ((4, 5), (6, 7), (12, 13))
    assert list_units(make_host(16, n_nodes=4, usable=(4, 5, 6, 7))) == ("cores",)


def test_a_host_of_which_little_is_known() -> None:
    host = make_host(4)
    topology = msgspec.structs.replace(host.topology, numa_nodes=(), l3_domains=())
    assert place(msgspec.structs.replace(host, topology=topology), 2).cpus == ((0, 1), (2, 3))


@given(
    n_nodes=st.sampled_from([1, 2, 3, 4, 8]),
    domains=st.sampled_from([1, 2]),
    per_domain=st.integers(1, 8),
    n=st.integers(1, 40),
    threads=st.none() | st.integers(1, 16),
    smt=st.sampled_from([1, 2]),
)
def test_processes_never_share_cores_and_cross_no_node_without_need(
    n_nodes: int, domains: int, per_domain: int, n: int, threads: int | None, smt: int
) -> None:
    per_node = domains * per_domain
    host = make_host(n_nodes * per_node, smt=smt, n_nodes=n_nodes, domains_per_node=domains)
    found = place_processes(host, n, threads=threads)
    n_cores = len(host.usable_cores)
    if found is None:
        assert n_cores // n < (threads or 1)
        return
    used = [cpu for process_cpus in found.cpus for cpu in process_cpus]
    assert len(used) == len(set(used))
    assert len(found.cpus) == n
    assert len({len(process_cpus) for process_cpus in found.cpus}) == 1
    assert all(len(process_cpus) >= smt * (threads or 1) for process_cpus in found.cpus)
    crossed = [find_parts(host, process_cpus) for process_cpus in found.cpus]
    if threads and n_nodes * (per_node // threads) >= n:
        assert all(nodes == 1 for nodes, _ in crossed)
    if threads and n_nodes * domains * (per_domain // threads) >= n:
        assert all(parts == 1 for _, parts in crossed)
    for unit in list_units(host)[1:]:
        shared = place_processes(host, n, threads=threads, unit=unit)
        if shared:
            assert all(find_parts(host, process_cpus)[unit == "L3 domains"] == 1 for process_cpus in shared.cpus)


def test_loads_that_are_pinned_are_placed() -> None:
    assert find_cpus(FOUR_NODES, make_load(processes=2, pinned=True)) == (tuple(range(8)), tuple(range(8, 16)))
    assert find_cpus(FOUR_NODES, make_load(processes=2)) == ()


def test_deployments_are_placed() -> None:
    space = make_deployment_space(FOUR_NODES, Config())
    first = space.list_first()
    titles = {deployment.placement.title for deployment in first if deployment.placement}
    assert titles == {"pinned apart within nodes", "pinned apart on 2 nodes each"}
    one_per_node = next(deployment for deployment in first if deployment.processes == 4 and deployment.placement)
    assert one_per_node.title == "4 processes · pinned apart within nodes · intra threads=4"
    variants = space.list_variants(space.find_shape(one_per_node))
    units = {
        variant.placement and variant.placement.unit
        for variant in variants
        if variant.processes == 4 and variant.clients == 1
    }
    assert {None, "nodes"} <= units
    assert "L3 domains" not in units  # four threads do not fit into a domain of two cores
    for deployment in (*first, *variants):
        assert space.make(space.find_shape(deployment)) == deployment


def test_a_deployment_needs_the_cpus_of_each_process() -> None:
    placement = ProcessPlacement(unit="cores", cpus=((0,), (1,)))
    assert Deployment(processes=2, placement=placement).cpus == ((0,), (1,))
    with pytest.raises(ValueError, match="3 processes with the CPUs of 2"):
        Deployment(processes=3, placement=placement)
    with pytest.raises(ValueError, match="must have CPUs"):
        ProcessPlacement(unit="cores", cpus=((0,), ()))


def test_cores_without_a_node() -> None:
    host = make_host(4, n_nodes=2)
    cores = (*host.topology.cores[:3], Core(cpus=(9,)))
    topology = msgspec.structs.replace(host.topology, cores=cores)
    limits = msgspec.structs.replace(host.limits, usable=(0, 1, 2, 9))
    host = msgspec.structs.replace(host, topology=topology, limits=limits)
    assert [cpus for node in list_nodes(host) for domain in node for cpus in domain] == [(0,), (1,), (2,), (9,)]
    config = Config(session_options={"intra_op_num_threads": 1})
    assert Deployment(processes=4, config=config, placement=place(host, 4, 1)).cpus == ((0,), (1,), (2,), (9,))
