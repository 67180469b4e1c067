"""Targets that other packages add, through the entry point group `ortune.exports`.

A package declares `NAME = "MODULE:OBJECT"` in that group, where the object is a `Target` of the same name. Its code is
imported only if the target is named, or if all targets are listed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from importlib.metadata import EntryPoint, entry_points

import msgspec

from ortune.errors import OrtuneError, UsageError
from ortune.export.checks import find_fault
from ortune.export.target import Job, Target

GROUP = "ortune.exports"

NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

PACKAGE_HINT = "Update the package that contains it, or report this to its authors."


class ListedTarget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A target as it is listed.

    Attributes:
        name: Its name on the command line.
        summary: What is written, one line; empty if the target cannot be used.
        package: Name and version of the package that adds it; empty for a target of ortune.
        fault: Why it cannot be used; empty if it can be.
    """

    name: str
    summary: str
    package: str = ""
    fault: str = ""


def find_installed(own: Collection[str]) -> dict[str, tuple[EntryPoint, ...]]:
    """Return the entry points by name, without importing anything.

    Args:
        own: Names of ortune's own targets, which no package can replace: their entry points are left out.

    Raises:
        UsageError: A package has metadata that cannot be read.
    """
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in _read_entry_points():
        if entry.name not in own:
            found[entry.name] = (*found.get(entry.name, ()), entry)
    return found


def load_installed(entries: tuple[EntryPoint, ...]) -> Target:
    """Import a target.

    Args:
        entries: The entry points of its name.

    Raises:
        UsageError: It cannot be imported, is not a target, or several packages have this name.
    """
    entry = entries[0]
    if fault := _find_fault(entries):
        raise _make_error(entry.name, fault)
    try:
        target = entry.load()
    except (Exception, SystemExit) as error:
        fault = f"{describe_package(entry)} has it, and {entry.value} cannot be imported: {_describe(error)}"
        raise _make_error(entry.name, fault) from error
    if fault := _find_fault_of_target(target, entry.name):
        raise _make_error(entry.name, f"{describe_package(entry)} has it, and {entry.value} {fault}")
    checked: Target = msgspec.structs.replace(target, write=_guard(target, describe_package(entry)))
    return checked


def list_installed(own: Collection[str]) -> list[ListedTarget]:
    """Return all targets that other packages add, with the faults of those that cannot be used.

    Args:
        own: Names of ortune's own targets.

    Raises:
        UsageError: A package has metadata that cannot be read.
    """
    listed = [
        ListedTarget(
            name=entry.name, summary="", package=describe_package(entry), fault="ortune has a target of this name"
        )
        for entry in _read_entry_points()
        if entry.name in own
    ]
    for name, entries in sorted(find_installed(own).items()):
        packages = ", ".join(map(describe_package, entries))
        try:
            summary, fault = load_installed(entries).summary, ""
        except UsageError as error:
            summary, fault = "", error.message.removeprefix(f"{name}: ").removesuffix(".")
        listed.append(ListedTarget(name=name, summary=summary, package=packages, fault=fault))
    return listed


def describe_package(entry: EntryPoint) -> str:
    """Return name and version of the package that has an entry point."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "a package without metadata"


def _read_entry_points() -> list[EntryPoint]:
    """Return the entry points of all packages.

    Raises:
        UsageError: A package has metadata that cannot be read.
    """
    try:
        return sorted(entry_points(group=GROUP), key=describe_package)
    except Exception as error:
        raise UsageError(
            f"The entry points of the installed packages cannot be read: {_describe(error)}.",
            "Look for a broken package with: python -P -m pip check.",
        ) from error


def _find_fault(entries: tuple[EntryPoint, ...]) -> str:
    """Return what is wrong with the entry points of a name, as the rest of a sentence; empty if nothing is."""
    if len(entries) > 1:
        return f"{' and '.join(map(describe_package, entries))} have a target of this name"
    if not NAME.fullmatch(entries[0].name):
        return "names of targets can have only lowercase letters, digits, and hyphens between them"
    return ""


def _find_fault_of_target(target: object, name: str) -> str:
    """Return what is wrong with a target, as the rest of a sentence; empty if nothing is."""
    if not isinstance(target, Target):
        return f"is not an ortune.export.Target, but of type {type(target).__name__}"
    if target.name != name:
        return f"has the name {target.name!r}"
    kinds = {"summary": str, "comment": str, "binary": bool, "merges": bool}
    for field, kind in kinds.items():
        if not isinstance(getattr(target, field), kind):
            return f"has a {field} that is not of type {kind.__name__}"
    if not (target.summary.strip() and target.summary.isprintable()):
        return "has a summary that is not one printable line"
    if not target.comment.isprintable() or " " in target.comment:
        return f"has {target.comment!r} as the start of a comment"
    return "" if callable(target.write) else "has no write function"


def _guard(target: Target, package: str) -> Callable[[Job], str]:
    """Return the function of a target, whose errors name the package."""

    def write(job: Job) -> str:
        try:
            text: object = target.write(job)
        except OrtuneError:
            raise
        except (Exception, SystemExit) as error:
            raise _make_error(target.name, f"this target of {package} failed: {_describe(error)}") from error
        if not isinstance(text, str):
            raise _make_error(target.name, f"this target of {package} returned no text, but {type(text).__name__}")
        if fault := find_fault(text):
            raise _make_error(target.name, f"this target of {package} returned text that {fault}")
        return text

    return write


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ").rstrip(".")


def _make_error(name: str, fault: str) -> UsageError:
    return UsageError(f"{name}: {fault}.", PACKAGE_HINT, option="to")
