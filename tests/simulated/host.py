"""Hosts and models that do not exist."""

from __future__ import annotations

from ortune.host import Core, Host, HostLimits, NumaNode, Topology
from ortune.model import InputInfo, ModelFile, ModelInfo, OutputInfo, Traits


def make_host(
    n_cores: int = 2,
    *,
    smt: int = 1,
    n_nodes: int = 1,
    domains_per_node: int = 1,
    usable: tuple[int, ...] | None = None,
) -> Host:
    n_cpus = n_cores * smt
    online = tuple(range(n_cpus))
    per_node = n_cpus // n_nodes
    nodes = tuple(
        NumaNode(id=number, cpus=online[number * per_node : (number + 1) * per_node]) for number in range(n_nodes)
    )
    per_domain = per_node // domains_per_node
    return Host(
        system="Linux",
        machine="x86_64",
        cpu_model="Simulated",
        topology=Topology(
            online=online,
            cores=tuple(Core(cpus=online[first : first + smt]) for first in range(0, n_cpus, smt)),
            packages=(online,),
            numa_nodes=nodes,
            l3_domains=tuple(online[first : first + per_domain] for first in range(0, n_cpus, per_domain)),
            source="sysfs",
        ),
        limits=HostLimits(usable=online if usable is None else usable),
    )


def make_model(width: int = 3, inputs: tuple[InputInfo, ...] = ()) -> ModelInfo:
    return ModelInfo(
        path="/nowhere/model.onnx",
        files=(ModelFile(name="model.onnx", size_bytes=1, sha256="0" * 64),),
        inputs=inputs,
        outputs=(OutputInfo(name="y"),),
        traits=Traits(
            opset=17, ir_version=8, n_nodes=9, width=width, quantized=False, control_flow=False, ops={"Conv": 9}
        ),
    )
