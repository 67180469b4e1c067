"""Writes the graphs that ONNX Runtime makes of a model, and computes their digests in a child process.

`python -m ortune.worker.graphs ANSWER` is the child; see `ortune.worker.child_process`.
"""

from __future__ import annotations

import concurrent.futures
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from ortune.knobs import ids
from ortune.knobs.canonical import canonical
from ortune.knobs.catalogue import KNOBS
from ortune.knobs.config import CPU, DEFAULT, Config
from ortune.knobs.space import SearchSpace
from ortune.knobs.twins import list_graph_variants, merge_twins
from ortune.model import ModelInfo
from ortune.model.graph_digest import digest_graph
from ortune.replaceable import replaceable
from ortune.steps import enter_step
from ortune.worker.child_process import Enter, answer_parent, ask_child
from ortune.worker.failure import Failure
from ortune.worker.owned_folder import OwnedFolder
from ortune.worker.session import make_session

WEIGHTS_FILE = "weights"
EXTERNAL_BYTES = "1024"
"""Weights from this size on are written to a separate file, which is deleted immediately."""

SPARE_FACTOR = 1.5
"""Disk space to write an optimized graph, as a multiple of the model's size: layouts pad weights."""

LARGEST_GRAPH_BYTES = 1 << 28
"""Size of a model up to which its graphs are compared: each of them takes a session, and the space to write it."""

MOST_THREADS = 2
"""Largest number of graphs that are made at the same time."""

DIGESTS_DEADLINE_S = 60.0

Space = TypeVar("Space", bound=SearchSpace)


class DigestRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the child is to do.

    Attributes:
        model_path: The ONNX file.
        model_bytes: Its size, including external data.
        configs: The settings to optimize it with.
        folder: Where to write the graphs.
    """

    model_path: str
    model_bytes: int
    configs: tuple[Config, ...]
    folder: str


class GraphDigests(msgspec.Struct, frozen=True, kw_only=True):
    """The digest of the graph that each config gives; empty where it is not known."""

    digests: tuple[str, ...]


@replaceable
def digest_graphs(model: ModelInfo, configs: Sequence[Config]) -> tuple[str, ...]:
    """Return the digest of the graph that ONNX Runtime makes of a model with each config; empty where it is not known.

    Configs with the same digest run the same nodes on the CPU. Graphs of large models are not compared.
    """
    model_bytes = sum(file.size_bytes for file in model.files)
    unknown = ("",) * len(configs)
    if len(configs) < 2 or model_bytes > LARGEST_GRAPH_BYTES:
        return unknown
    with OwnedFolder() as folder:
        request = DigestRequest(
            model_path=model.path, model_bytes=model_bytes, configs=tuple(configs), folder=str(folder.path)
        )
        found = ask_child("ortune.worker.graphs", request, GraphDigests, deadline_s=DIGESTS_DEADLINE_S)
    return unknown if isinstance(found, Failure) else found.digests


def merge_same_programs(
    space: Space, models: Sequence[ModelInfo], resolve: Callable[[Config, int], Config] = lambda config, number: config
) -> Space:
    """Return a space with one candidate for all settings that give the same optimized graphs.

    Args:
        space: The space.
        models: The models that sessions run.
        resolve: Returns the settings of the sessions of a model, given those of a candidate and the model's position.
    """
    variants = list_graph_variants(space)
    if len(variants) < 2:
        return space
    enter_step("comparing optimized graphs")
    found = [
        digest_graphs(model, [resolve(variant.config, number) for variant in variants])
        for number, model in enumerate(models)
    ]
    together = ["\n".join(digests) if all(digests) else "" for digests in zip(*found, strict=True)]
    return merge_twins(space, variants, together)


def find_twins(model: ModelInfo, configs: Mapping[str, Config], n_default_threads: int) -> dict[str, str]:
    """Return which configs are the same program as an earlier one, by name.

    They differ only in settings of the optimized graph, and give the same one.

    Args:
        model: The model.
        configs: The configs, by name.
        n_default_threads: Number of threads of ONNX Runtime's default pool on this host.
    """
    groups: dict[str, list[str]] = {}
    for name, config in configs.items():
        if all(provider == CPU for provider, _ in config.providers):
            groups.setdefault(canonical(drop_graph_settings(config), n_default_threads).key, []).append(name)
    found: dict[str, str] = {}
    for names in groups.values():
        first: dict[str, str] = {}
        for name, digest in zip(names, digest_graphs(model, [configs[name] for name in names]), strict=True):
            if digest and (earlier := first.setdefault(digest, name)) != name:
                found[name] = earlier
    return found


def drop_graph_settings(config: Config) -> Config:
    """Return a config without the settings on which the optimized graph depends."""
    return keep_session_settings(config, lambda name: not is_of_graph(name))


def is_of_graph(name: str) -> bool:
    """Return whether the optimized graph depends on a knob."""
    return name in KNOBS and KNOBS[name].graph


def keep_graph_settings(config: Config) -> Config:
    """Return only those settings of a config on which the optimized graph depends, on the CPU."""
    of_session = msgspec.structs.replace(
        DEFAULT, session_options=config.session_options, session_config=config.session_config
    )
    return keep_session_settings(of_session, is_of_graph)


def keep_session_settings(config: Config, is_kept: Callable[[str], bool]) -> Config:
    """Return a config with only those attributes and entries of the session whose name is kept."""
    return msgspec.structs.replace(
        config,
        session_options={name: value for name, value in config.session_options.items() if is_kept(name)},
        session_config={name: value for name, value in config.session_config.items() if is_kept(name)},
    )


# The rest runs in child processes.


def write_graph(model_path: str, config: Config, path: Path, *, model_bytes: int) -> None:
    """Write the optimized graph of a model, without its large weights.

    Args:
        model_path: The model.
        config: The settings to optimize it with.
        path: The file to write. No other graph may be written to its folder at the same time.
        model_bytes: Size of the model, including external data.

    Raises:
        OSError: There is not enough disk space.
        Exception: onnxruntime cannot write it.
    """
    free_bytes = shutil.disk_usage(path.parent).free
    if free_bytes < SPARE_FACTOR * model_bytes:
        raise OSError(f"{path.parent} has only {free_bytes / 1e6:.0f} MB free; set TMPDIR to a folder with more space")
    config = (
        write_to(config, path)
        .with_setting("session_config", "session.optimized_model_external_initializers_file_name", WEIGHTS_FILE)
        .with_setting(
            "session_config", "session.optimized_model_external_initializers_min_size_in_bytes", EXTERNAL_BYTES
        )
    )
    try:
        make_session(model_path, config)
    finally:
        path.with_name(WEIGHTS_FILE).unlink(missing_ok=True)


def write_to(config: Config, path: Path) -> Config:
    """Return a config with which a session writes its optimized graph to a file."""
    config = config.with_setting("session_options", "optimized_model_filepath", str(path))
    # Errors only: otherwise ONNX Runtime warns that a graph of the highest level is specific to this CPU.
    return config.with_setting("session_options", "log_severity_level", 3)


def compute_digests(request: DigestRequest, enter: Enter) -> GraphDigests:
    """Return the digests of the graphs. Those that cannot be written are empty."""
    enter("load")

    def compute(number: int) -> str:
        folder = Path(request.folder) / str(number)
        folder.mkdir()
        path = folder / "graph.onnx"
        # A session that is not run needs neither threads nor weights in the layout of its kernels.
        config = (
            keep_graph_settings(request.configs[number])
            .with_setting("session_options", ids.INTRA_OP_NUM_THREADS, 1)
            .with_setting("session_config", ids.DISABLE_PREPACKING, "1")
        )
        try:
            write_graph(request.model_path, config, path, model_bytes=request.model_bytes)
            return digest_graph(path)
        except Exception:  # noqa: BLE001  (not every graph can be written: some nodes have no kernel until they are fused)
            return ""
        finally:
            shutil.rmtree(folder)

    with concurrent.futures.ThreadPoolExecutor(MOST_THREADS) as threads:
        return GraphDigests(digests=tuple(threads.map(compute, range(len(request.configs)))))


if __name__ == "__main__":
    answer_parent(DigestRequest, compute_digests)
