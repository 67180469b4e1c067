"""Reads what `ortune apply` uses: records and plans of both kinds, which are recognized by their content.

Every program that `ortune apply` starts loads this module. Modules that only plans need are therefore imported on use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ortune.errors import RecordError
from ortune.file_kinds import find_document
from ortune.host import read_host
from ortune.record.check import check_files
from ortune.record.files import name_of_input, read_any
from ortune.record.schema import Record
from ortune.record.select import AnySourced, Sourced, Wanted, decode_sourced, limit_to_host, select_record

if TYPE_CHECKING:
    from ortune.planning.colocation.result import HostPlan
    from ortune.planning.pick import PickedDeployment
    from ortune.planning.result import Plan


class SourcedDeployment(Sourced, frozen=True, kw_only=True):
    """The record of a deployment of a plan.

    Attributes:
        deployment: The deployment.
    """

    deployment: PickedDeployment


def read_configs(
    given: Iterable[str | Path | Record | Plan | HostPlan], *, trust: bool = False, pick: int | str | None = None
) -> tuple[Sourced, ...]:
    """Read all records of some files.

    A plan is the record of one of its deployments. A plan for several models is a record for each of them.

    Args:
        given: Paths of records, bundles and plans; or the documents themselves.
        trust: Whether records may have settings that need trust; see `ortune.record.files.read_record`.
        pick: The deployment of a plan, or how the models of a plan share the host; see `pick_deployment` and
            `pick_models`.

    Raises:
        RecordError: One of them holds no records, or has a setting that a record must not have, or a plan has no such
            deployment.
    """
    found: list[Sourced] = []
    for source in given:
        if isinstance(source, Record):
            found.append(Sourced(record=source, source="the record"))
        elif not isinstance(source, (str, Path)):
            found += source_plan(source, pick, "plan.json")
        else:
            found += decode_configs(read_any(source), name_of_input(source), trust=trust, pick=pick)
    return tuple(found)


def decode_configs(data: bytes, name: str, *, trust: bool, pick: int | str | None) -> Sequence[Sourced]:
    """Return the records that the content of a file holds, or the deployments of a plan; see `read_configs`."""
    match find_document(data):
        case "plan":
            from ortune.planning.files import decode_plan

            return source_plan(decode_plan(data, name, trust=trust), pick, name)
        case "plan for several models":
            from ortune.planning.colocation.files import decode_host_plan

            return source_plan(decode_host_plan(data, name, trust=trust), pick, name)
    return decode_sourced(data, name, trust=trust)


def select_config(records: Sequence[Sourced], wanted: Wanted, model: str | Path | None = None) -> Sourced:
    """Select the record for a model, this host and a load, or the nearest one: of a search, or of a deployment.

    Raises:
        RecordError: No record is for the model, the records are for several models, or the front has no such point.
        ModelError: The model cannot be read.
    """
    choice = select_record(records, msgspec.structs.replace(wanted, elsewhere=True), model)
    found = next((sourced for sourced in records if sourced.record is choice.record), choice)
    return found if wanted.elsewhere else limit_to_host(found, read_host(memory=False))


def use_cache_dir(found: AnySourced, folder: Path | None) -> AnySourced:
    """Return a record whose execution providers keep compiled models in a folder, if one is given."""
    if folder is None:
        return found
    from ortune.knobs.caches import with_caches

    return msgspec.structs.replace(found, record=found.record.map_configs(lambda config: with_caches(config, folder)))


def find_deployment(found: Sourced) -> PickedDeployment | None:
    """Return the deployment that a record is of; None for a record of a search."""
    return found.deployment if isinstance(found, SourcedDeployment) else None


def source_plan(plan: Any, pick: int | str | None, name: str) -> list[SourcedDeployment]:
    """Return the picked deployment of a plan, or of each model of a plan, as a record that was read from a file.

    Raises:
        RecordError: It is no plan, or has no such deployment.
    """
    from ortune.planning.colocation.pick import pick_models
    from ortune.planning.colocation.result import HostPlan
    from ortune.planning.pick import pick_deployment
    from ortune.planning.result import Plan

    if isinstance(plan, Plan):
        found: tuple[PickedDeployment, ...] = (pick_deployment(plan, pick),)
    elif isinstance(plan, HostPlan):
        found = pick_models(plan, pick)
    else:
        raise RecordError(
            f"{type(plan).__name__}: a record or a plan is needed here.",
            "To create a plan: ortune.plan(MODEL).",
        )
    for number, picked in enumerate(found):
        check_files(picked.record, name, f"$.models[{number}]" if isinstance(plan, HostPlan) else "$")
    return [
        SourcedDeployment(
            record=picked.record,
            source=name,
            path=name,
            is_picked=True,
            shapes_vary=bool(picked.deployment.batching or picked.lengths),
            deployment=picked,
        )
        for picked in found
    ]
