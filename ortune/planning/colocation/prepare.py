"""Prepares a plan for several models: reads each of them, and makes their inputs and the deployments to try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from ortune.errors import InputsError, UsageError
from ortune.file_kinds import find_document
from ortune.host import Host
from ortune.knobs import CPU, SpaceOptions, build_space
from ortune.measure.open import ComparisonSetup, prepare_comparison
from ortune.model import ModelInfo, compute_digest, read_model
from ortune.planning.colocation.sharing import Demand
from ortune.planning.space import DeploymentSpace, make_deployment_space
from ortune.record.files import check_writable
from ortune.requests import HostPlanRequest
from ortune.worker.installed import find_installed_version, require_runtime
from ortune.workload import Goal, InputOptions, Limit

USUAL_HOST_PLAN_BUDGET_S = 300.0


class HostPlanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan for several models is for.

    Attributes:
        headroom: Share of the capacity that is left unused.
        price_per_hour: Price of a host, or None.
        budget_s: Time to spend.
        seed: Random seed.
    """

    headroom: float = 0.2
    price_per_hour: float | None = None
    budget_s: float = USUAL_HOST_PLAN_BUDGET_S
    seed: int = 0


class PreparedHostPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that planning for several models needs before it starts.

    Attributes:
        setups: Each model with its inputs and its default deployment.
        spaces: The deployments of each that are worth trying.
        demands: What each must serve.
        options: What the plan is for.
    """

    setups: tuple[ComparisonSetup, ...]
    spaces: tuple[DeploymentSpace, ...]
    demands: tuple[Demand, ...]
    options: HostPlanOptions

    @property
    def host(self) -> Host:
        """The host."""
        return self.setups[0].host


def prepare_host_plan(request: HostPlanRequest) -> PreparedHostPlan:
    """Read the host and the models, and make the inputs and the spaces.

    Raises:
        OrtuneError: An option is not valid, or a model or the host cannot be read.
    """
    require_runtime()
    if request.output is not None:
        check_writable(request.output, may_replace=lambda content: find_document(content) == "plan for several models")
    paths = [path for path, _ in request.models]
    names = name_models(paths)
    targets = assign_targets(request.slo, paths, names)
    models = [read_model(path) for path in paths]
    check_different(paths, [compute_digest(model.files) for model in models])
    inputs = choose_inputs(models, request.input_options)
    setups, spaces = [], []
    for path, own in zip(paths, inputs, strict=True):
        setup = prepare_comparison(path, Goal(objectives=("throughput",)), own, seed=request.seed)
        options = SpaceOptions(figures=("throughput",), providers=(CPU,), onnxruntime=find_installed_version())
        base = build_space(setup.host, setup.model, options).base
        setups.append(msgspec.structs.replace(setup, base=base))
        spaces.append(make_deployment_space(setup.host, base))
    return PreparedHostPlan(
        setups=tuple(setups),
        spaces=tuple(spaces),
        demands=tuple(
            Demand(name=name, rate_per_s=rate_per_s, slo=target)
            for name, (_, rate_per_s), target in zip(names, request.models, targets, strict=True)
        ),
        options=HostPlanOptions(
            headroom=request.headroom,
            price_per_hour=request.price,
            budget_s=request.budget or USUAL_HOST_PLAN_BUDGET_S,
            seed=request.seed,
        ),
    )


def name_models(paths: Sequence[str]) -> list[str]:
    """Return a name for each model, which differs from those of the others.

    It is that of its file without the ending, that of its folder, or as much of its path as is needed.

    Raises:
        UsageError: A path is that of no file.
    """
    for path in paths:
        if not PurePath(path).name:
            raise UsageError(
                f"{path}: is a folder, and not a model." if path else "A path of a model is empty.",
                "Write a.onnx=50/s b.onnx=10/s.",
                option="models",
            )
    folders = [PurePath(path).parent.name for path in paths]
    if len({PurePath(path).name for path in paths}) == 1 and len(set(folders)) == len(paths) and all(folders):
        return folders
    for n_parts in range(1, max(len(PurePath(path).parts) for path in paths) + 1):
        names = [str(PurePath(*PurePath(path).with_suffix("").parts[-n_parts:])) for path in paths]
        if len(set(names)) == len(names):
            return names
    return list(paths)


def check_different(paths: Sequence[str], digests: Sequence[str]) -> None:
    """Check that all models differ: settings of a session are chosen by the content of its model.

    Raises:
        UsageError: Two are the same.
    """
    first: dict[str, str] = {}
    for path, digest in zip(paths, digests, strict=True):
        if digest in first:
            raise UsageError(
                f"{first[digest]} and {path} are the same model.",
                "Name it once, with both rates together.",
                option="models",
            )
        first[digest] = path


def assign_targets(
    given: Sequence[tuple[str, Limit]], paths: Sequence[str], names: Sequence[str]
) -> list[Limit | None]:
    """Return the target of each model.

    Args:
        given: Targets with the model that each is for; an empty name for all that have none of their own.
        paths: Path of each model.
        names: Name of each.

    Raises:
        UsageError: A target is for no model, or a model has two.
    """
    common = [limit for name, limit in given if not name]
    if len(common) > 1:
        raise UsageError(
            f"{common[1].text}: there are two targets for all models.",
            "Write {slo=" + f"{names[0]}={common[1].text}" + "} for one of them.",
            option="slo",
        )
    found: dict[int, Limit] = {}
    for name, limit in given:
        if not name:
            continue
        spellings = [{path, own, PurePath(path).name} for path, own in zip(paths, names, strict=True)]
        places = [place for place, spelling in enumerate(spellings) if name in spelling]
        if len(places) != 1:
            why = "names more than one of the models" if places else "names none of the models"
            raise UsageError(f"{name}={limit.text}: {name} {why}.", f"They are {', '.join(names)}.", option="slo")
        if places[0] in found:
            raise UsageError(f"{name}={limit.text}: {name} has two targets.", "Give one for each model.", option="slo")
        found[places[0]] = limit
    return [found.get(place, common[0] if common else None) for place in range(len(paths))]


def choose_inputs(models: Sequence[ModelInfo], options: InputOptions) -> list[InputOptions]:
    """Return the options for the inputs of each model: those that name one of its dimensions or inputs.

    Raises:
        InputsError: One names nothing in any model.
    """
    dims = [{dim for info in model.inputs for dim in info.shape or () if isinstance(dim, str)} for model in models]
    inputs = [{info.name for info in model.inputs} for model in models]
    check_used(options.dims, dims, "dimension", "dim")
    check_used(options.shapes, inputs, "input", "shape")
    return [
        msgspec.structs.replace(
            options,
            dims={name: sizes for name, sizes in options.dims.items() if name in own_dims},
            shapes={name: shape for name, shape in options.shapes.items() if name in own_inputs},
        )
        for own_dims, own_inputs in zip(dims, inputs, strict=True)
    ]


def check_used(given: Mapping[str, Any], known: Sequence[set[str]], what: str, option: str) -> None:
    """Check that each name exists in a model.

    Raises:
        InputsError: One does not.
    """
    for name in given:
        if not any(name in known_names for known_names in known):
            names = ", ".join(sorted(set().union(*known)))
            raise InputsError(
                f"{name}: no model has {'an' if what == 'input' else 'a'} {what} of that name.",
                f"They have {names}." if names else "They have none.",
                option=option,
            )
