"""Checks whether a record fits this model, this host and this onnxruntime."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ortune.errors import ModelError
from ortune.host import Fingerprint, Host
from ortune.host.names import HOST_NAMES, show_property
from ortune.measure import Runtime
from ortune.model import digest_of, hash_file
from ortune.record import Record, check_digest


class Misfit(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which a record does not fit.

    Attributes:
        what: What differs.
        recorded: Its value in the record.
        here: Its value here.
        cure: What to do, a sentence.
    """

    what: str
    recorded: str
    here: str
    cure: str


def check_model(record: Record, model: str | Path) -> None:
    """Check that the file is the model that the record is for.

    Only the files that the record names are read; the graph is not.

    Raises:
        RecordError: It is another model.
        ModelError: It cannot be read.
    """
    path = Path(model)
    if not path.is_file():
        fault = f"{path} is a folder" if path.is_dir() else f"There is no file {path}"
        raise ModelError(f"{fault}.", "Pass the path of the model that the record is for.")
    files = record.model.files
    found = [hash_file(path.parent, path.name)]
    if files and found[0].sha256 == files[0].sha256:
        try:
            found += [hash_file(path.parent, file.name) for file in files[1:]]
        except ModelError as error:
            raise ModelError(error.message, "The record says that this file belongs to the model.") from None
    check_digest(record, path, digest_of(found))


def find_misfits(record: Record, host: Host, runtime: Runtime) -> tuple[Misfit, ...]:
    """Return what differs between where the record was made and here, as far as it may change which config is best."""
    search = f"Search again here: ortune search {record.model.path}."
    misfits = [
        Misfit(
            what=HOST_NAMES[name],
            recorded=show_property(recorded),
            here=show_property(here),
            cure=search,
        )
        for name, (recorded, here) in record.host.differences(Fingerprint.of(host)).items()
    ]
    if _minor(record.runtime.onnxruntime) != _minor(runtime.onnxruntime):
        misfits.append(
            Misfit(
                what="onnxruntime",
                recorded=record.runtime.onnxruntime,
                here=runtime.onnxruntime,
                cure=f"Install the recorded version: pip install onnxruntime=={record.runtime.onnxruntime}; "
                f"or search again here.",
            )
        )
    for name, _ in record.config.providers:
        if name not in runtime.providers:
            misfits.append(
                Misfit(
                    what="execution provider",
                    recorded=name,
                    here=", ".join(runtime.providers),
                    cure=f"Install an onnxruntime package that has {name}.",
                )
            )
    return tuple(misfits)


def _minor(version: str) -> str:
    """Return major and minor version: a patch release changes no default."""
    return ".".join(version.split(".")[:2])
