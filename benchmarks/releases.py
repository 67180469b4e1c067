"""Check the catalog of knobs against releases of onnxruntime: first versions, defaults, and completeness.

    python -m benchmarks.releases [--wheels FOLDER] [RELEASE ...]
    python -m benchmarks.releases --providers [--wheels FOLDER]

It downloads the wheels of the releases from PyPI for this Python, and unpacks them. For each release, it reads

- the keys in the binary, and compares them with the catalog in both directions (`tests/binary_keys.py`),
- the attributes of SessionOptions and RunOptions and their defaults, in a child process.

With `--providers`, it instead reads the names of options in the libraries of CUDA, TensorRT, OpenVINO and MIGraphX, in
releases of their packages. Downloads take 4 GB.

Then it compares the first release that has a key or an attribute with `since` in the catalog, and the defaults with
those of the catalog. The exit code is 1 if anything differs. The comparison covers binaries for Linux on x86-64.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.host import write_header
from ortune.knobs.catalogue import KNOBS
from ortune.knobs.knob import Knob
from tests.binary_keys import (
    NOT_IN_THE_BINARY,
    NOT_OPTIONS,
    OPTION_STARTS,
    expect_absent,
    expect_unknown,
    find_absent,
    find_options,
    find_unknown,
    has_option,
    is_before,
    is_in_binaries,
    read_binaries,
)

RELEASES = (
    "1.20.1",
    "1.21.1",
    "1.22.1",
    "1.23.2",
    "1.24.4",
    "1.25.1",
    "1.26.0",
    "1.27.0",
    "1.28.0",
    "1.29.0",
    "1.30.0",
    "1.31.1",
    "1.32.0",
)
"""The last release of each minor version that ortune supports."""

PACKAGES = {
    "onnxruntime-gpu": (
        ("cuda", "tensorrt"),
        (
            "1.20.2",
            "1.21.1",
            "1.22.0",
            "1.23.2",
            "1.24.4",
            "1.25.1",
            "1.26.0",
            "1.27.0",
            "1.28.0",
            "1.29.0",
            "1.30.0",
            "1.31.1",
        ),
    ),
    "onnxruntime-openvino": (("openvino",), ("1.20.0", "1.21.0", "1.22.0", "1.23.0", "1.24.1")),
    "onnxruntime-migraphx": (("migraphx",), ("1.23.2", "1.24.4", "1.25.0", "1.27.1")),
}
"""Packages with other providers: the short names of the providers, and releases."""

REPLACED = {"tensorrt.trt_detailed_build_log": "the compiler replaced it by numbers in 1.20"}
"""Options whose names are not strings in the binaries of all releases that have them."""

READ_DEFAULTS = """
import json, onnxruntime
def read(options):
    values = {name: getattr(options, name) for name in dir(type(options)) if not name.startswith("_")}
    return {name: getattr(value, "name", value) for name, value in values.items() if not callable(value)}
enums = ("GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder")
print(json.dumps({
    "session_options": read(onnxruntime.SessionOptions()),
    "run_options": read(onnxruntime.RunOptions()),
    "enums": sorted(name for enum in enums for name in getattr(onnxruntime, enum).__members__),
    "version": onnxruntime.__version__,
}))
"""


class Release:
    """What a release contains.

    Attributes:
        name: Its version.
        binary: Its libraries.
        attributes: Default of each attribute by the id of its knob.
        enums: Names of the values of enums.
    """

    def __init__(self, name: str, package: Path) -> None:
        self.name = name
        self.binary = read_binaries(package)
        done = subprocess.run(
            [sys.executable, "-c", READ_DEFAULTS],
            env={**os.environ, "PYTHONPATH": str(package.parent)},
            capture_output=True,
            text=True,
            check=True,
        )
        found = json.loads(done.stdout)
        if found["version"] != name:
            raise RuntimeError(f"the wheel of {name} contains {found['version']}")
        self.enums = frozenset(found["enums"])
        self.attributes: dict[str, object] = {}
        for knob in KNOBS.values():
            if knob.where in {"session_options", "run_options"} and knob.name in found[knob.where]:
                self.attributes[knob.id] = found[knob.where].pop(knob.name)
        self.unknown_attributes = [*found["session_options"], *found["run_options"]]

    def has(self, knob: Knob) -> bool:
        """Return whether the release has a knob: the attribute, or the key as a text."""
        return knob.id in self.attributes or b"\0" + knob.name.encode() + b"\0" in self.binary


def download(package: str, release: str, wheels: Path) -> Path:
    """Return the wheel of a release. Download it unless the folder of wheels has it."""
    pattern = f"{package.replace('-', '_')}-{release}-*.whl"
    if not list(wheels.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, "--dest", str(wheels), f"{package}=={release}"], check=True)
    return next(wheels.glob(pattern))


def fetch(release: str, wheels: Path, folder: Path) -> Release:
    """Return what a release contains."""
    with zipfile.ZipFile(download("onnxruntime", release, wheels)) as wheel:
        wheel.extractall(folder / release)
    return Release(release, folder / release / "onnxruntime")


def check_providers(wheels: Path) -> Iterator[str]:
    """Print the first release that has each option of a provider; yield differences from the catalog."""
    for package, (aliases, releases) in PACKAGES.items():
        first: dict[str, str] = {}
        for release in releases:
            with zipfile.ZipFile(download(package, release, wheels)) as wheel:
                for alias in aliases:
                    library = wheel.read(f"onnxruntime/capi/libonnxruntime_providers_{alias}.so")
                    for knob in KNOBS.values():
                        if knob.provider and knob.alias == alias and has_option(library, knob.name):
                            first.setdefault(knob.id, release)
                    if alias in OPTION_STARTS:
                        known = {knob.name for knob in KNOBS.values() if knob.alias == alias}
                        for name in sorted(find_options(library, alias) - known - set(NOT_OPTIONS)):
                            yield f"{package} {release}: {name} is not in the catalog"
        print(f"{package}: {' '.join(releases)}")
        for knob in KNOBS.values():
            if knob.provider and knob.alias in aliases:
                release = first.get(knob.id, "")
                if release != releases[0]:
                    print(
                        f"  {release or 'later':<8}{knob.id}{f'  ({REPLACED[knob.id]})' if knob.id in REPLACED else ''}"
                    )
                since = knob.since or minor_of(releases[0])
                is_right = minor_of(release) == since if release else is_before(releases[-1], since)
                if not is_right and knob.id not in REPLACED:
                    yield f"{knob.id}: first in {release or 'a later release'}, but the catalog states {since}"


def minor_of(release: str) -> str:
    """Return the version without its last number, as `since` states it."""
    return release.rpartition(".")[0]


def check_keys(release: Release) -> Iterator[str]:
    """Yield how the keys of a release differ from the catalog."""
    knobs = KNOBS.values()
    unknown, expected = find_unknown(release.binary, knobs), expect_unknown(release.name)
    yield from (f"{release.name}: {key} is not in the catalog" for key in sorted(unknown - expected))
    yield from (f"{release.name}: {key} has a reason, but is not in the binary" for key in sorted(expected - unknown))
    absent, reasons = find_absent(release.binary, knobs, release.name), expect_absent(release.name, knobs)
    yield from (f"{release.name}: {key} is not in the binary" for key in sorted(absent - reasons))
    yield from (f"{release.name}: {key} is in the binary despite its reason" for key in sorted(reasons - absent))
    yield from (f"{release.name}: the attribute {name} is not in the catalog" for name in release.unknown_attributes)


def find_first(releases: Sequence[Release]) -> dict[str, str]:
    """Return the first release that has a knob, by its id; those that no release has are left out."""
    first: dict[str, str] = {}
    for knob in KNOBS.values():
        if is_in_binaries(knob) or knob.where in {"session_options", "run_options"}:
            having = [release for release in releases if release.has(knob)]
            if having:
                first[knob.id] = having[0].name
    return first


def check_first(first: Mapping[str, str], oldest: str) -> Iterator[str]:
    """Yield knobs whose `since` is not the first release that has them."""
    for name, release in first.items():
        since = KNOBS[name].since
        found = "" if release == oldest else minor_of(release)
        if found != since and name not in NOT_IN_THE_BINARY:
            yield f"{name}: first in {release}, but the catalog states {since or 'all'}"


def check_defaults(releases: Sequence[Release]) -> Iterator[str]:
    """Yield attributes whose default in a release is not the one of the catalog."""
    for release in releases:
        for name, value in release.attributes.items():
            if value != KNOBS[name].default:
                yield f"{release.name}: the default of {name} is {value!r}, not {KNOBS[name].default!r}"


def describe(releases: Sequence[Release], first: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of the result."""
    yield "Releases: " + " ".join(release.name for release in releases)
    yield "\nFirst release that has a knob; those that the oldest one has are left out"
    for name, release in sorted(first.items(), key=lambda item: (position_of(releases, item[1]), item[0])):
        if release != releases[0].name:
            note = NOT_IN_THE_BINARY[name][0] if name in NOT_IN_THE_BINARY else ""
            yield f"  {release:<8}{name}{f'  ({note} before)' if note else ''}"
    yield "\nKnobs that no binary contains"
    yield from (f"  {name}: {why}" for name, (why, until) in NOT_IN_THE_BINARY.items() if not until)
    yield "\nDefaults of attributes"
    for knob in KNOBS.values():
        values = {release.name: release.attributes[knob.id] for release in releases if knob.id in release.attributes}
        if values:
            starts = [name for at, name in enumerate(values) if at == 0 or values[name] != [*values.values()][at - 1]]
            yield f"  {knob.id:<32}" + ", ".join(f"{values[name]!r} from {name}" for name in starts)
    yield "\nFirst release with a value of an enum"
    for value in sorted(frozenset().union(*(release.enums for release in releases))):
        yield f"  {next(release.name for release in releases if value in release.enums):<8}{value}"


def position_of(releases: Sequence[Release], name: str) -> int:
    """Return the position of a release."""
    return [release.name for release in releases].index(name)


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "releases", nargs="*", default=RELEASES, metavar="RELEASE", help="from the oldest to the newest"
    )
    parser.add_argument("--wheels", type=Path, help="folder in which wheels are kept")
    parser.add_argument("--providers", action="store_true", help="check the options of providers")
    options = parser.parse_args()
    print(write_header())
    with tempfile.TemporaryDirectory() as temporary:
        wheels = options.wheels or Path(temporary) / "wheels"
        if options.providers:
            faults = [*check_providers(wheels)]
        else:
            releases = [fetch(release, wheels, Path(temporary)) for release in options.releases]
            first = find_first(releases)
            print("\n".join(describe(releases, first)))
            faults = [fault for release in releases for fault in check_keys(release)]
            faults += [*check_first(first, releases[0].name), *check_defaults(releases)]
    print("\n" + ("\n".join(["Differences from the catalog", *faults]) if faults else "The catalog agrees."))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
