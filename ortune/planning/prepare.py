"""Prepares planning: reads the model and the host, makes the inputs, and finds the deployments to try."""

from __future__ import annotations

import msgspec

from ortune.errors import UsageError
from ortune.file_kinds import find_document
from ortune.knobs import CPU, Config, SpaceOptions, build_space, ids
from ortune.knobs.build import fixed_options
from ortune.knobs.captures import captures_graphs
from ortune.knobs.catalogue import knob_of
from ortune.knobs.requested import check_versions
from ortune.measure.open import ComparisonSetup, allow_tf32, check_processes, prepare_comparison
from ortune.planning.dynamic_batching import MOST_BATCHED_REQUESTS
from ortune.planning.length_policies import LengthSample
from ortune.planning.options import PlanOptions
from ortune.planning.space import DeploymentSpace, make_deployment_space
from ortune.record.files import check_writable
from ortune.requests import PlanRequest
from ortune.worker.installed import find_installed_version, require_runtime
from ortune.worker.providers import choose_providers
from ortune.workload import Goal, Load, make_feed
from ortune.workload.batching import check_batch_axis, list_batches, name_batch_axes
from ortune.workload.length_feed import find_length_axes, make_length_feed

MOST_SAMPLED = 64
"""Items of different lengths that calls are made with, at most."""


class PreparedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that planning needs before it starts.

    Attributes:
        setup: The model, its inputs and the default deployment.
        space: The deployments that are worth trying.
        options: What the plan is for.
    """

    setup: ComparisonSetup
    space: DeploymentSpace
    options: PlanOptions


def prepare_plan(request: PlanRequest) -> PreparedPlan:
    """Read the host and the model, and make the inputs and the space.

    Raises:
        OrtuneError: An option is not valid, or the model or the host cannot be read.
    """
    require_runtime()
    if request.output is not None:
        check_writable(request.output, may_replace=lambda content: find_document(content) == "plan")
    setup = prepare_comparison(
        request.model,
        Goal(objectives=("throughput",), batches=list_batches(*request.batch) if request.batch else ()),
        request.input_options,
        approximate=request.allow_approximate,
        beside=request.beside,
        seed=request.seed,
    )
    setup, lengths = prepare_items(setup, request)
    for count in request.processes:
        if count > 1:
            check_processes(Load(scenario="multi-client", processes=count), setup.host)
    choice = choose_providers(request.provider or (CPU,), fixed_options(request.fix))
    options = SpaceOptions(
        figures=("throughput",),
        providers=choice.names[:1],
        plugins=choice.plugins,
        fix=request.fix,
        approximate=request.allow_approximate,
        batches=request.batch,
        onnxruntime=find_installed_version(),
    )
    check_versions(msgspec.structs.replace(options, tune=request.tune))
    check_only(request)
    base = build_space(setup.host, setup.model, options).base
    check_no_captures(base, request)
    space = make_deployment_space(
        setup.host,
        base,
        processes=request.processes,
        tune=request.tune,
        fix=request.fix,
        only=request.only,
        batches=request.batch,
    )
    return PreparedPlan(
        setup=msgspec.structs.replace(setup, base=base, tolerance=allow_tf32(setup.tolerance, [base.providers])),
        space=space,
        options=PlanOptions(
            slo=request.slo,
            rate_per_s=request.rate,
            headroom=request.headroom,
            price_per_hour=request.price,
            budget_s=request.budget,
            lengths=lengths,
            dynamic_batching=request.dynamic_batching,
        ),
    )


def check_no_captures(base: Config, request: PlanRequest) -> None:
    """Check that no deployment captures graphs: some have several callers, or requests that arrive at a rate.

    Raises:
        UsageError: One does.
    """
    tuned = [name for name in request.tune if knob_of(name).captures]
    if tuned or captures_graphs(base):
        raise UsageError(
            "Plans cannot use captured graphs: each caller would capture the graph again and keep its memory.",
            "Remove the setting that captures graphs.",
            option="tune" if tuned else "fix",
        )


def check_only(request: PlanRequest) -> None:
    """Check that a plan tries values of the only knobs that it may try.

    Raises:
        UsageError: It does not.
    """
    for name in request.only:
        has_values = name in {*request.tune, ids.INTRA_OP_NUM_THREADS, ids.INTRA_OP_ALLOW_SPINNING}
        if not has_values or name in request.fix:
            raise UsageError(
                f"{name}: the plan would try no values of this knob.",
                f"Give the values to try: {{tune={name}=VALUE,VALUE}}",
                option="only",
            )


def prepare_items(setup: ComparisonSetup, request: PlanRequest) -> tuple[ComparisonSetup, LengthSample | None]:
    """Return the setup with samples of single items where calls put them together, and the lengths of the items.

    Raises:
        OrtuneError: The model takes no batches, or the items cannot be made.
    """
    model, options = setup.model, request.input_options
    if request.dynamic_batching:
        check_batch_axis(model, name_batch_axes(model, options), option="dynamic_batching")
        feed = make_feed(model, options, (1, MOST_BATCHED_REQUESTS))
        if len({tuple(tensor.array.shape for tensor in sample.values()) for sample in feed.samples}) > 1:
            raise UsageError(
                "requests of different shapes cannot be put together.",
                "Give inputs of one shape, or leave {dynamic_batching} out.",
                option="dynamic_batching",
            )
        return msgspec.structs.replace(setup, feed=feed), None
    if request.lengths is None:
        return setup, None
    axes = find_length_axes(model, options)
    lengths = request.lengths.take(MOST_SAMPLED, request.seed)
    feed = make_length_feed(model, options, lengths, axes)
    text = request.lengths.text
    return msgspec.structs.replace(setup, feed=feed), LengthSample(
        text=text, lengths=lengths, maximum=request.lengths.high, axes=axes
    )
